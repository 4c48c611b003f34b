package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"keyhole/config"
)

func (a *app) newHealthcheck() *cobra.Command {
	var live bool
	cmd := &cobra.Command{
		Use:   "healthcheck",
		Short: "Exit with 0 if the node is ready, with 1 if not",
		Long: `Exits with 0 if every partition of the node serves, with 1 if not or if there is
no answer. Meant for container images, which need no other program for it.
Partitions that another node has taken over, an object store that is away, and
damage do not make a node unready. What keeps it from being ready, and what is
degraded or damaged, is told on standard error; with --json the whole state is
printed, ready or not.

Without --admin-url the address of KEYHOLE_ADMIN_LISTEN is asked, which is the
one that serve listens on in the same container.`,
		Example: `  keyhole healthcheck
  keyhole healthcheck --live`,
		Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if listen, ok := a.env(config.EnvName("admin-listen")); ok && listen != "" && !cmd.Flags().Changed("admin-url") {
				a.client.adminURL = "http://" + dialable(listen)
			}
			if !live {
				return a.healthcheck(cmd.Context())
			}
			body, err := a.adminCall(cmd.Context(), http.MethodGet, []string{"v1", "status", "live"}, nil)
			switch {
			case err != nil:
				return fmt.Errorf("not live: %w", err)
			case a.json:
				return a.printBody(body)
			}
			_, err = fmt.Fprintln(a.out, "live")
			return err
		},
	}
	cmd.Flags().BoolVar(&live, "live", false, "only ask whether the process works")
	a.adminFlag(cmd)
	a.timeoutFlag(cmd, 3*time.Second)
	a.jsonFlag(cmd)
	return cmd
}

// healthcheck asks for readiness and prints the state, which an answer of 503
// holds as well.
func (a *app) healthcheck(ctx context.Context) error {
	body, err := a.adminCall(ctx, http.MethodGet, []string{"v1", "status", "ready"}, nil)
	var refused *statusError
	if errors.As(err, &refused) {
		body = refused.body
	}
	var state struct {
		Ready *bool `json:"ready"`
		gatewayState
	}
	if json.Unmarshal(body, &state) != nil || state.Ready == nil {
		if err == nil {
			err = errors.New("the answer is not that of a node")
		}
		return fmt.Errorf("not ready: %w", err)
	}
	if a.json {
		err = a.printBody(body)
	} else {
		state.explain(a.err)
	}
	switch {
	case err != nil && !errors.As(err, &refused):
		return err
	case !*state.Ready:
		return errors.New("not ready")
	case a.json:
		return nil
	}
	_, err = fmt.Fprintln(a.out, "ready")
	return err
}

// gatewayState is what the readiness route says besides the verdict.
type gatewayState struct {
	NotReady []troubled `json:"not_ready"`
	Degraded []string   `json:"degraded"`
	Damaged  []troubled `json:"damaged"`
	Draining bool       `json:"draining"`
}

// troubled is a partition, a topic or, without a topic, the node.
type troubled struct {
	Topic     string `json:"topic"`
	Partition *int32 `json:"partition"`
	Reason    string `json:"reason"`
	Error     string `json:"error"`
}

func (t *troubled) String() string {
	where := ""
	switch {
	case t.Partition != nil:
		where = fmt.Sprintf("%s/%d: ", t.Topic, *t.Partition)
	case t.Topic != "":
		where = t.Topic + ": "
	}
	return printable(where + t.Reason + t.Error)
}

// maxTold bounds the lines of one kind; --json has all of them.
const maxTold = 20

// explain writes a line for each thing that is not as it should be.
func (s *gatewayState) explain(w io.Writer) {
	if s.Draining {
		fmt.Fprintln(w, "not ready: stopping")
	}
	tell := func(what string, n int, line func(i int) string) {
		for i := range min(n, maxTold) {
			fmt.Fprintf(w, "%s: %s\n", what, line(i))
		}
		if n > maxTold {
			fmt.Fprintf(w, "%s: and %d more, see --json\n", what, n-maxTold)
		}
	}
	tell("not ready", len(s.NotReady), func(i int) string { return s.NotReady[i].String() })
	tell("degraded", len(s.Degraded), func(i int) string { return printable(s.Degraded[i]) })
	tell("damaged", len(s.Damaged), func(i int) string { return s.Damaged[i].String() })
}

// dialable turns an address to listen on into one to connect to: "every
// address" becomes the loopback one.
func dialable(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return listen
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if strings.Contains(listen, "::") {
			host = "::1"
		}
	}
	return net.JoinHostPort(host, port)
}
