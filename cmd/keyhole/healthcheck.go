package main

import (
	"fmt"
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
damage do not make a node unready: --json shows them as degraded and damaged.

Without --admin-url the address of KEYHOLE_ADMIN_LISTEN is asked, which is the
one that serve listens on in the same container.`,
		Example: `  keyhole healthcheck
  keyhole healthcheck --live`,
		Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if listen, ok := a.env(config.EnvName("admin-listen")); ok && listen != "" && !cmd.Flags().Changed("admin-url") {
				a.client.adminURL = "http://" + dialable(listen)
			}
			what := "ready"
			if live {
				what = "live"
			}
			body, err := a.adminCall(cmd.Context(), http.MethodGet, []string{"v1", "status", what}, nil)
			if err != nil {
				return fmt.Errorf("not %s: %w", what, err)
			}
			if a.json {
				return a.printBody(body)
			}
			_, err = fmt.Fprintln(a.out, what)
			return err
		},
	}
	cmd.Flags().BoolVar(&live, "live", false, "only ask whether the process works")
	a.adminFlag(cmd)
	a.timeoutFlag(cmd, 3*time.Second)
	a.jsonFlag(cmd)
	return cmd
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
