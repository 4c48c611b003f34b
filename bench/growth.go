package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/partition"
	"keyhole/record"
)

// growthValue is the size of the values: small, so that what grows is the index.
const growthValue = 16

// growthKey is a sequential key of 16 bytes.
func growthKey(dst []byte, i int) []byte { return fmt.Appendf(dst, "%016d", i) }

// measureGrowth compares lookups in partitions that hold more and more keys.
func measureGrowth(ctx context.Context, b *bench) (err error) {
	rigs := make([]*rig, len(b.scale.growth))
	for i, keys := range b.scale.growth {
		fmt.Fprintf(b.log, "growth: %d keys\n", keys)
		start := time.Now()
		if rigs[i], err = fillPartition(ctx, filepath.Join(b.dir, fmt.Sprintf("growth-%d", keys)), keys); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, rigs[i].close(ctx)) }()
		b.report.value(fmt.Sprintf("loading %d keys", keys), "1/s", float64(keys)/time.Since(start).Seconds(), "")
	}
	medians := make([][]float64, len(rigs)) // of each round, by size, µs
	for round := range b.scale.growthRounds + 1 {
		for i, r := range rigs {
			l, err := r.randomLookups(ctx, b.scale.growth[i], b.scale.growthLookups, uint64(round))
			if err != nil {
				return err
			}
			if round > 0 { // the first one fills the caches
				medians[i] = append(medians[i], float64(l.quantile(0.5))/1e3)
			}
		}
	}
	for i, keys := range b.scale.growth {
		if i == 0 {
			b.report.value(fmt.Sprintf("lookup p50 at %d keys, in process", keys), "µs", spreadOf(medians[0]).Median, "")
			continue
		}
		var r rounds
		for round := range medians[i] {
			r.add(medians[i][round], medians[0][round], medians[i][round]/medians[0][round])
		}
		b.report.compare(fmt.Sprintf("lookup p50 at %d keys", keys), "µs", fmt.Sprintf("at %d keys", b.scale.growth[0]), r, "≤ 1.5")
	}
	for i, keys := range b.scale.growth {
		bytes, err := diskBytes(rigs[i].dir, "kv_index")
		if err != nil {
			return err
		}
		goal := ""
		if keys == 10_000_000 {
			goal = "≤ 12"
		}
		b.report.value(fmt.Sprintf("index on disk at %d sequential 16-byte keys", keys), "B/key", float64(bytes)/float64(keys), goal)
	}
	return nil
}

// fillPartition writes keys in order, and opens the partition anew, so that all
// of the index is in its files.
func fillPartition(ctx context.Context, dir string, keys int) (*rig, error) {
	r, err := openPartition(ctx, vfs.Default, dir, time.Second)
	if err != nil {
		return nil, err
	}
	const batch = 2000
	recs := make([]record.Record, 0, batch)
	value := make([]byte, growthValue)
	for i := range keys {
		recs = append(recs, record.Record{Timestamp: 1, Key: growthKey(nil, i), Value: value})
		if len(recs) == batch || i == keys-1 {
			if _, err := r.Append(ctx, recs); err != nil {
				return nil, errors.Join(err, r.close(ctx))
			}
			recs = recs[:0]
		}
	}
	if err := r.close(ctx); err != nil {
		return nil, err
	}
	return openPartition(ctx, vfs.Default, dir, 0)
}

// randomLookups gives the times of lookups of random keys, one after the other.
func (r *rig) randomLookups(ctx context.Context, keys, count int, seed uint64) (latencies, error) {
	random := rand.New(rand.NewPCG(seed, 5))
	times := make(latencies, count)
	var key, value []byte
	for i := range times {
		key = growthKey(key[:0], random.IntN(keys))
		start := time.Now()
		res, err := r.Lookup(ctx, key, partition.Query{Buf: value})
		times[i] = time.Since(start)
		if err != nil {
			return nil, fmt.Errorf("key %s: %w", key, err)
		}
		value = res.Value
	}
	return times, nil
}
