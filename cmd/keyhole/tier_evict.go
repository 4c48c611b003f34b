package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"
)

func (a *app) newTierEvict() *cobra.Command {
	var target int64
	cmd := &cobra.Command{
		Use:   "evict TOPIC [PARTITION]",
		Short: "Upload and evict now: move a partition's records to the bucket",
		Long: `Seals the active segment, uploads what the bucket does not have yet and removes
whole local segments, oldest first, until at most --local-target-bytes remain.
Works on one partition, or on all of the topic one after the other. Returns when
that is done.`,
		Example: `  keyhole tier evict prices
  keyhole tier evict prices 0 --local-target-bytes 1073741824`,
		Args:              between(1, 2, "TOPIC [PARTITION]"),
		ValidArgsFunction: a.completeTopics,
		RunE: func(cmd *cobra.Command, args []string) error {
			if target < 0 {
				return misused("--local-target-bytes must not be negative")
			}
			partitions, err := a.partitionsArg(cmd.Context(), args)
			if err != nil {
				return err
			}
			bar := a.newProgress("evicting", "partitions", int64(len(partitions)))
			defer bar.finish()
			request := map[string]int64{"local_target_bytes": target}
			var rows [][]string
			for _, p := range partitions {
				route := []string{"v1", "cloud_storage", "evict", args[0], strconv.Itoa(int(p))}
				body, err := a.adminCall(cmd.Context(), http.MethodPost, route, request)
				if err != nil {
					return fmt.Errorf("evict %s/%d: %w", args[0], p, err)
				}
				bar.add(1)
				if a.json {
					if err := a.printPartition(args, p, body); err != nil {
						return err
					}
					continue
				}
				var s tierStatus
				if err := json.Unmarshal(body, &s); err != nil {
					return fmt.Errorf("answer of the node cannot be read: %w", err)
				}
				rows = append(rows, s.row(p))
			}
			bar.finish()
			if a.json {
				return nil
			}
			return a.printTable(tierHeader, rows)
		},
	}
	cmd.Flags().Int64Var(&target, "local-target-bytes", 0, "bytes that may stay on local disk, for each partition")
	a.adminFlag(cmd)
	a.timeoutFlag(cmd, 0)
	a.jsonFlag(cmd)
	return cmd
}
