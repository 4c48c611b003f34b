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

// measureGrowth compares lookups in partitions that hold more and more keys: as
// clients see them, and in this process, where nothing hides what grows.
func measureGrowth(ctx context.Context, b *bench) error {
	if err := b.growthHTTP(ctx); err != nil {
		return err
	}
	return b.growthInProcess(ctx)
}

func (b *bench) growthHTTP(ctx context.Context) error {
	nodes := make([]*node, len(b.scale.growth))
	for i, keys := range b.scale.growth {
		fmt.Fprintf(b.log, "growth: %d keys over HTTP\n", keys)
		n, err := b.startNode(ctx, filepath.Join(b.dir, fmt.Sprintf("growth-http-%d", keys)), "")
		if err != nil {
			return err
		}
		defer n.kill()
		nodes[i] = n
		if err := n.createTopic(ctx, "bench", 1, nil); err != nil {
			return err
		}
		value := make([]byte, growthValue)
		err = n.produce(ctx, "bench", func(yield func(pair) bool) {
			for i := range keys {
				if !yield(pair{hotKey(i), value}) {
					return
				}
			}
		})
		if err != nil {
			return err
		}
		if err := n.halt(); err != nil { // so that all of the index is in its files
			return err
		}
		if err := n.start(ctx); err != nil {
			return err
		}
	}
	medians := make([][]float64, len(nodes))
	for round := range b.scale.growthRounds + 1 {
		for i, n := range nodes {
			r, err := load(loadOptions{addr: n.addr, proto: "http", conns: 1, keys: b.scale.growth[i], size: growthValue,
				warm: 200 * time.Millisecond, duration: time.Second})
			if err != nil {
				return err
			}
			if round > 0 {
				medians[i] = append(medians[i], float64(r.P50)/1e3)
			}
		}
	}
	b.reportGrowth("lookup p50 over HTTP, 1 connection,", medians)
	return nil
}

// reportGrowth compares the medians of each round, in µs, with those of the
// smallest number of keys.
func (b *bench) reportGrowth(name string, medians [][]float64) {
	first := fmt.Sprintf("at %d keys", b.scale.growth[0])
	for i, keys := range b.scale.growth[1:] {
		var r rounds
		for round, m := range medians[i+1] {
			r.add(m, medians[0][round], m/medians[0][round])
		}
		b.report.compare(fmt.Sprintf("%s at %d keys", name, keys), "µs", first, r, "≤ 1.5")
	}
}

func (b *bench) growthInProcess(ctx context.Context) (err error) {
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
	b.reportGrowth("lookup p50 in process", medians)
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
