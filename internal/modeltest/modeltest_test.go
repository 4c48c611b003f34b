package modeltest

import (
	"math/rand/v2"
	"os"
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
	{name: "gzip", topics: 1, partitions: 1, keys: 40, valueBytes: 800, topic: map[string]string{"compression.type": "gzip"}},
	{name: "snappy", topics: 1, partitions: 1, keys: 40, valueBytes: 800, topic: map[string]string{"compression.type": "snappy"}},
	{name: "lz4", topics: 1, partitions: 1, keys: 40, valueBytes: 800, topic: map[string]string{"compression.type": "lz4"}},
	{name: "zstd", topics: 1, partitions: 1, keys: 40, valueBytes: 800, topic: map[string]string{"compression.type": "zstd"}},
	{name: "synced before the answer", topics: 1, partitions: 2, keys: 40, valueBytes: 600, topic: map[string]string{"flush.ms": "0"}},
	{name: "synced later", topics: 1, partitions: 2, keys: 40, valueBytes: 600, topic: map[string]string{"flush.ms": "50", "segment.bytes": "4096"}},
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
	// One bubble for all worlds: decompressors are pooled over the process, and
	// one that was made in a bubble cannot be used outside of it.
	synctest.Test(t, func(t *testing.T) {
		for taken := 0; taken == 0 || taken < total; seed++ {
			t.Logf("seed %d", seed)
			for _, cfg := range configs {
				runWorld(t, seed, cfg, length)
				taken += length
			}
		}
	})
}

func runWorld(t *testing.T, seed uint64, cfg config, length int) {
	t.Helper()
	w := newWorld(t, seed, cfg)
	defer w.close()
	w.run(length)
}
