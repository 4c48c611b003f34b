package partition

import (
	"context"

	"keyhole/tiered"
)

// Compaction is what one call of Compact has done, and the status behind it.
type Compaction struct {
	Status
	Done CompactionStats `json:"compaction"`
}

// CompactionStats count what was removed. Bytes are those of the segments that were
// rewritten or removed, before and after.
type CompactionStats struct {
	LocalSegments     int   `json:"local_segments"` // rewritten
	LocalBytesBefore  int64 `json:"local_bytes_before"`
	LocalBytesAfter   int64 `json:"local_bytes_after"`
	CloudSegments     int   `json:"cloud_segments"` // rewritten or removed
	CloudBytesBefore  int64 `json:"cloud_bytes_before"`
	CloudBytesAfter   int64 `json:"cloud_bytes_after"`
	RecordsRemoved    int64 `json:"records_removed"`
	TombstonesRemoved int64 `json:"tombstones_removed"` // of those
	SegmentsExpired   int   `json:"segments_expired"`   // by retention
}

// Compact compacts both tiers and applies retention now, whatever the dirty ratio
// says. It answers when done.
func (p *Partition) Compact(ctx context.Context) (Compaction, error) {
	return Compaction{}, ErrNoStore
}

// Collect deletes what the bucket has of this partition and nobody needs any more:
// objects that were replaced longer ago than the grace period, and orphans older
// than it. A dry run only says what it would delete.
func (p *Partition) Collect(ctx context.Context, dryRun bool) (tiered.Collected, error) {
	return tiered.Collected{}, ErrNoStore
}
