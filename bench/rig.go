package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"keyhole/index"
	"keyhole/partition"
	"keyhole/record"
	"keyhole/tiered"
)

// rig is one partition in this process.
type rig struct {
	*partition.Partition
	dir     string
	indexes *index.Shared
	tiers   *tiered.Shared
}

// openPartition opens a partition without a store in dir.
func openPartition(ctx context.Context, fs vfs.FS, dir string, flush time.Duration) (*rig, error) {
	return openRig(ctx, dir, func(o *partition.Options) {
		o.FS, o.New, o.Settings.FlushInterval = fs, true, flush
	})
}

// openRig opens a partition in dir, with the caches of a default node, and waits
// until it serves. edit changes its options.
func openRig(ctx context.Context, dir string, edit func(*partition.Options)) (*rig, error) {
	registry := prometheus.NewRegistry()
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	r := &rig{dir: dir, indexes: index.NewShared(256<<20, 1000), tiers: tiered.NewShared(1<<20, 64, registry)}
	o := partition.Options{
		FS: vfs.Default, Dir: dir, Topic: "bench", TopicID: "00000000000000000000000000000000", Writer: "bench", Conditional: true,
		Tiers: r.tiers, Indexes: r.indexes, Metrics: partition.NewMetrics(registry), Logger: slog.New(slog.DiscardHandler),
		Inflations: semaphore.NewWeighted(2),
		Settings: partition.Settings{
			IndexMaintained: true, IndexActive: true, SegmentBytes: 128 << 20, LocalTargetBytes: -1, LocalTargetAge: -1,
			MaxRecordBytes: 8 << 20, ChunkBytes: 32 << 10, RemoteMerge: true, RemoteCodec: record.Zstd,
			DirtyRatio: 2, RetentionBytes: -1, RetentionAge: -1, GCGrace: time.Hour, // nothing is removed by itself
		},
	}
	edit(&o)
	r.Partition = partition.Open(o)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		ready, _, damaged := r.State()
		switch {
		case damaged != nil:
			return nil, errors.Join(damaged, r.close(ctx))
		case ready:
			return r, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), r.close(context.WithoutCancel(ctx)))
		}
	}
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
