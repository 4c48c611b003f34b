package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"keyhole/index"
	"keyhole/partition"
	"keyhole/tiered"
)

// rig is one partition in this process, without a store.
type rig struct {
	*partition.Partition
	dir     string
	indexes *index.Shared
	tiers   *tiered.Shared
}

// openPartition opens a partition in dir, with the caches of a default node.
func openPartition(ctx context.Context, fs vfs.FS, dir string, flush time.Duration) (*rig, error) {
	registry := prometheus.NewRegistry()
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	r := &rig{dir: dir, indexes: index.NewShared(64<<20, 1000), tiers: tiered.NewShared(1<<20, 1, registry)}
	r.Partition = partition.Open(partition.Options{
		FS: fs, Dir: dir, Topic: "bench", TopicID: "00000000000000000000000000000000", Writer: "bench", New: true,
		Tiers: r.tiers, Indexes: r.indexes, Metrics: partition.NewMetrics(registry), Logger: slog.New(slog.DiscardHandler),
		Settings: partition.Settings{
			IndexMaintained: true, IndexActive: true, SegmentBytes: 128 << 20, LocalTargetBytes: -1, LocalTargetAge: -1,
			MaxRecordBytes: 8 << 20, ChunkBytes: 64 << 10, FlushInterval: flush,
			DirtyRatio: 2, RetentionBytes: -1, RetentionAge: -1, // nothing is removed
		},
	})
	err := poll(ctx, time.Minute, "the partition is ready", func() (bool, error) {
		ready, _, damaged := r.State()
		return ready, damaged
	})
	if err != nil {
		r.close(ctx)
		return nil, err
	}
	return r, nil
}

func (r *rig) close(ctx context.Context) error {
	err := r.Partition.Close(ctx)
	if tErr := r.tiers.Close(ctx); err == nil {
		err = tErr
	}
	r.indexes.Close()
	return err
}

// diskBytes is the size of all files in the folders below dir that are called
// name.
func diskBytes(dir, name string) (int64, error) {
	var sum int64
	found := false
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.IsDir() || e.Name() != name {
			return err
		}
		found = true
		entries, err := os.ReadDir(path)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			info, err := entry.Info()
			if err != nil {
				return err
			}
			sum += info.Size()
		}
		return filepath.SkipDir
	})
	if err == nil && !found {
		err = fmt.Errorf("no folder %s in %s", name, dir)
	}
	return sum, err
}
