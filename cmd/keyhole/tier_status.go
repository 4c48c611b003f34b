package main

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"
)

func (a *app) newTierStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status TOPIC [PARTITION]",
		Short: "Show where the records of a partition are",
		Long: `Shows where the records of a partition, or of all partitions of the topic, are.
Offsets are Kafka offsets, both ends of a range belong to it; "-" is an empty range
or something not known. KEYS is an estimate, from the index. A MODE with "fenced"
says that another node has taken the partition over.

With --json: a list of {"topic", "partition", "status"}, also for one partition.
The fields of status are those of GET /v1/cloud_storage/status in docs/http.md.`,
		Example: `  keyhole tier status prices
  keyhole tier status prices 0 --json`,
		Args:              between(1, 2, "TOPIC [PARTITION]"),
		ValidArgsFunction: a.completeTopics,
		RunE: func(cmd *cobra.Command, args []string) error {
			partitions, err := a.partitionsArg(cmd.Context(), args)
			if err != nil {
				return err
			}
			states := &tierStates{topic: args[0]}
			for _, p := range partitions {
				body, err := a.adminCall(cmd.Context(), http.MethodGet, []string{"v1", "cloud_storage", "status", args[0], strconv.Itoa(int(p))}, nil)
				if err != nil {
					return fmt.Errorf("status of %s/%d: %w", args[0], p, err)
				}
				states.add(p, body)
			}
			return a.printTierStates(states)
		},
	}
	return a.adminFlags(cmd)
}
