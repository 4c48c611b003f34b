package catalog

import (
	"fmt"
	"math"
	"strings"
)

// Names of the topic properties.
const (
	propTopicIndex       = "redpanda.kv.index.enabled"
	propTopicRemoteRead  = "redpanda.remote.read"
	propTopicRemoteWrite = "redpanda.remote.write"
	propCleanupPolicy    = "cleanup.policy"
	propCompression      = "compression.type"
	propMaxMessageBytes  = "max.message.bytes"
	propFlush            = "flush.ms"
	propSegmentBytes     = "segment.bytes"
	propSegmentAge       = "segment.ms"
	propLocalBytes       = "retention.local.target.bytes"
	propLocalAge         = "retention.local.target.ms"
	propRetentionBytes   = "retention.bytes"
	propRetentionAge     = "retention.ms"
	propDeleteRetention  = "delete.retention.ms"
	propCompactionLag    = "min.compaction.lag.ms"
	propDirtyRatio       = "min.cleanable.dirty.ratio"
	propRemoteCodec      = "keyhole.remote.compression.type"
	propPartitioner      = "keyhole.partitioner"
	propKind             = "keyhole.kind"
	propWindowSize       = "keyhole.window.size.ms"
	propWindowRetention  = "keyhole.window.retention.ms"
)

// maxMillis is the longest time that fits a time.Duration.
const maxMillis = math.MaxInt64 / 1_000_000

// topicTable holds every topic property. All of them are live.
var topicTable = table{
	{
		Name: propTopicIndex, Kind: boolKind, Default: "false",
		Doc: "Maintains the key index of the topic. Setting it to true needs the feature `kv_index`, the cluster property `kv_index_enabled` and a `cleanup.policy` with `compact`.",
	},
	{
		Name: propTopicRemoteRead, Kind: boolKind, Default: "false", StoreDefault: "true",
		Doc: "Whether lookups of this topic may read the bucket, if the cluster allows it. The default is true where an object store is configured.",
	},
	{
		Name: propTopicRemoteWrite, Kind: boolKind, Default: "false", StoreDefault: "true",
		Doc: "Whether sealed segments are uploaded. The default is true where an object store is configured. Off: nothing is evicted either.",
	},
	{
		Name: propCleanupPolicy, Kind: listKind, Default: "compact", Values: []string{"compact", "delete"},
		Doc: "`compact` or `compact,delete`.",
	},
	{
		Name: propCompression, Kind: enumKind, Default: "producer",
		Values: []string{"producer", "uncompressed", "none", "gzip", "snappy", "lz4", "zstd"},
		Doc:    "Compression of the batches made here. `producer`: as the writer sent them, which over HTTP is uncompressed.",
	},
	{
		Name: propMaxMessageBytes, Kind: intKind, Unit: "bytes", Default: "8388608", Min: 1, Max: 64 << 20,
		Doc: "Largest record: key, value and headers, uncompressed.",
	},
	{
		Name: propFlush, Kind: intKind, Unit: "ms", Default: "0", Min: 0, Max: 3_600_000,
		Doc: "How long a write may be answered before it is synced to disk. 0: synced before the answer. Anything else may lose the writes of that time when the machine fails.",
	},
	{
		Name: propSegmentBytes, Kind: intKind, Unit: "bytes", Default: "134217728", Min: 1024, Max: 1 << 30,
		Doc: "Size at which a segment is sealed and can be uploaded.",
	},
	{
		Name: propSegmentAge, Kind: intKind, Unit: "ms", Default: "1209600000", Min: 1, Max: maxMillis, Unlimited: true,
		Doc: "Age at which a segment with records is sealed. -1: never by age.",
	},
	{
		Name: propLocalBytes, Kind: intKind, Unit: "bytes", Default: "-1", Min: 0, Max: math.MaxInt64, Unlimited: true,
		Doc: "How many bytes a partition keeps on local disk once they are uploaded, whole segments, oldest evicted first. Also for compact-only topics. -1: no limit by size.",
	},
	{
		Name: propLocalAge, Kind: intKind, Unit: "ms", Default: "86400000", Min: 0, Max: maxMillis, Unlimited: true,
		Doc: "How long an uploaded segment stays on local disk. Also for compact-only topics. -1: no limit by age.",
	},
	{
		Name: propRetentionBytes, Kind: intKind, Unit: "bytes", Default: "-1", Min: 0, Max: math.MaxInt64, Unlimited: true,
		Doc: "Size of a partition over both tiers beyond which its oldest segments are deleted, whole ones; refused without `delete` in `cleanup.policy`. -1: no limit.",
	},
	{
		Name: propRetentionAge, Kind: intKind, Unit: "ms", Default: "-1", Min: 0, Max: maxMillis, Unlimited: true,
		Doc: "Age beyond which segments are deleted, counted from when a segment was sealed, whatever the timestamps of its records; refused without `delete` in `cleanup.policy`. -1: no limit.",
	},
	{
		Name: propDeleteRetention, Kind: intKind, Unit: "ms", Default: "86400000", Min: 0, Max: maxMillis,
		Doc: "How long a tombstone that is the latest record of its key is kept, at least, counted from when its segment was sealed.",
	},
	{
		Name: propCompactionLag, Kind: intKind, Unit: "ms", Default: "0", Min: 0, Max: maxMillis,
		Doc: "How long a record is safe from compaction, at least, counted from when its segment was sealed.",
	},
	{
		Name: propDirtyRatio, Kind: ratioKind, Default: "0.5", Min: 0, Max: 1,
		Doc: "A tier is compacted once the bytes added since it was last compacted are this share of all it has; a segment before its upload, once this share of its records has been replaced.",
	},
	{
		Name: propRemoteCodec, Kind: enumKind, Default: "zstd",
		Values: []string{"producer", "none", "gzip", "snappy", "lz4", "zstd"},
		Doc:    "Compression of the batches of segments in the bucket, after small ones were merged into batches of about a chunk. `producer`: batches go as they are, neither merged nor compressed anew. Applies to what is uploaded or compacted there from now on.",
	},
	{
		Name: propPartitioner, Kind: enumKind, Default: "murmur2", Values: []string{"murmur2", "crc32", "fnv1a", "any"},
		Doc: "How a key finds its partition. `any`: lookups ask every partition, writes go by murmur2.",
	},
	{
		Name: propKind, Kind: enumKind, Default: "kv", Values: []string{"kv", "window", "session"},
		Doc: "What the keys of the topic are: plain keys, or keys of a window or session store.",
	},
	{
		Name: propWindowSize, Kind: intKind, Unit: "ms", Default: "-1", Min: 1, Max: maxMillis, Unlimited: true,
		Doc: "Size of a window of a `window` topic, which must name it.",
	},
	{
		Name: propWindowRetention, Kind: intKind, Unit: "ms", Default: "-1", Min: 1, Max: maxMillis, Unlimited: true,
		Doc: "How long windows are kept for queries. -1: as long as their records.",
	},
}

// checkTopic holds the rules that concern more than one property of a topic,
// or a switch of the cluster. They are applied to what a request changes, so
// that a topic whose index has been switched off above it can still be
// configured.
func checkTopic(next overrides, changes []change, sw *switches, bad *InvalidError) {
	v := view{topicTable, next, sw.store}
	changed := make(map[string]bool, len(changes))
	for _, c := range changes {
		changed[c.Name] = true
	}
	if !strings.Contains(v.text(propCleanupPolicy), "compact") {
		bad.add(propCleanupPolicy, "must contain compact")
		if v.flag(propTopicIndex) {
			bad.add(propTopicIndex, fmt.Sprintf("needs %s with compact", propCleanupPolicy))
		}
	}
	if changed[propTopicIndex] && v.flag(propTopicIndex) {
		if sw.features[FeatureIndex] != StateActive {
			bad.add(propTopicIndex, fmt.Sprintf("needs the feature %s to be active", FeatureIndex))
		}
		if !sw.indexEnabled {
			bad.add(propTopicIndex, fmt.Sprintf("needs the cluster property %s to be true", propIndexEnabled))
		}
	}
	// Kept but without effect, it would look like a bound on the topic's size.
	if policy := propCleanupPolicy; !strings.Contains(v.text(policy), "delete") {
		for _, name := range []string{propRetentionBytes, propRetentionAge} {
			if v.number(name) >= 0 && (changed[name] || changed[policy]) {
				bad.add(name, fmt.Sprintf("needs %s with delete", policy))
			}
		}
	}
	if v.text(propKind) == "window" && v.number(propWindowSize) < 1 {
		name := propKind
		if changed[propWindowSize] {
			name = propWindowSize
		}
		bad.add(name, fmt.Sprintf("a topic with %s=window needs %s", propKind, propWindowSize))
	}
}

// checkTopicName applies Kafka's rules: 1 to 249 of the letters a-z, A-Z,
// digits, '.', '_' and '-', not "." or "..". One more name is taken: the
// object cluster.json stands beside the topics in the bucket, and a store that
// is a folder cannot hold both a file and a folder of one name.
func checkTopicName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("must not be empty")
	case len(name) > 249:
		return fmt.Errorf("must not be longer than 249 characters")
	case name == "." || name == "..":
		return fmt.Errorf("must not be %q", name)
	case name == clusterObject:
		return fmt.Errorf("%q is reserved", name)
	}
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return fmt.Errorf("may only contain letters a-z and A-Z, digits, '.', '_' and '-'")
		}
	}
	return nil
}
