package gateway

import (
	"context"
	"time"

	"keyhole/catalog"
	"keyhole/partition"
	"keyhole/record"
)

// topicSource is what the data listener needs of the catalog.
type topicSource interface {
	// Topic finds a topic by name. catalog.ErrTopicNotFound is certain; while
	// it is not, the error is catalog.ErrBucketUnknown.
	Topic(name string) (topic, error)
	// TopicForWrite is Topic, but may make the topic.
	TopicForWrite(ctx context.Context, name string) (topic, error)
	// CheckWriter gives catalog.ErrReadReplica on a node that takes no writes.
	CheckWriter() error
	// LookupTimeout is the time a lookup may take; it may change at any time.
	LookupTimeout() time.Duration
}

// topic is what a handler needs of a topic.
type topic interface {
	// PartitionFor is the partition that a record with this key is written to.
	PartitionFor(key []byte) int32
	// Any reports that readers cannot know the partition from the key.
	Any() bool
	// MaxRecordBytes bounds key, value and headers of one record, uncompressed.
	MaxRecordBytes() int64
	// Partition gives a partition that is hosted here, else
	// catalog.ErrPartitionNotFound or partition.ErrNotHosted.
	Partition(n int32) (keyLog, error)
	// Hosted gives all partitions hosted here, by number.
	Hosted() []keyLog
	// ETag is the strong entity tag, with its quotes, of the record of an offset
	// and an epoch.
	ETag(p int32, epoch, offset int64) string
}

// keyLog is what a handler needs of a partition. All methods may be called in
// parallel; the key is not kept, the value of a result is the query's buffer.
type keyLog interface {
	ID() int32
	Lookup(ctx context.Context, key []byte, q partition.Query) (partition.Result, error)
	Validate(rec *record.Record) error
	Append(ctx context.Context, recs []record.Record) (base int64, err error)
}

// catalogTopics lets a catalog and its topics be used through the interfaces
// above. Both adapters are one pointer, so that a lookup allocates nothing here.
type catalogTopics struct{ *catalog.Catalog }

func (c catalogTopics) Topic(name string) (topic, error) {
	t, err := c.Catalog.Topic(name)
	if err != nil {
		return nil, err
	}
	return catalogTopic{t}, nil
}

func (c catalogTopics) TopicForWrite(ctx context.Context, name string) (topic, error) {
	t, err := c.Catalog.TopicForWrite(ctx, name)
	if err != nil {
		return nil, err
	}
	return catalogTopic{t}, nil
}

type catalogTopic struct{ *catalog.Topic }

func (t catalogTopic) Partition(n int32) (keyLog, error) {
	p, err := t.Topic.Partition(n)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (t catalogTopic) Hosted() []keyLog {
	hosted := t.Topic.Hosted()
	logs := make([]keyLog, len(hosted))
	for i, p := range hosted {
		logs[i] = p
	}
	return logs
}
