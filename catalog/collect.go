package catalog

import (
	"context"
	"errors"
	"time"

	"keyhole/objstore"
	"keyhole/partition"
	"keyhole/tiered"
)

// whyDeletedTopic is the reason that Collect gives for objects of deleted topics.
const whyDeletedTopic = "deleted topic"

// CollectOptions say what Collect looks at.
type CollectOptions struct {
	Topic     string // empty: all
	Partition int32  // negative: all, and deleted topics too; else Topic must be given
	DryRun    bool   // only say what would be deleted
	// Listed bounds the objects in the result; the others are counted only.
	Listed int
}

// Collection says what Collect has deleted, or would have.
type Collection struct {
	Objects []tiered.Garbage
	Count   int64
	Bytes   int64 // of all of them, as far as their sizes are known
	// Failed are partitions whose bucket prefix could not be cleaned up, for
	// reasons of their own.
	Failed []CollectFailure
}

// CollectFailure is a partition that Collect has left out.
type CollectFailure struct {
	Topic     string
	Partition int32
	Err       error
}

func (r *Collection) add(listed int, g tiered.Garbage) {
	r.Count++
	r.Bytes += g.Size
	if len(r.Objects) < listed {
		r.Objects = append(r.Objects, g)
	}
}

// Collect deletes what nobody needs any more and is past its grace period: what
// the partitions of this node find in their prefixes, and the prefixes of deleted
// topics, also of those that another node deleted. Partitions that another node
// has taken over are its business and left out, unless one is asked for. It
// answers when done. An error of the bucket as a whole, or of the one partition
// that was asked for, ends it; what was deleted by then stays deleted. Errors:
// ErrReadReplica, ErrTopicNotFound and ErrPartitionNotFound, ErrBucketUnknown,
// partition.ErrNoStore, those of partitions, of the store and of ctx.
func (c *Catalog) Collect(ctx context.Context, o CollectOptions) (*Collection, error) {
	if err := c.CheckWriter(); err != nil {
		return nil, err
	}
	if !c.store() {
		return nil, partition.ErrNoStore
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)() // Close does not wait for it
	out := &Collection{}
	if o.Partition >= 0 {
		return out, c.collectOne(ctx, o, out)
	}
	marks, err := c.deletedTopics(ctx, o.Topic)
	if err != nil {
		return nil, err
	}
	topics := c.Topics()
	if o.Topic != "" {
		t, err := c.Topic(o.Topic)
		switch {
		case err == nil:
			topics = []*Topic{t}
		case errors.Is(err, ErrTopicNotFound) && len(marks) > 0:
			topics = nil
		default:
			return nil, err
		}
	}
	for _, t := range topics {
		for _, p := range t.partitions {
			if err := c.collectPartition(ctx, t, p, o, out); err != nil {
				return nil, err
			}
		}
	}
	for _, mark := range marks {
		if err := c.collectDeleted(ctx, mark, o, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// collectOne is Collect for one partition.
func (c *Catalog) collectOne(ctx context.Context, o CollectOptions, out *Collection) error {
	t, err := c.Topic(o.Topic)
	if err != nil {
		return err
	}
	p, err := t.Partition(o.Partition)
	if err != nil {
		return err
	}
	got, err := p.Collect(ctx, o.DryRun)
	for _, g := range got.Objects {
		out.add(o.Listed, g)
	}
	return err
}

// collectPartition gives only errors that concern all partitions.
func (c *Catalog) collectPartition(ctx context.Context, t *Topic, p *partition.Partition, o CollectOptions, out *Collection) error {
	got, err := p.Collect(ctx, o.DryRun)
	for _, g := range got.Objects {
		out.add(o.Listed, g)
	}
	switch {
	case err == nil, errors.Is(err, partition.ErrNotHosted):
		return nil
	case ctx.Err() != nil, storeWide(err):
		return err
	}
	out.Failed = append(out.Failed, CollectFailure{t.name, p.ID(), err})
	return nil
}

// storeWide reports whether an error is about the store and not about one object
// in it.
func storeWide(err error) bool {
	for _, class := range []error{objstore.ErrUnavailable, objstore.ErrDenied, objstore.ErrMisconfigured, objstore.ErrClosed} {
		if errors.Is(err, class) {
			return true
		}
	}
	return false
}

// deletedTopics gives the deleted topics of a name (empty: all) that this node
// knows of or finds in the bucket now.
func (c *Catalog) deletedTopics(ctx context.Context, name string) ([]*topicData, error) {
	select {
	case <-c.remote.verified:
	default:
		return nil, c.remote.unknown() // the bucket may be a stranger's
	}
	found, err := c.discover(ctx, name)
	if err != nil {
		return nil, err
	}
	marks := make(map[string]*topicData)
	for _, mark := range c.sweeper.all() {
		if name == "" || mark.Name == name {
			marks[mark.ID] = mark
		}
	}
	s := c.snap.Load()
	for _, f := range found {
		if f.data == nil || f.data.DeletedMS == 0 {
			continue
		}
		if t := s.byName[f.name]; t != nil && t.id == f.id {
			continue // it is still open here, until the next start
		}
		marks[f.id] = f.data
	}
	return sortedMarks(marks), nil
}

// collectDeleted is Collect for the prefix of a deleted topic. What it does not
// come to the end of is left to the sweeper, but not by a dry run, which must not
// be what a deletion follows from.
func (c *Catalog) collectDeleted(ctx context.Context, mark *topicData, o CollectOptions, out *Collection) error {
	if !c.sweepable(mark) {
		if !o.DryRun {
			c.sweeper.add(mark)
		}
		return nil
	}
	age := c.sinceDeletion(mark).Truncate(time.Millisecond)
	seen := func(obj objstore.Object) {
		out.add(o.Listed, tiered.Garbage{Key: obj.Key, Size: obj.Size, Age: age, Why: whyDeletedTopic})
	}
	if !o.DryRun {
		err := c.sweepTopic(ctx, mark, seen)
		if err != nil {
			c.sweeper.add(mark)
		}
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	return c.o.Bucket.List(ctx, topicPrefix(mark.Name, mark.ID), func(obj objstore.Object) error {
		seen(obj)
		return nil
	})
}
