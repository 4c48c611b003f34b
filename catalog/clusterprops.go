package catalog

import (
	"fmt"
	"math"
	"time"
)

// Names of the cluster properties.
const (
	propIndexEnabled  = "kv_index_enabled"
	propRemoteRead    = "kv_index_remote_read_enabled"
	propLookupTimeout = "kv_index_lookup_timeout_ms"
	propRemoteReads   = "kv_index_max_remote_reads"
	propCacheSize     = "cloud_storage_cache_size"
	propChunkSize     = "cloud_storage_cache_chunk_size"
	propGCGrace       = "cloud_storage_gc_grace_ms"
	propReplicaPace   = "read_replica_refresh_ms"
)

// clusterTable holds every cluster property. All of them are live.
var clusterTable = table{
	{
		Name: propIndexEnabled, Kind: boolKind, Default: "false",
		Doc: "Switch over the indexes of all topics. Off: lookups answer 404 `topic not indexed`; the topics keep their own setting, and their indexes go on being maintained.",
	},
	{
		Name: propRemoteRead, Kind: boolKind, Default: "false",
		Doc: "Whether a lookup below the local start may read the bucket. Off: such keys answer 404 `record only available in tiered storage`, also when the chunk is in the cache, and the bucket sees no request.",
	},
	{
		Name: propLookupTimeout, Kind: intKind, Unit: "ms", Default: "5000", Min: 10, Max: 600_000,
		Doc: "Deadline of a lookup, from its arrival, store reads and their repetitions included.",
	},
	{
		Name: propRemoteReads, Kind: intKind, Default: "64", Min: 1, Max: 65536,
		Doc: "How many store reads may run at once for lookups. Beyond it a lookup answers 503.",
	},
	{
		Name: propCacheSize, Kind: intKind, Unit: "bytes", Default: "268435456", Min: 0, Max: 1 << 40,
		Doc: "Memory for chunks read from the bucket. 0 keeps none.",
	},
	{
		Name: propChunkSize, Kind: intKind, Unit: "bytes", Default: "32768", Min: 16 << 10, Max: 8 << 20,
		Doc: "Target size of a chunk, the unit of a store read. Applies to segments uploaded from now on; uploaded ones keep their chunks.",
	},
	{
		Name: propGCGrace, Kind: intKind, Unit: "ms", Default: "3600000", Min: 1000, Max: math.MaxInt64 / int64(time.Millisecond),
		Doc: "How long an object that is no longer needed (of a deleted topic, or replaced) stays in the bucket. Not shorter than the lookup deadline, because a lookup may still be reading it; in practice a minute at least.",
	},
	{
		Name: propReplicaPace, Kind: intKind, Unit: "ms", Default: "1000", Min: 10, Max: 3_600_000,
		Doc: "How often a read replica asks the bucket for what is new in a partition. Without effect elsewhere.",
	},
}

// checkCluster holds the rules that concern more than one cluster property.
func checkCluster(o overrides, bad *InvalidError) {
	v := view{clusterTable, o, false}
	if grace, deadline := v.number(propGCGrace), v.number(propLookupTimeout); grace < deadline {
		// Whoever reads it knows which property was refused.
		if _, set := o[propGCGrace]; set {
			bad.add(propGCGrace, fmt.Sprintf("%d must not be shorter than %s (%d)", grace, propLookupTimeout, deadline))
		} else {
			bad.add(propLookupTimeout, fmt.Sprintf("%d must not be longer than %s (%d)", deadline, propGCGrace, grace))
		}
	}
}

// FeatureIndex is the feature flag in front of all topic indexes.
const FeatureIndex = "kv_index"

// States of a feature.
const (
	StateActive   = "active"
	StateDisabled = "disabled"
)

// featureNames lists the features there are; all begin as disabled.
var featureNames = []string{FeatureIndex}

// Feature is a feature flag with its state, in the form of the features route.
type Feature struct {
	Name  string `json:"name"`
	State string `json:"state"`
}

// PropertySchema describes a property for the schema route.
type PropertySchema struct {
	Type        string   `json:"type"`
	Unit        string   `json:"unit,omitempty"`
	Default     any      `json:"default"`
	Minimum     *int64   `json:"minimum,omitempty"`
	Maximum     *int64   `json:"maximum,omitempty"`
	Unlimited   bool     `json:"minus_one_is_unlimited,omitempty"`
	Values      []string `json:"values,omitempty"`
	Description string   `json:"description"`
	// NeedsRestart is false for every property; clients of the systems whose
	// names these are look for it.
	NeedsRestart bool `json:"needs_restart"`
}

func (t table) schema(store bool) map[string]PropertySchema {
	out := make(map[string]PropertySchema, len(t))
	for i := range t {
		p := &t[i]
		s := PropertySchema{
			Type: p.Kind.String(), Unit: p.Unit, Default: p.typed(p.defaultValue(store)),
			Unlimited: p.Unlimited, Values: p.Values, Description: p.Doc,
		}
		if p.Kind == intKind || p.Kind == ratioKind {
			s.Minimum, s.Maximum = &p.Min, &p.Max
		}
		out[p.Name] = s
	}
	return out
}
