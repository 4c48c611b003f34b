package main

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
)

func (a *app) newTierStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status TOPIC [PARTITION]",
		Short: "Show where the records of a partition are",
		Long: `Shows where the records of a partition, or of all partitions of the topic, are.
Offsets are Kafka offsets, both ends of a range belong to it. KEYS is an estimate.
With --json: one line for each partition.`,
		Example: `  keyhole tier status prices
  keyhole tier status prices 0 --json`,
		Args:              between(1, 2, "TOPIC [PARTITION]"),
		ValidArgsFunction: a.completeTopics,
		RunE: func(cmd *cobra.Command, args []string) error {
			partitions, err := a.partitionsArg(cmd.Context(), args)
			if err != nil {
				return err
			}
			var rows [][]string
			for _, p := range partitions {
				var s tierStatus
				body, err := a.adminGet(cmd.Context(), []string{"v1", "cloud_storage", "status", args[0], strconv.Itoa(int(p))}, &s)
				if err != nil {
					return fmt.Errorf("status of %s/%d: %w", args[0], p, err)
				}
				if a.json {
					if err := a.printPartition(args, p, body); err != nil {
						return err
					}
					continue
				}
				rows = append(rows, s.row(p))
			}
			if a.json {
				return nil
			}
			return a.printTable(tierHeader, rows)
		},
	}
	return a.adminFlags(cmd)
}

// printPartition writes the JSON answer about a partition: as it came if the
// user named the partition, otherwise with the partition beside it.
func (a *app) printPartition(args []string, p int32, body []byte) error {
	if len(args) > 1 {
		return a.printBody(body)
	}
	return a.printJSON(struct {
		Partition int32           `json:"partition"`
		Status    json.RawMessage `json:"status"`
	}{p, body})
}
