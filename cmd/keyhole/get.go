package main

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

type getFlags struct {
	partition   string
	keyEncoding string
	record      bool
	verbose     bool
	minPosition int64
	wait        time.Duration
}

func (a *app) newGet() *cobra.Command {
	var f getFlags
	cmd := &cobra.Command{
		Use:   "get TOPIC KEY",
		Short: "Print the latest value of a key",
		Long: `Prints the latest value of a key, exactly its bytes, without a line feed behind.
With --record (or --json): the whole record as JSON. If there is no value, the
reason is told on standard error and the exit code is 1.`,
		Example: `  keyhole get prices apple
  keyhole get prices apple --record
  keyhole get prices --key-encoding hex 00ff10
  keyhole get prices apple --partition 2 --verbose`,
		Args:              exactly(2, "TOPIC KEY"),
		ValidArgsFunction: a.completeTopics,
		RunE:              func(cmd *cobra.Command, args []string) error { return a.get(cmd, f, args[0], args[1]) },
	}
	cmd.Flags().StringVar(&f.partition, "partition", "", "partition number, or any; by default computed from the key")
	cmd.Flags().StringVar(&f.keyEncoding, "key-encoding", "text", "what KEY is: text (its bytes as they are), base64url or hex")
	cmd.Flags().BoolVar(&f.record, "record", false, "print the record as JSON")
	cmd.Flags().BoolVarP(&f.verbose, "verbose", "v", false, "tell on standard error where the record was found")
	cmd.Flags().Int64Var(&f.minPosition, "min-position", 0, "answer only if the partition has applied everything below this position")
	cmd.Flags().DurationVar(&f.wait, "wait", 0, "how long to wait for --min-position, at most 30s")
	a.dataFlag(cmd)
	a.timeoutFlag(cmd, time.Minute)
	a.jsonFlag(cmd)
	return cmd
}

func (a *app) get(cmd *cobra.Command, f getFlags, topic, key string) error {
	e, err := a.data()
	if err != nil {
		return err
	}
	defer e.close()
	query, err := f.query(cmd.Flags().Changed("min-position"), key)
	if err != nil {
		return err
	}
	ctx, cancel := a.withTimeout(cmd.Context())
	defer cancel()
	req, err := e.request(ctx, http.MethodGet, []string{"kv", topic, key}, query, nil)
	if err != nil {
		return err
	}
	asRecord := f.record || a.json
	if asRecord {
		req.Header.Set("Accept", "application/json")
	}
	resp, body, err := e.do(req)
	if err != nil {
		return err
	}
	if f.verbose {
		a.tellFound(resp)
	}
	if resp.StatusCode != http.StatusOK {
		return e.refusal(resp, body)
	}
	if asRecord {
		return a.printBody(body)
	}
	_, err = a.out.Write(body)
	return err
}

// query checks what the node would refuse anyway, to call it misuse.
func (f *getFlags) query(minPosition bool, key string) (url.Values, error) {
	q := url.Values{}
	switch f.keyEncoding {
	case "text":
	case "base64url":
		if _, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(key, "=")); err != nil {
			return nil, misused("KEY is not base64url")
		}
		q.Set("key_encoding", f.keyEncoding)
	case "hex":
		if _, err := hex.DecodeString(key); err != nil {
			return nil, misused("KEY is not hexadecimal")
		}
		q.Set("key_encoding", f.keyEncoding)
	default:
		return nil, misused("--key-encoding must be text, base64url or hex")
	}
	if f.partition != "" {
		if _, err := strconv.ParseUint(f.partition, 10, 31); err != nil && f.partition != "any" {
			return nil, misused("--partition must be a number or any")
		}
		q.Set("partition", f.partition)
	}
	if key == "" && len(q) == 0 {
		// The zero-length key is a real key; on the wire it has to be marked.
		q.Set("key_encoding", "hex")
	}
	if f.wait < 0 || f.wait > 30*time.Second {
		return nil, misused("--wait must be between 0 and 30s")
	}
	if minPosition {
		q.Set("min_position", strconv.FormatInt(f.minPosition, 10))
		q.Set("wait_ms", strconv.FormatInt(f.wait.Milliseconds(), 10))
	}
	return q, nil
}

// tellFound prints the answer's X-Kv headers and ETag.
func (a *app) tellFound(resp *http.Response) {
	var names []string
	for name := range resp.Header {
		if strings.HasPrefix(name, "X-Kv-") || name == "Etag" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(a.err, "%s: %s\n", name, printable(resp.Header.Get(name)))
	}
}
