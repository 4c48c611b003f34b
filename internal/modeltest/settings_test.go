package modeltest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"keyhole/catalog"
)

// flip turns one of the switches over.
func (w *world) flip() {
	w.t.Helper()
	names := []string{"kv_index_enabled", "kv_index_remote_read_enabled", catalog.FeatureIndex,
		"redpanda.kv.index.enabled", "redpanda.remote.read", "redpanda.remote.write"}
	name := names[w.rng.IntN(len(names))]
	if w.bucket == nil && w.rng.IntN(2) == 0 {
		name = catalog.FeatureIndex
	}
	w.note("flip %s", name)
	switch name {
	case "kv_index_enabled", "kv_index_remote_read_enabled":
		w.setCluster(name, fmt.Sprint(!flag(w.cluster, name, false)))
	case catalog.FeatureIndex:
		w.feature = !w.feature
		state := catalog.StateDisabled
		if w.feature {
			state = catalog.StateActive
		}
		if err := w.c.SetFeature(context.Background(), name, state); err != nil {
			w.t.Fatal(err)
		}
	default:
		t, _ := w.pick()
		if t == nil {
			return
		}
		byDefault := name != "redpanda.kv.index.enabled" && w.bucket != nil
		w.setTopic(t, name, fmt.Sprint(!flag(t.props, name, byDefault)))
	}
}

// setTopic sets a property of a topic. It is refused where another switch
// forbids it.
func (w *world) setTopic(t *topicModel, name, value string) {
	w.t.Helper()
	err := w.c.AlterTopic(context.Background(), t.name, map[string]string{name: value}, nil)
	var invalid *catalog.InvalidError
	if name == "redpanda.kv.index.enabled" && value == "true" && t.props[name] != value && w.indexHidden() {
		if !errors.As(err, &invalid) {
			w.t.Fatalf("index of %s switched on though it is hidden: %v", t.name, err)
		}
		return
	}
	if err != nil {
		w.t.Fatalf("set %s of %s: %v", name, t.name, err)
	}
	t.props[name] = value
	t.followed = false
	if name == "redpanda.kv.index.enabled" {
		w.unsteady = true
		w.calm()
	}
}

var topicValues = map[string][]string{
	"segment.bytes":                {"1024", "4096", "65536", "134217728"},
	"segment.ms":                   {"-1", "1000", "60000"},
	"retention.local.target.bytes": {"-1", "0", "1", "8192"},
	"retention.local.target.ms":    {"-1", "0", "5000"},
	"compression.type":             {"producer", "none", "gzip", "snappy", "lz4", "zstd"},
	"flush.ms":                     {"0", "50"},
	"max.message.bytes":            {"8388608", "1500"},
	"keyhole.partitioner":          {"murmur2", "crc32", "fnv1a", "any"},

	"min.cleanable.dirty.ratio":       {"0", "0.1", "0.5", "1"},
	"delete.retention.ms":             {"0", "2000", "86400000"},
	"min.compaction.lag.ms":           {"0", "0", "5000"},
	"keyhole.remote.compression.type": {"producer", "none", "gzip", "snappy", "lz4", "zstd"},
}

// compactionProps are drawn for every new topic, so that short worlds have them too.
var compactionProps = []string{"min.cleanable.dirty.ratio", "delete.retention.ms", "min.compaction.lag.ms", "keyhole.remote.compression.type"}

func (w *world) alterTopic() {
	w.t.Helper()
	t, _ := w.pick()
	if t == nil {
		return
	}
	names := slices.Sorted(maps.Keys(topicValues))
	name := names[w.rng.IntN(len(names))]
	if _, pinned := w.cfg.topic[name]; pinned {
		return
	}
	values := topicValues[name]
	value := values[w.rng.IntN(len(values))]
	w.note("set %s=%s of %s", name, value, t.name)
	w.setTopic(t, name, value)
}

var clusterValues = map[string][]any{
	"cloud_storage_cache_size":       {0, 20 << 10, 256 << 20},
	"cloud_storage_cache_chunk_size": {16 << 10, 64 << 10, 1 << 20},
	"kv_index_max_remote_reads":      {1, 64},
	"kv_index_lookup_timeout_ms":     {1000, 5000},
	"cloud_storage_gc_grace_ms":      {5000, 60_000, 3_600_000},
}

func (w *world) alterCluster() {
	w.t.Helper()
	names := slices.Sorted(maps.Keys(clusterValues))
	name := names[w.rng.IntN(len(names))]
	if _, pinned := w.cfg.cluster[name]; pinned {
		return
	}
	values := clusterValues[name]
	value := values[w.rng.IntN(len(values))]
	w.note("set %s=%v", name, value)
	w.setCluster(name, value)
}
