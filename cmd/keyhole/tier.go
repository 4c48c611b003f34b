package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
)

func (a *app) newTier() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "tier",
		Short:   "Look at the two tiers of a partition, move data between them and clean up",
		Example: "  keyhole tier status prices",
	}
	cmd.AddCommand(a.newTierStatus(), a.newTierEvict(), a.newTierCompact(), a.newTierGC(), a.newTierTrimCache(), a.newTierManifest())
	return asGroup(cmd)
}

// partitionsArg gives the partition named by the argument, or all of the topic.
func (a *app) partitionsArg(ctx context.Context, args []string) ([]int32, error) {
	if len(args) > 1 {
		n, err := partitionArg(args[1])
		if err != nil {
			return nil, err
		}
		return []int32{n}, nil
	}
	t, _, err := a.describeTopic(ctx, args[0])
	if err != nil {
		return nil, err
	}
	all := make([]int32, t.Partitions)
	for i := range all {
		all[i] = int32(i)
	}
	return all, nil
}

func partitionArg(arg string) (int32, error) {
	n, err := strconv.ParseInt(arg, 10, 32)
	if err != nil || n < 0 {
		return 0, misused("PARTITION must be a number, got %q", arg)
	}
	return int32(n), nil
}

// tierStatus is a partition's place in both tiers; what is not known is nil.
type tierStatus struct {
	Mode          string `json:"cloud_storage_mode"`
	LocalStart    *int64 `json:"local_log_start_offset"`
	LocalLast     *int64 `json:"local_log_last_offset"`
	HighWatermark *int64 `json:"high_watermark"`
	CloudStart    *int64 `json:"cloud_log_start_offset"`
	CloudLast     *int64 `json:"cloud_log_last_offset"`
	LocalSegments int    `json:"local_log_segment_count"`
	LocalBytes    int64  `json:"local_log_size_bytes"`
	CloudSegments int    `json:"cloud_log_segment_count"`
	CloudBytes    int64  `json:"cloud_log_size_bytes"`
	IndexKeys     *int64 `json:"index_keys"`
	Fenced        bool   `json:"fenced"` // another node has taken the partition over
}

// tierStates collects what the node says about partitions, to be printed as a
// table or, with --json, as one list.
type tierStates struct {
	topic string
	list  []tierState
}

type tierState struct {
	Topic     string          `json:"topic"`
	Partition int32           `json:"partition"`
	Status    json.RawMessage `json:"status"` // as the node gave it
}

func (s *tierStates) add(partition int32, body []byte) {
	s.list = append(s.list, tierState{s.topic, partition, body})
}

func (a *app) printTierStates(s *tierStates) error {
	if a.json {
		return a.printJSON(s.list)
	}
	var rows [][]string
	for _, one := range s.list {
		var status tierStatus
		if err := json.Unmarshal(one.Status, &status); err != nil {
			return fmt.Errorf("answer of the node cannot be read: %w", err)
		}
		rows = append(rows, status.row(one.Partition))
	}
	return a.printTable(tierHeader, rows)
}

var tierHeader = []string{"PARTITION", "MODE", "HIGH WATERMARK", "LOCAL OFFSETS", "SEGMENTS", "BYTES", "CLOUD OFFSETS", "SEGMENTS", "BYTES", "KEYS"}

func (s tierStatus) row(partition int32) []string {
	mode := s.Mode
	if s.Fenced {
		mode += ", fenced"
	}
	return []string{
		strconv.Itoa(int(partition)), mode, number(s.HighWatermark),
		span(s.LocalStart, s.LocalLast), strconv.Itoa(s.LocalSegments), strconv.FormatInt(s.LocalBytes, 10),
		span(s.CloudStart, s.CloudLast), strconv.Itoa(s.CloudSegments), strconv.FormatInt(s.CloudBytes, 10),
		estimate(s.IndexKeys),
	}
}

// estimate is a number that is about right.
func estimate(n *int64) string {
	if n == nil || *n == 0 {
		return number(n)
	}
	return "~" + number(n)
}

func number(n *int64) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatInt(*n, 10)
}

// span renders a range of offsets, both ends inclusive.
func span(first, last *int64) string {
	if last == nil {
		return "-"
	}
	return number(first) + ".." + number(last)
}
