package catalog

import (
	"maps"
	"strings"
	"time"

	"keyhole/partition"
	"keyhole/record"
)

// switches is one immutable state of the cluster's properties and features.
type switches struct {
	over     overrides
	features map[string]string // every feature there is
	version  int64             // config_version
	store    bool              // an object store is configured
	replica  bool              // this node writes nothing into it

	indexEnabled  bool
	remoteRead    bool
	chunkBytes    int64
	cacheBytes    int64
	remoteReads   int64
	lookupTimeout time.Duration
	grace         time.Duration // before unneeded objects are deleted
	replicaPace   time.Duration // of a read replica's looks at the bucket
}

func newSwitches(data *configData, store bool) *switches {
	v := view{clusterTable, data.Properties, store}
	s := &switches{
		over:          maps.Clone(data.Properties),
		features:      make(map[string]string, len(featureNames)),
		version:       data.Version,
		store:         store,
		indexEnabled:  v.flag(propIndexEnabled),
		remoteRead:    v.flag(propRemoteRead),
		chunkBytes:    v.number(propChunkSize),
		cacheBytes:    v.number(propCacheSize),
		remoteReads:   v.number(propRemoteReads),
		lookupTimeout: millis(v.number(propLookupTimeout)),
		grace:         millis(v.number(propGCGrace)),
		replicaPace:   millis(v.number(propReplicaPace)),
	}
	for _, name := range featureNames {
		s.features[name] = StateDisabled
	}
	maps.Copy(s.features, data.Features)
	return s
}

// newSwitches is newSwitches for this node.
func (c *Catalog) newSwitches(data *configData) *switches {
	s := newSwitches(data, c.store())
	s.replica = c.o.ReadReplica
	return s
}

// data is the persistent form of s.
func (s *switches) data() *configData {
	return &configData{Version: s.version, Properties: maps.Clone(s.over), Features: maps.Clone(s.features)}
}

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// unlimitedMillis keeps -1, which means "no limit", negative.
func unlimitedMillis(n int64) time.Duration {
	if n < 0 {
		return -1
	}
	return millis(n)
}

// partitionSettings is the one place where a topic's properties meet the
// cluster's switches and features. docs/configuration.md publishes the outcome
// as a table that a test holds against this function.
func partitionSettings(c *topicConfig, sw *switches) partition.Settings {
	v := view{topicTable, c.data.Properties, sw.store}
	maintained := v.flag(propTopicIndex)
	s := partition.Settings{
		IndexMaintained:  maintained,
		IndexActive:      maintained && sw.indexEnabled && sw.features[FeatureIndex] == StateActive,
		RemoteRead:       sw.store && sw.remoteRead && v.flag(propTopicRemoteRead),
		RemoteWrite:      sw.store && !sw.replica && v.flag(propTopicRemoteWrite),
		SegmentBytes:     v.number(propSegmentBytes),
		SegmentAge:       max(0, unlimitedMillis(v.number(propSegmentAge))),
		LocalTargetBytes: v.number(propLocalBytes),
		LocalTargetAge:   unlimitedMillis(v.number(propLocalAge)),
		FlushInterval:    millis(v.number(propFlush)),
		MaxRecordBytes:   c.max,
		Codec:            codecOf(v.text(propCompression)),
		KeepCodec:        v.text(propCompression) == "producer",
		ChunkBytes:       sw.chunkBytes,
		RemoteCodec:      codecOf(v.text(propRemoteCodec)),
		RemoteMerge:      v.text(propRemoteCodec) != "producer",
		DirtyRatio:       v.ratio(propDirtyRatio),
		CompactionLag:    millis(v.number(propCompactionLag)),
		DeleteRetention:  millis(v.number(propDeleteRetention)),
		RetentionBytes:   -1,
		RetentionAge:     -1,
		GCGrace:          sw.grace,
		ReplicaInterval:  sw.replicaPace,
	}
	// A limit may be kept from before the policy lost "delete".
	if strings.Contains(v.text(propCleanupPolicy), "delete") {
		s.RetentionBytes = v.number(propRetentionBytes)
		s.RetentionAge = unlimitedMillis(v.number(propRetentionAge))
	}
	return s
}

// codecOf maps compression.type and its like. What is written over HTTP arrives
// without compression, so that is what "producer" keeps.
func codecOf(compression string) record.Codec {
	switch compression {
	case "gzip":
		return record.Gzip
	case "snappy":
		return record.Snappy
	case "lz4":
		return record.LZ4
	case "zstd":
		return record.Zstd
	default:
		return record.None
	}
}
