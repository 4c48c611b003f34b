package main

import (
	"errors"
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
that is done, and prints the new state of each partition as tier status does.`,
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
			states := &tierStates{topic: args[0]}
			var failure error
			for _, p := range partitions {
				route := []string{"v1", "cloud_storage", "evict", args[0], strconv.Itoa(int(p))}
				body, err := a.adminCall(cmd.Context(), http.MethodPost, route, request)
				if err != nil {
					failure = fmt.Errorf("evict %s/%d: %w", args[0], p, err)
					break
				}
				bar.add(1)
				states.add(p, body)
			}
			bar.finish()
			if len(states.list) > 0 { // what was done is told also if the rest failed
				failure = errors.Join(failure, a.printTierStates(states))
			}
			return failure
		},
	}
	cmd.Flags().Int64Var(&target, "local-target-bytes", 0, "bytes that may stay on local disk, for each partition")
	a.adminFlag(cmd)
	a.timeoutFlag(cmd, 0)
	a.jsonFlag(cmd)
	return cmd
}
