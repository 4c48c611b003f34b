package modeltest

import (
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
)

// config is one way in which a node may be set up. Properties that it sets stay
// as they are; the others change at random.
type config struct {
	name       string
	topic      map[string]string // of every new topic
	cluster    map[string]any
	topics     int
	partitions int // of a topic, at most
	keys       int
	valueBytes int // of most values, at most
	noStore    bool
}

var configs = []config{
	{name: "all at random", topics: 2, partitions: 3, keys: 30, valueBytes: 600},
	{name: "no store", topics: 2, partitions: 2, keys: 30, valueBytes: 600, noStore: true},
	{name: "everything local", topics: 1, partitions: 2, keys: 40, valueBytes: 600, topic: map[string]string{"redpanda.remote.write": "false"}},
	{name: "everything remote", topics: 1, partitions: 2, keys: 40, valueBytes: 600,
		topic: map[string]string{"segment.bytes": "1024", "retention.local.target.bytes": "0", "segment.ms": "1"}},
	{name: "one byte of local target", topics: 1, partitions: 1, keys: 40, valueBytes: 600,
		topic: map[string]string{"segment.bytes": "4096", "retention.local.target.bytes": "1"}},
	{name: "tiny segments", topics: 1, partitions: 2, keys: 40, valueBytes: 300,
		topic: map[string]string{"segment.bytes": "1024"}},
	{name: "chunk of one batch", topics: 1, partitions: 1, keys: 20, valueBytes: 20 << 10,
		topic: map[string]string{"segment.bytes": "262144", "max.message.bytes": "8388608"}, cluster: map[string]any{"cloud_storage_cache_chunk_size": 16 << 10}},
	{name: "cache of one chunk", topics: 1, partitions: 2, keys: 60, valueBytes: 2000,
		topic: map[string]string{"segment.bytes": "65536"}, cluster: map[string]any{"cloud_storage_cache_chunk_size": 16 << 10, "cloud_storage_cache_size": 20 << 10}},
	{name: "no cache", topics: 1, partitions: 2, keys: 60, valueBytes: 2000,
		topic: map[string]string{"segment.bytes": "65536"}, cluster: map[string]any{"cloud_storage_cache_size": 0}},
	{name: "gzip", topics: 1, partitions: 1, keys: 40, valueBytes: 800, topic: map[string]string{"compression.type": "gzip", "keyhole.remote.compression.type": "gzip"}},
	{name: "snappy", topics: 1, partitions: 1, keys: 40, valueBytes: 800, topic: map[string]string{"compression.type": "snappy", "keyhole.remote.compression.type": "snappy"}},
	{name: "lz4", topics: 1, partitions: 1, keys: 40, valueBytes: 800, topic: map[string]string{"compression.type": "lz4", "keyhole.remote.compression.type": "lz4"}},
	{name: "zstd", topics: 1, partitions: 1, keys: 40, valueBytes: 800, topic: map[string]string{"compression.type": "zstd", "keyhole.remote.compression.type": "zstd"}},
	{name: "synced before the answer", topics: 1, partitions: 2, keys: 40, valueBytes: 600, topic: map[string]string{"flush.ms": "0"}},
	{name: "synced later", topics: 1, partitions: 2, keys: 40, valueBytes: 600, topic: map[string]string{"flush.ms": "50", "segment.bytes": "4096"}},
	{name: "always compacting", topics: 1, partitions: 2, keys: 25, valueBytes: 300,
		topic: map[string]string{"segment.bytes": "1024", "segment.ms": "1000", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0", "min.compaction.lag.ms": "0"}},
	{name: "batches as they are", topics: 1, partitions: 2, keys: 40, valueBytes: 600,
		topic: map[string]string{"segment.bytes": "4096", "keyhole.remote.compression.type": "producer", "min.cleanable.dirty.ratio": "0.1"}},
	{name: "merged and plain", topics: 1, partitions: 2, keys: 40, valueBytes: 600,
		topic: map[string]string{"segment.bytes": "4096", "keyhole.remote.compression.type": "none", "min.cleanable.dirty.ratio": "0"}},
	{name: "short grace", topics: 1, partitions: 2, keys: 25, valueBytes: 600,
		topic: map[string]string{"segment.bytes": "1024", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "2000"}, cluster: map[string]any{"cloud_storage_gc_grace_ms": 5000}},
	{name: "compacting without a store", topics: 1, partitions: 2, keys: 25, valueBytes: 300, noStore: true,
		topic: map[string]string{"segment.bytes": "1024", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0"}},
	{name: "one key", topics: 1, partitions: 1, keys: 3, valueBytes: 300, topic: map[string]string{"segment.bytes": "4096"}},
}

const (
	defaultSteps = 100  // of each configuration
	worldSteps   = 1500 // after which a world is begun anew
)

// TestModel compares a catalog with a map, under many configurations. By default
// each gets a short world. KEYHOLE_MODEL_STEPS is the number of steps in total,
// in worlds of worldSteps; KEYHOLE_MODEL_SEED repeats the worlds of one seed.
func TestModel(t *testing.T) {
	total, length := 0, defaultSteps
	if n, err := strconv.Atoi(os.Getenv("KEYHOLE_MODEL_STEPS")); err == nil {
		total, length = n, min(worldSteps, n)
	}
	seed, err := strconv.ParseUint(os.Getenv("KEYHOLE_MODEL_SEED"), 10, 64)
	if err != nil {
		seed = rand.Uint64()
	}
	inBubble(t, func(t *testing.T) { // one for all worlds, because of what it costs
		for taken := 0; taken == 0 || taken < total; seed++ {
			t.Logf("seed %d", seed)
			for _, cfg := range configs {
				runWorld(t, seed, cfg, length)
				taken += length
			}
		}
	})
}

// inBubble is synctest.Test for a process in which decompressors are pooled: one
// that was made in a bubble cannot be used in another. What a pool has goes with the
// second collection.
func inBubble(t *testing.T, fn func(*testing.T)) {
	t.Helper()
	runtime.GC()
	runtime.GC()
	synctest.Test(t, fn)
}

func runWorld(t *testing.T, seed uint64, cfg config, length int) {
	t.Helper()
	w := newWorld(t, seed, cfg)
	defer w.close()
	w.run(length)
}
