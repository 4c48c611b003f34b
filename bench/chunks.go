package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"keyhole/objstore"
)

// measureChunks uploads real data with several chunk sizes and reads it back.
func measureChunks(ctx context.Context, b *bench) error {
	s, err := b.startStore(ctx, "chunk-store")
	if errors.Is(err, errNoStore) {
		b.report.skip("%v", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer s.stop()
	n, err := b.startNode(ctx, filepath.Join(b.dir, "chunks"), s.url(objstore.ClientAWS), storeEnv...)
	if err != nil {
		return err
	}
	defer n.kill()
	sets, err := b.datasets(ctx)
	if err != nil {
		return err
	}
	for _, d := range sets {
		if err := b.chunkTable(ctx, n, s, d); err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
	}
	return nil
}

// datasets are the real inputs there are.
func (b *bench) datasets(ctx context.Context) ([]*dataset, error) {
	tree, err := goSource(ctx, b.scale.chunkBytes)
	if err != nil {
		return nil, err
	}
	sets := []*dataset{tree}
	files, err := history(b.scale.chunkBytes)
	switch {
	case err != nil:
		return nil, err
	case files == nil:
		b.report.skip("%s is not there", historyFile)
	default:
		sets = append(sets, files)
	}
	return sets, nil
}

func (b *bench) chunkTable(ctx context.Context, n *node, s *store, d *dataset) error {
	cache := d.bytes / 8
	var lines [][]string
	for _, size := range b.scale.chunkSizes {
		fmt.Fprintf(b.log, "chunks: %s, %d KiB\n", d.name, size>>10)
		line, err := b.chunkLine(ctx, n, s, d, size, cache)
		if err != nil {
			return err
		}
		lines = append(lines, line)
	}
	columns := []string{"chunk KiB", "cold p50 ms", "cold p99 ms", "KiB/cold lookup", "hit ratio", "mean ms", "MB read"}
	b.report.table(fmt.Sprintf("%s (%s): %d records, %.1f MB of values, %d live keys; cache of %.1f MB for the mixed lookups",
		d.name, d.what, len(d.records), float64(d.bytes)/1e6, len(d.live), float64(cache)/1e6), columns, lines)
	return nil
}

func (b *bench) chunkLine(ctx context.Context, n *node, s *store, d *dataset, size, cache int64) ([]string, error) {
	topic := fmt.Sprintf("%s-%dk", d.name, size>>10)
	s.proxy.near.Store(true)
	if err := n.set(ctx, map[string]any{"cloud_storage_cache_chunk_size": size, "cloud_storage_cache_size": 0}); err != nil {
		return nil, err
	}
	// With a dirty ratio of 1 nothing is compacted on the way.
	if err := n.createTopic(ctx, topic, coldPartitions, map[string]string{"min.cleanable.dirty.ratio": "1"}); err != nil {
		return nil, err
	}
	if err := n.produce(ctx, topic, slices.Values(d.records)); err != nil {
		return nil, err
	}
	if err := n.evict(ctx, topic, coldPartitions); err != nil {
		return nil, err
	}
	s.proxy.near.Store(false)
	if err := s.proxy.quiet(ctx); err != nil {
		return nil, err
	}
	// The same keys for every size. The first lookups make connections.
	random := rand.New(rand.NewPCG(1, 2))
	keys := make([]string, b.scale.chunkColds)
	for i := range keys {
		keys[i] = d.live[random.IntN(len(d.live))]
	}
	if _, err := n.coldLookups(ctx, topic, keys[:coldConns*2]); err != nil {
		return nil, err
	}
	s.proxy.take()
	cold, err := n.coldLookups(ctx, topic, keys)
	if err != nil {
		return nil, err
	}
	perLookup := float64(s.proxy.take().bytes) / float64(len(cold)) / 1024

	if err := n.set(ctx, map[string]any{"cloud_storage_cache_size": cache}); err != nil {
		return nil, err
	}
	hits, mean, err := n.mixedLookups(ctx, topic, mixedKeys(d.live, b.scale.chunkMixed))
	if err != nil {
		return nil, err
	}
	read := float64(s.proxy.take().bytes) / 1e6
	if err := n.api(ctx, "DELETE", "/v1/topics/"+topic, nil, nil); err != nil {
		return nil, err
	}
	return []string{strconv.FormatInt(size>>10, 10), fmt.Sprintf("%.1f", millis(cold.quantile(0.5))), fmt.Sprintf("%.1f", millis(cold.quantile(0.99))),
		fmt.Sprintf("%.0f", perLookup), fmt.Sprintf("%.2f", hits), fmt.Sprintf("%.1f", mean), fmt.Sprintf("%.0f", read)}, nil
}

// mixedKeys is a workload with both kinds of locality that caches live on: half
// of the lookups prefer some keys, which are spread over all of the data (Zipf's
// law over a random order), and half come as runs of eight neighbours in the
// order of writing.
func mixedKeys(live []string, count int) []string {
	const run = 8
	random := rand.New(rand.NewPCG(3, 4))
	order := random.Perm(len(live))
	zipf := rand.NewZipf(random, 1.1, 1, uint64(len(live)-1))
	keys := make([]string, 0, count+run)
	for len(keys) < count {
		for range run {
			keys = append(keys, live[order[zipf.Uint64()]])
		}
		for i, at := 0, random.IntN(len(live)); i < run; i++ {
			keys = append(keys, live[(at+i)%len(live)])
		}
	}
	return keys[:count]
}

// mixedLookups gives the share of lookups that needed no read from the store,
// and the mean time of all in milliseconds.
func (n *node) mixedLookups(ctx context.Context, topic string, keys []string) (hits, mean float64, err error) {
	var mu sync.Mutex
	var times latencies
	cached := 0
	err = inParallel(ctx, coldConns, keys, func(key string) error {
		a, err := n.lookup(ctx, http.MethodGet, topic, key, "")
		if err != nil {
			return err
		}
		if a.status != http.StatusOK {
			return fmt.Errorf("GET %s: status %d: %s", key, a.status, a.body)
		}
		mu.Lock()
		defer mu.Unlock()
		times = append(times, a.took)
		if a.source != "remote" {
			cached++
		}
		return nil
	})
	return float64(cached) / math.Max(1, float64(len(times))), millis(times.mean()), err
}
