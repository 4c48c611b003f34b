package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"
)

func (a *app) newTierCompact() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "compact TOPIC [PARTITION]",
		Short: "Compact both tiers and apply retention now",
		Long: `Seals the active segment, uploads what the bucket does not have yet, drops from both
tiers what newer records of the same keys have replaced, and removes what is no longer
retained, whatever min.cleanable.dirty.ratio says. Offsets do not change. Works on one
partition, or on all of the topic one after the other; lookups and writes go on.

Objects that were replaced stay in the bucket for cloud_storage_gc_grace_ms; those that
are past it are deleted. A topic without an index is not compacted: its retention is
applied.

Prints for each partition what was rewritten, and on standard error what of the topic
is not compacted and why. With --json: a list of {"topic", "partition", "status"}; the
fields of status are those of POST /v1/compact in docs/http.md.`,
		Example: `  keyhole tier compact prices
  keyhole tier compact prices 0 --json`,
		Args:              between(1, 2, "TOPIC [PARTITION]"),
		ValidArgsFunction: a.completeTopics,
		RunE: func(cmd *cobra.Command, args []string) error {
			partitions, err := a.partitionsArg(cmd.Context(), args)
			if err != nil {
				return err
			}
			bar := a.newProgress("compacting", "partitions", int64(len(partitions)))
			defer bar.finish()
			states := &tierStates{topic: args[0]}
			var failure error
			for _, p := range partitions {
				body, err := a.adminCall(cmd.Context(), http.MethodPost, []string{"v1", "compact", args[0], strconv.Itoa(int(p))}, nil)
				if err != nil {
					failure = fmt.Errorf("compact %s/%d: %w", args[0], p, err)
					break
				}
				bar.add(1)
				states.add(p, body)
			}
			bar.finish()
			if len(states.list) > 0 { // what was done is told also if the rest failed
				failure = errors.Join(failure, a.printCompactions(states))
				a.explainCompaction(cmd.Context(), args[0])
			}
			return failure
		},
	}
	a.adminFlag(cmd)
	a.timeoutFlag(cmd, 0)
	a.jsonFlag(cmd)
	return cmd
}

// compaction is what the node says about one compaction.
type compaction struct {
	LocalSegments     int   `json:"local_segments"`
	LocalBytesBefore  int64 `json:"local_bytes_before"`
	LocalBytesAfter   int64 `json:"local_bytes_after"`
	CloudSegments     int   `json:"cloud_segments"`
	CloudBytesBefore  int64 `json:"cloud_bytes_before"`
	CloudBytesAfter   int64 `json:"cloud_bytes_after"`
	RecordsRemoved    int64 `json:"records_removed"`
	TombstonesRemoved int64 `json:"tombstones_removed"`
	SegmentsExpired   int   `json:"segments_expired"`
}

var compactionHeader = []string{"PARTITION", "LOCAL SEGMENTS", "BYTES", "CLOUD SEGMENTS", "BYTES", "RECORDS REMOVED", "TOMBSTONES", "SEGMENTS EXPIRED"}

func (c *compaction) row(partition int32) []string {
	return []string{
		strconv.Itoa(int(partition)),
		strconv.Itoa(c.LocalSegments), change(c.LocalSegments, c.LocalBytesBefore, c.LocalBytesAfter),
		strconv.Itoa(c.CloudSegments), change(c.CloudSegments, c.CloudBytesBefore, c.CloudBytesAfter),
		strconv.FormatInt(c.RecordsRemoved, 10), strconv.FormatInt(c.TombstonesRemoved, 10), strconv.Itoa(c.SegmentsExpired),
	}
}

// change renders what became of the bytes of segments that were rewritten.
func change(segments int, before, after int64) string {
	if segments == 0 {
		return "-"
	}
	return fmt.Sprintf("%d -> %d", before, after)
}

// explainCompaction tells what of a topic is never compacted, and why: a row of
// zeros does not. It is no reason to fail if that cannot be found out.
func (a *app) explainCompaction(ctx context.Context, topic string) {
	t, _, err := a.describeTopic(ctx, topic)
	if err != nil {
		return
	}
	const index, upload = "redpanda.kv.index.enabled", "redpanda.remote.write"
	switch {
	case t.Configs[index].Value == "false":
		fmt.Fprintf(a.err, "nothing of %s was compacted, its retention was applied: it has no index (%s is false)\n", topic, index)
	case t.Configs[upload].Value == "false":
		fmt.Fprintf(a.err, "only the local log of %s was compacted: it is not uploaded (%s is false)\n", topic, upload)
	}
}

// printCompactions prints a table or, with --json, one list, and a summary.
func (a *app) printCompactions(s *tierStates) error {
	var rows [][]string
	var local, cloud, records int64
	for _, one := range s.list {
		var status struct {
			Done compaction `json:"compaction"`
		}
		if err := json.Unmarshal(one.Status, &status); err != nil {
			return fmt.Errorf("answer of the node cannot be read: %w", err)
		}
		rows = append(rows, status.Done.row(one.Partition))
		local += status.Done.LocalBytesBefore - status.Done.LocalBytesAfter
		cloud += status.Done.CloudBytesBefore - status.Done.CloudBytesAfter
		records += status.Done.RecordsRemoved
	}
	var err error
	if a.json {
		err = a.printJSON(s.list)
	} else {
		err = a.printTable(compactionHeader, rows)
	}
	if err == nil {
		fmt.Fprintf(a.err, "compacted %s of %s: %s records removed from either tier, local log smaller by %s, cloud log by %s\n",
			countOf(int64(len(s.list)), "partition"), s.topic, strconv.FormatInt(records, 10), byteSize(local), byteSize(cloud))
	}
	return err
}
