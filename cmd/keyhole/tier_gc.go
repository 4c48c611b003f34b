package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) newTierGC() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "gc [TOPIC [PARTITION]]",
		Short: "Delete objects that nobody needs any more from the bucket",
		Long: `Deletes from the bucket what has not been needed for longer than
cloud_storage_gc_grace_ms: objects that compaction replaced, orphans that a crash left
behind, and what deleted topics left. The gateway does the same by itself from time to
time. Without TOPIC: all topics of the node, and all deleted ones.

With --dry-run nothing is deleted. Either way one line is printed for each object, with
the time since it was last needed; a node lists 10000 at most and counts the others.
With --json: the answer of POST /v1/cloud_storage/gc in docs/http.md.`,
		Example: `  keyhole tier gc --dry-run
  keyhole tier gc prices
  keyhole tier gc prices 0 --json`,
		Args:              between(0, 2, "[TOPIC [PARTITION]]"),
		ValidArgsFunction: a.completeTopics,
		RunE: func(cmd *cobra.Command, args []string) error {
			request := map[string]any{"dry_run": dryRun}
			if len(args) > 0 {
				if args[0] == "" {
					return misused("TOPIC must not be empty")
				}
				request["topic"] = args[0]
			}
			if len(args) > 1 {
				n, err := partitionArg(args[1])
				if err != nil {
					return err
				}
				request["partition"] = n
			}
			bar := a.newProgress("cleaning up", "", -1)
			defer bar.finish()
			body, err := a.adminCall(cmd.Context(), http.MethodPost, []string{"v1", "cloud_storage", "gc"}, request)
			bar.finish()
			if err != nil {
				return fmt.Errorf("clean up: %w", err)
			}
			return a.printCollected(body)
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print what would be deleted")
	a.adminFlag(cmd)
	a.timeoutFlag(cmd, 0)
	a.jsonFlag(cmd)
	return cmd
}

// printCollected prints what a clean-up has deleted, or would have. What it could
// not look at is its failure.
func (a *app) printCollected(body []byte) error {
	var got struct {
		Objects []struct {
			Key   string `json:"key"`
			Size  int64  `json:"size"`
			AgeMS int64  `json:"age_ms"`
			Why   string `json:"why"`
		} `json:"objects"`
		Count   int64 `json:"object_count"`
		Bytes   int64 `json:"object_bytes"`
		Deleted bool  `json:"deleted"`
		Failed  []struct {
			Topic     string `json:"topic"`
			Partition int32  `json:"partition"`
			Error     string `json:"error"`
		} `json:"failed"`
	}
	if err := json.Unmarshal(body, &got); err != nil {
		return fmt.Errorf("answer of the node cannot be read: %w", err)
	}
	var rows [][]string
	for _, o := range got.Objects {
		age := time.Duration(o.AgeMS) * time.Millisecond
		rows = append(rows, []string{age.Round(time.Second).String(), strconv.FormatInt(o.Size, 10), o.Why, printable(o.Key)})
	}
	var err error
	switch {
	case a.json:
		err = a.printBody(body)
	case len(rows) > 0:
		err = a.printTable([]string{"AGE", "BYTES", "WHY", "KEY"}, rows)
	}
	if err != nil {
		return err
	}
	done := "would delete"
	if got.Deleted {
		done = "deleted"
	}
	more := ""
	if n := got.Count - int64(len(got.Objects)); n > 0 {
		more = fmt.Sprintf(", %d of them not listed", n)
	}
	fmt.Fprintf(a.err, "%s %s, %s%s\n", done, countOf(got.Count, "object"), byteSize(got.Bytes), more)
	for _, f := range got.Failed {
		fmt.Fprintf(a.err, "%s/%d was left out: %s\n", printable(f.Topic), f.Partition, printable(f.Error))
	}
	if n := len(got.Failed); n > 0 {
		return fmt.Errorf("clean up: %s left out", countOf(int64(n), "partition"))
	}
	return nil
}
