package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"

	"keyhole/objstore"
)

// shapeBlock is how many cold lookups make one ratio.
const shapeBlock = 60

// measureShape uploads real data in every shape, and measures what is stored, what
// a cold lookup reads, and how long it takes against the same ranged GET.
func measureShape(ctx context.Context, b *bench) error {
	s, err := b.startStore(ctx, "shape-store")
	if errors.Is(err, errNoStore) {
		b.report.skip("%v", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer s.stop()
	n, err := b.startNode(ctx, filepath.Join(b.dir, "shape"), s.url(objstore.ClientAWS), storeEnv...)
	if err != nil {
		return err
	}
	defer n.kill()
	if err := n.set(ctx, map[string]any{"cloud_storage_cache_size": 0}); err != nil {
		return err
	}
	bucket, err := openBucket(ctx, s.url(objstore.ClientAWS))
	if err != nil {
		return err
	}
	defer bucket.Close()
	sets, err := b.datasets(ctx)
	if err != nil {
		return err
	}
	for _, d := range sets {
		var lines [][]string
		var before shapeResult
		for i, shape := range b.scale.shapes {
			fmt.Fprintf(b.log, "shape: %s, %s\n", d.name, shape)
			r, err := b.shape(ctx, n, s, bucket, d, shape)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", d.name, shape, err)
			}
			if i == 0 {
				before = r
			}
			lines = append(lines, []string{
				shape, fmt.Sprintf("%.1f", float64(r.stored)/1e6), fmt.Sprintf("%.2f", float64(r.stored)/float64(before.stored)),
				fmt.Sprintf("%.1f", r.perLookup/1024), fmt.Sprintf("%.2f", r.perLookup/before.perLookup),
				fmt.Sprintf("%.2f", r.p50), fmt.Sprintf("%.2f", r.p99),
			})
		}
		columns := []string{"shape", "MB stored", "of producer's", "KiB/cold lookup", "of producer's", "p50 / ranged GET", "p99 / ranged GET"}
		b.report.table(fmt.Sprintf("%s (%s): %d records, %.1f MB of values", d.name, d.what, len(d.records), float64(d.bytes)/1e6), columns, lines)
	}
	return nil
}

type shapeResult struct {
	stored    int64   // bytes of all objects
	perLookup float64 // bytes
	p50, p99  float64 // of cold lookups, as ratios to the same ranged GETs, medians of blocks
}

func (b *bench) shape(ctx context.Context, n *node, s *store, bucket objstore.Bucket, d *dataset, shape string) (r shapeResult, err error) {
	topic := d.name + "-" + shape
	s.proxy.near.Store(true)
	// With a dirty ratio of 1 nothing is compacted on the way.
	props := map[string]string{"keyhole.remote.compression.type": shape, "min.cleanable.dirty.ratio": "1"}
	if err := n.createTopic(ctx, topic, coldPartitions, props); err != nil {
		return r, err
	}
	if err := n.produce(ctx, topic, slices.Values(d.records)); err != nil {
		return r, err
	}
	if err := n.evict(ctx, topic, coldPartitions); err != nil {
		return r, err
	}
	s.proxy.near.Store(false)
	if r.stored, err = sizeOf(filepath.Join(s.dir, topic), ""); err != nil {
		return r, err
	}
	if err := s.proxy.quiet(ctx); err != nil {
		return r, err
	}
	random := rand.New(rand.NewPCG(1, 2)) // the same keys for every shape
	keys := make([]string, b.scale.shapeBlocks*shapeBlock)
	for i := range keys {
		keys[i] = d.live[random.IntN(len(d.live))]
	}
	if _, err := n.coldLookups(ctx, topic, keys[:coldConns*2]); err != nil {
		return r, err
	}
	var p50, p99 []float64
	var bytes, lookups int64
	for block := range slices.Chunk(keys, shapeBlock) {
		var ours, peers latencies
		for piece := range slices.Chunk(block, coldPiece) {
			s.proxy.take()
			times, err := n.coldLookups(ctx, topic, piece)
			if err != nil {
				return r, err
			}
			seen := s.proxy.take()
			again, err := readSpans(ctx, bucket, seen.spans)
			if err != nil {
				return r, err
			}
			ours, peers = append(ours, times...), append(peers, again...)
			bytes += seen.bytes
			lookups += int64(len(times))
		}
		p50 = append(p50, float64(ours.quantile(0.5))/float64(peers.quantile(0.5)))
		p99 = append(p99, float64(ours.quantile(0.99))/float64(peers.quantile(0.99)))
	}
	r.perLookup = float64(bytes) / float64(lookups)
	r.p50, r.p99 = spreadOf(p50).Median, spreadOf(p99).Median
	return r, n.api(ctx, "DELETE", "/v1/topics/"+topic, nil, nil)
}
