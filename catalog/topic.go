package catalog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"keyhole/objstore"
	"keyhole/partition"
	"keyhole/partitioner"
)

// Topic is a topic of this node. It keeps its identity for its whole life; a
// topic made anew under the same name is another Topic. All methods may be
// called in parallel.
type Topic struct {
	name       string
	id         string
	etagPrefix string // `"<id>-`
	partitions []*partition.Partition
	gate       *gate // nil without a store
	stored     bool  // storedFile is there; guarded by the catalog's mu
	config     atomic.Pointer[topicConfig]
}

// topicConfig is one immutable state of a topic's properties.
type topicConfig struct {
	data  *topicData
	store bool
	any   bool
	place func(key []byte, n int32) int32
	max   int64
}

func newTopicConfig(data *topicData, store bool) (*topicConfig, error) {
	v := view{topicTable, data.Properties, store}
	c := &topicConfig{data: data, store: store, max: v.number(propMaxMessageBytes)}
	name := v.text(propPartitioner)
	if name == "any" {
		// Lookups ask everywhere, but a write needs one place.
		c.any, name = true, "murmur2"
	}
	var err error
	if c.place, err = partitioner.For(name); err != nil {
		return nil, fmt.Errorf("topic %s: %w", data.Name, err)
	}
	return c, nil
}

// ErrPartitionNotFound says that the topic does not have that many partitions.
var ErrPartitionNotFound = errors.New("partition not found")

// Name is the topic's name.
func (t *Topic) Name() string { return t.name }

// ID is the topic's id, 32 hex digits.
func (t *Topic) ID() string { return t.id }

// NumPartitions is how many partitions the topic has, hosted here or not.
func (t *Topic) NumPartitions() int32 { return int32(len(t.partitions)) }

// PartitionFor is the partition that a key is written to, by the property
// keyhole.partitioner.
func (t *Topic) PartitionFor(key []byte) int32 {
	return t.config.Load().place(key, int32(len(t.partitions)))
}

// Any reports whether lookups ask every partition instead of PartitionFor.
func (t *Topic) Any() bool { return t.config.Load().any }

// MaxRecordBytes is the property max.message.bytes.
func (t *Topic) MaxRecordBytes() int64 { return t.config.Load().max }

// Partition gives partition n, or ErrPartitionNotFound. That a newer writer has
// taken the partition over is said by its methods (partition.ErrNotHosted).
func (t *Topic) Partition(n int32) (*partition.Partition, error) {
	if n < 0 || int(n) >= len(t.partitions) {
		return nil, ErrPartitionNotFound
	}
	return t.partitions[n], nil
}

// Hosted gives the partitions that live on this node, by number. The slice must
// not be modified.
func (t *Topic) Hosted() []*partition.Partition { return t.partitions }

// ConfigValue is the effective value of a topic property.
type ConfigValue struct {
	Value   string `json:"value"`
	Default bool   `json:"default"` // nobody has set it
}

// Config gives every property of the topic.
func (t *Topic) Config() map[string]ConfigValue {
	c := t.config.Load()
	out := make(map[string]ConfigValue, len(topicTable))
	for i := range topicTable {
		p := &topicTable[i]
		_, set := c.data.Properties[p.Name]
		out[p.Name] = ConfigValue{Value: c.data.Properties.get(p, c.store), Default: !set}
	}
	return out
}

// ETag is the strong entity tag of the record of an offset and an epoch, quotes
// included. No other record ever has it: the topic id tells a re-created topic
// from the one before, the epoch an offset that was given again.
func (t *Topic) ETag(n int32, epoch, offset int64) string {
	b := make([]byte, 0, len(t.etagPrefix)+48)
	b = append(b, t.etagPrefix...)
	b = strconv.AppendInt(b, int64(n), 10)
	b = append(b, '-')
	b = strconv.AppendInt(b, epoch, 10)
	b = append(b, '-')
	b = strconv.AppendInt(b, offset, 10)
	b = append(b, '"')
	return string(b)
}

// openLocked makes the Topic of data and starts its partitions. fresh says that the
// topic was created just now, so that the bucket cannot hold anything of it.
// The caller publishes it.
func (c *Catalog) openLocked(data *topicData, fresh bool) (*Topic, error) {
	config, err := newTopicConfig(data, c.store())
	if err != nil {
		return nil, err
	}
	t := &Topic{name: data.Name, id: data.ID, etagPrefix: `"` + data.ID + "-"}
	t.config.Store(config)
	var bucket objstore.Bucket
	if c.store() {
		t.gate = newGate(c.remote, c.storeTrouble)
		bucket = &gatedBucket{Bucket: c.o.Bucket, gate: t.gate}
		if c.o.ReadReplica {
			t.gate.open() // the bucket itself refuses writes, and at once
		}
	}
	// A replica never writes, so nothing is known of conditions and nothing asked.
	conditional := c.o.ReadReplica || c.node.Conditional != nil && *c.node.Conditional
	c.conditional = c.conditional || conditional
	settings := partitionSettings(config, c.switches.Load())
	t.partitions = make([]*partition.Partition, data.Partitions)
	for n := range t.partitions {
		t.partitions[n] = partition.Open(partition.Options{
			FS:          c.disk.fs,
			Dir:         c.disk.fs.PathJoin(c.disk.topicDir(data.Name, data.ID), strconv.Itoa(n)),
			Topic:       data.Name,
			TopicID:     data.ID,
			Partition:   int32(n),
			Writer:      c.node.NodeID,
			New:         fresh,
			Replica:     c.o.ReadReplica,
			Bucket:      bucket,
			Conditional: conditional,
			Tiers:       c.tiers,
			Indexes:     c.indexes,
			Metrics:     c.metrics,
			Logger:      c.o.Logger,
			Settings:    settings,
			Space:       c.space,
			Start:       c.start,
			Compactions: c.compactions,
			Judgements:  c.judgements,
			Inflations:  c.inflations,
			Now:         c.now,
		})
	}
	return t, nil
}

// awaitOpened waits until all partitions are through with their recovery, for
// openPatience at most.
func (t *Topic) awaitOpened(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, openPatience)
	defer cancel()
	for _, p := range t.partitions {
		select {
		case <-p.Opened():
		case <-ctx.Done():
			return
		}
	}
}

// configure gives the partitions the settings that follow from the topic's
// properties and the cluster's switches as they are now.
func (t *Topic) configure(sw *switches) {
	settings := partitionSettings(t.config.Load(), sw)
	for _, p := range t.partitions {
		p.Configure(settings)
	}
}
