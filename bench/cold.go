package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"keyhole/objstore"
	"keyhole/objstore/open"
)

const (
	coldConns      = 4  // lookups at once
	coldPiece      = 20 // lookups before the other side's turn
	coldPartitions = 4
	defaultCache   = 256 << 20
)

// measureCold compares cold lookups with the ranged GETs that they make,
// repeated through the same client library and the same proxy.
func measureCold(ctx context.Context, b *bench) error {
	s, err := b.startStore(ctx, "cold-store")
	if errors.Is(err, errNoStore) {
		b.report.skip("%v", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer s.stop()
	for _, client := range []objstore.Client{objstore.ClientAWS, objstore.ClientMinIO} {
		if err := b.coldClient(ctx, s, client); err != nil {
			return fmt.Errorf("%s: %w", client, err)
		}
	}
	return nil
}

func (b *bench) coldClient(ctx context.Context, s *store, client objstore.Client) error {
	dir := filepath.Join(b.dir, "cold-"+string(client))
	topic := "cold-" + string(client)
	n, err := b.startNode(ctx, dir, s.url(client), storeEnv...)
	if err != nil {
		return err
	}
	defer n.kill()
	keys, err := b.fillCold(ctx, n, topic)
	if err != nil {
		return err
	}
	bucket, err := openBucket(ctx, s.url(client))
	if err != nil {
		return err
	}
	defer bucket.Close()
	if err := b.coldLatency(ctx, n, s, bucket, client, topic, keys); err != nil {
		return err
	}
	if client != objstore.ClientAWS {
		return nil // what follows depends on keyhole and not on the client
	}
	return b.coldRequests(ctx, n, s, topic, keys)
}

// openBucket opens the store with the credentials of this run.
func openBucket(ctx context.Context, url string) (objstore.Bucket, error) {
	for _, kv := range storeEnv {
		for i := range kv {
			if kv[i] == '=' {
				if err := os.Setenv(kv[:i], kv[i+1:]); err != nil {
					return nil, err
				}
				break
			}
		}
	}
	return open.Bucket(ctx, url, open.Options{})
}

// fillCold writes a topic of 1 KiB values and moves all of it to the store. One
// more key is written and deleted.
func (b *bench) fillCold(ctx context.Context, n *node, topic string) ([]string, error) {
	if err := n.createTopic(ctx, topic, coldPartitions, nil); err != nil {
		return nil, err
	}
	keys := make([]string, b.scale.coldKeys)
	records := make([]pair, len(keys), len(keys)+2)
	for i := range keys {
		keys[i] = hotKey(i)
		records[i] = pair{keys[i], syntheticValue(i, 1<<10)}
	}
	records = append(records, pair{deletedKey, []byte("here")}, pair{deletedKey, nil})
	if err := n.produce(ctx, topic, slices.Values(records)); err != nil {
		return nil, err
	}
	return keys, n.evict(ctx, topic, coldPartitions)
}

const deletedKey = "deleted"

// spreadOut gives count keys that lie far from each other.
func spreadOut(keys []string, count, shift int) []string {
	out := make([]string, count)
	const stride = 7919 // a prime, so that all keys get their turn
	for i := range out {
		out[i] = keys[((i+shift)*stride)%len(keys)]
	}
	return out
}

func (b *bench) coldLatency(ctx context.Context, n *node, s *store, bucket objstore.Bucket, client objstore.Client, topic string, keys []string) error {
	// Without a cache every lookup is cold, unless two share a chunk in flight.
	if err := n.set(ctx, map[string]any{"cloud_storage_cache_size": 0}); err != nil {
		return err
	}
	var p50, p99 rounds
	var ours, peers latencies
	var bytes, lookups int64
	for block := range b.scale.coldBlocks + 1 {
		var cold, direct latencies
		asked := spreadOut(keys, b.scale.coldBlock, block*b.scale.coldBlock)
		// Small pieces, so that what else the machine does hits both sides alike.
		for piece := range slices.Chunk(asked, coldPiece) {
			s.proxy.take()
			times, err := n.coldLookups(ctx, topic, piece)
			if err != nil {
				return err
			}
			seen := s.proxy.take()
			again, err := readSpans(ctx, bucket, seen.spans)
			if err != nil {
				return err
			}
			cold, direct = append(cold, times...), append(direct, again...)
			if block > 0 {
				bytes += seen.bytes
				lookups += int64(len(times))
			}
		}
		if block == 0 {
			continue // connections were made
		}
		ours, peers = append(ours, cold...), append(peers, direct...)
		p50.add(millis(cold.quantile(0.5)), millis(direct.quantile(0.5)), float64(cold.quantile(0.5))/float64(direct.quantile(0.5)))
		p99.add(millis(cold.quantile(0.99)), millis(direct.quantile(0.99)), float64(cold.quantile(0.99))/float64(direct.quantile(0.99)))
	}
	name := fmt.Sprintf("cold GET through %s, ", client)
	b.report.compare(name+"p50", "ms", "same ranged GET", p50, "≤ 1.1")
	b.report.compare(name+"p99, by block", "ms", "same ranged GET", p99, "≤ 1.1")
	all := rounds{}
	all.add(millis(ours.quantile(0.99)), millis(peers.quantile(0.99)), float64(ours.quantile(0.99))/float64(peers.quantile(0.99)))
	b.report.compare(name+"p99, of all", "ms", "same ranged GET", all, "≤ 1.1")
	if client == objstore.ClientAWS {
		var target struct {
			Bytes int64 `json:"cloud_storage_cache_chunk_size"`
		}
		if err := n.api(ctx, "GET", "/v1/cluster_config", nil, &target); err != nil {
			return err
		}
		per := float64(bytes) / float64(lookups)
		b.report.Rows = append(b.report.Rows, row{
			Section: b.report.section, Name: "bytes per cold lookup", Unit: "KiB", Keyhole: per / 1024, Peer: float64(target.Bytes) / 1024, PeerIs: "chunk target",
			Ratio: &spread{per / float64(target.Bytes), per / float64(target.Bytes), per / float64(target.Bytes)}, Goal: "≤ 1.5",
		})
	}
	return n.set(ctx, map[string]any{"cloud_storage_cache_size": defaultCache})
}

func millis(d time.Duration) float64 { return float64(d) / 1e6 }

// coldLookups looks keys up, some at once, and gives the times of those that
// were read from the store.
func (n *node) coldLookups(ctx context.Context, topic string, keys []string) (latencies, error) {
	var mu sync.Mutex
	var times latencies
	err := inParallel(ctx, coldConns, keys, func(key string) error {
		a, err := n.lookup(ctx, http.MethodGet, topic, key, "")
		if err != nil {
			return err
		}
		if a.status != http.StatusOK {
			return fmt.Errorf("GET %s: status %d: %s", key, a.status, a.body)
		}
		mu.Lock()
		defer mu.Unlock()
		if a.source == "remote" {
			times = append(times, a.took)
		}
		return nil
	})
	return times, err
}

// readSpans makes the same reads without keyhole.
func readSpans(ctx context.Context, bucket objstore.Bucket, spans []span) (latencies, error) {
	var mu sync.Mutex
	var times latencies
	err := inParallel(ctx, coldConns, spans, func(s span) error {
		start := time.Now()
		_, err := bucket.ReadRange(ctx, s.key, s.off, s.n)
		took := time.Since(start)
		mu.Lock()
		defer mu.Unlock()
		times = append(times, took)
		return err
	})
	return times, err
}

// inParallel calls fn for all items, so many at once, each worker for every n-th
// one.
func inParallel[T any](ctx context.Context, workers int, items []T, fn func(T) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for w := range workers {
		g.Go(func() error {
			for i := w; i < len(items); i += workers {
				if err := ctx.Err(); err != nil {
					return err
				}
				if err := fn(items[i]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// coldRequests counts the requests that the store sees for each kind of lookup.
func (b *bench) coldRequests(ctx context.Context, n *node, s *store, topic string, keys []string) error {
	s.proxy.near.Store(true)
	defer s.proxy.near.Store(false)
	trim := func() error { return n.api(ctx, "POST", "/v1/cloud_storage/cache/trim", nil, nil) }
	some := spreadOut(keys, 20, 0)
	first, err := n.lookup(ctx, http.MethodGet, topic, some[0], "")
	if err != nil {
		return err
	}
	if err := s.proxy.quiet(ctx); err != nil {
		return err
	}
	others := 0
	kinds := []struct {
		name   string
		goal   string
		before func() error
		lookup func(key string) (answer, error)
	}{
		{"uncached cold key", "1", trim, func(key string) (answer, error) { return n.lookup(ctx, "GET", topic, key, "") }},
		{"cached one", "0", nil, func(key string) (answer, error) { return n.lookup(ctx, "GET", topic, key, "") }},
		{"absent key", "0", trim, func(key string) (answer, error) { return n.lookup(ctx, "GET", topic, key+"-not", "") }},
		{"deleted key", "0", trim, func(string) (answer, error) { return n.lookup(ctx, "GET", topic, deletedKey, "") }},
		{"If-None-Match of a cold key", "0", trim, func(string) (answer, error) { return n.lookup(ctx, "GET", topic, some[0], first.etag) }},
		{"HEAD of a cold key", "0", trim, func(key string) (answer, error) { return n.lookup(ctx, "HEAD", topic, key, "") }},
		{"first cold key after a restart", "1", func() error {
			if err := n.halt(); err != nil {
				return err
			}
			if err := n.start(ctx); err != nil {
				return err
			}
			return s.proxy.quiet(ctx)
		}, nil},
	}
	for _, k := range kinds {
		asked := some
		if k.lookup == nil {
			asked, k.lookup = some[:1], kinds[0].lookup
		}
		ranged := 0
		for i, key := range asked {
			if k.before != nil {
				if err := k.before(); err != nil {
					return err
				}
			} else if i == 0 {
				for _, warm := range asked {
					if _, err := k.lookup(warm); err != nil {
						return err
					}
				}
			}
			s.proxy.take()
			if _, err := k.lookup(key); err != nil {
				return err
			}
			seen := s.proxy.take()
			ranged += len(seen.spans)
			others += seen.requests - len(seen.spans)
		}
		b.report.value("ranged GETs, "+k.name, "1/lookup", float64(ranged)/float64(len(asked)), k.goal)
	}
	b.report.value("other requests to the store during all of these", "", float64(others), "0")
	return nil
}
