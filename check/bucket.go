package check

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"keyhole/catalog"
	"keyhole/objstore"
	"keyhole/record"
)

// survey finds all topics: those of the disk and those of which the bucket has
// anything. What belongs to no topic is reported.
func (c *checker) survey(ctx context.Context) ([]*topicState, error) {
	topics := make(map[string]*topicState) // by id, which is unique
	at := func(name, id string) *topicState {
		t := topics[id]
		if t == nil {
			t = &topicState{name: name, id: id, objects: make(map[int32]int64)}
			topics[id] = t
		}
		return t
	}
	for i := range c.dir.Topics {
		local := &c.dir.Topics[i]
		t := at(local.Name, local.ID)
		t.local, t.logs = local, c.logBytes(local)
	}
	for _, d := range c.dir.Deleted {
		at(d.Name, d.ID).gone = true
	}
	if c.bucket != nil {
		owned, err := c.cluster(ctx)
		if err != nil {
			return nil, err
		}
		if c.bucket != nil {
			if err := c.list(ctx, at, owned); err != nil {
				return nil, err
			}
		}
	}
	sorted := slices.SortedFunc(maps.Values(topics), func(a, b *topicState) int {
		return strings.Compare(a.name+"/"+a.id, b.name+"/"+b.id)
	})
	if c.bucket == nil {
		return sorted, nil
	}
	for _, t := range sorted {
		if err := c.describe(ctx, t); err != nil {
			return nil, err
		}
	}
	return sorted, nil
}

// list goes over all objects of the bucket. One that has no cluster.json is
// perhaps not ours: what else is in it is then counted, not listed.
func (c *checker) list(ctx context.Context, at func(name, id string) *topicState, owned bool) error {
	topics, strangers, first := 0, 0, ""
	stranger := func(o objstore.Object, what string) {
		if owned {
			c.report(Note, Remote, o.Key, 0, "orphan of %d bytes: not an object of any %s", o.Size, what)
			return
		}
		if strangers++; strangers == 1 {
			first = o.Key
		}
	}
	err := c.bucket.List(ctx, "", func(o objstore.Object) error {
		if o.Key == catalog.ClusterKey {
			return nil
		}
		name, rest, _ := strings.Cut(o.Key, "/")
		id, rest, _ := strings.Cut(rest, "/")
		if !catalog.IsTopicFolder(name, id) {
			stranger(o, "topic")
			return nil
		}
		topics++
		t := at(name, id)
		if o.Key == catalog.TopicKey(name, id) {
			return nil
		}
		number, rest, found := strings.Cut(rest, "/")
		if n, err := strconv.ParseInt(number, 10, 32); found && err == nil && strconv.FormatInt(n, 10) == number && n >= 0 && !strings.Contains(rest, "/") {
			t.objects[int32(n)] += o.Size
			return nil
		}
		stranger(o, "partition")
		return nil
	})
	if err != nil {
		return fmt.Errorf("list the bucket: %w", err)
	}
	switch {
	case owned:
		return nil
	case topics == 0 && (c.o.DataDir == "" || c.dir.ClusterID != ""):
		return fmt.Errorf("%w in the bucket: no %s and no topic; objects of something else: %d", ErrNothing, catalog.ClusterKey, strangers)
	case topics > 0 || c.dir.ClusterID != "":
		c.report(Note, Remote, catalog.ClusterKey, 0, "missing; the next start writes it. Is this the right bucket?")
	}
	if strangers > 0 {
		c.report(Note, Remote, first, 0, "this and %d more objects belong to no topic", strangers-1)
	}
	return nil
}

// cluster compares whose the bucket is with what the disk has seen, and reports
// whether it says so at all. Another cluster's bucket is not looked into.
func (c *checker) cluster(ctx context.Context) (owned bool, err error) {
	b, _, err := c.bucket.Get(ctx, catalog.ClusterKey, catalog.MaxDocumentBytes)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return false, nil
	case errors.Is(err, objstore.ErrTooLarge):
		err = record.Corrupt(catalog.ClusterKey, 0, err)
		return true, c.corrupt(Remote, catalog.ClusterKey, err)
	case err != nil:
		return false, err
	}
	id, err := catalog.DecodeCluster(b)
	switch {
	case err != nil:
		return true, c.document(catalog.ClusterKey, err)
	case c.dir.ClusterID != "" && c.dir.ClusterID != id:
		c.report(Damage, Remote, catalog.ClusterKey, 0, "the bucket belongs to cluster %s, the data directory to %s: wrong bucket, no node will use it with this directory, and nothing else in it was looked at", id, c.dir.ClusterID)
		c.bucket = nil
	}
	return true, nil
}

// document reports a document that cannot be decoded: damaged, or of a version
// that this program does not know.
func (c *checker) document(key string, err error) error {
	if !errors.Is(err, record.ErrCorrupt) {
		err = record.Corrupt(key, 0, err)
	}
	return c.corrupt(Remote, key, err)
}

// describe reads what the bucket says about a topic.
func (c *checker) describe(ctx context.Context, t *topicState) error {
	key := catalog.TopicKey(t.name, t.id)
	b, _, err := c.bucket.Get(ctx, key, catalog.MaxDocumentBytes)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return nil
	case errors.Is(err, objstore.ErrTooLarge):
	case err != nil:
		return err
	default:
		if t.remote, err = catalog.DecodeTopic(key, b, t.name, t.id); err == nil {
			return nil
		}
	}
	t.damaged = true
	return c.document(key, err)
}

// topic checks one topic.
func (c *checker) topic(ctx context.Context, t *topicState) error {
	if t.deleted() {
		return c.deletedTopic(ctx, t)
	}
	key := catalog.TopicKey(t.name, t.id)
	switch {
	case c.bucket == nil, t.damaged:
	case t.remote == nil && t.local != nil && c.dir.ReadReplica:
		c.report(Note, Local, t.local.Dir, 0, "the bucket does not describe this topic any more; the next start of the read replica removes it here")
		t.local = nil
		return c.nameless(ctx, t)
	case t.remote == nil && t.local != nil:
		c.report(Note, Remote, key, 0, "the bucket does not have the topic's description yet; the next start writes it")
	case t.remote == nil:
		return c.nameless(ctx, t)
	case t.local == nil && c.o.DataDir != "":
		c.report(Note, Remote, key, 0, "the topic's description is in the bucket only; the next start brings it to this disk")
		c.adopt(t)
	case t.local != nil && t.local.Revision != t.remote.Revision && !c.dir.ReadReplica: // which follows
		c.report(Note, Remote, key, 0, "revision %d in the bucket, %d on disk", t.remote.Revision, t.local.Revision)
	}
	c.sum.Topics++
	count, known := t.partitions()
	for n := range count {
		c.sum.Partitions++
		if err := c.partition(ctx, t, n); err != nil {
			return fmt.Errorf("partition %d: %w", n, err)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(t.objects)) {
		switch {
		case n < count:
		case known:
			if err := c.orphans(ctx, t, n, "the topic does not have this partition"); err != nil {
				return err
			}
		default: // nothing says how many there are
			c.sum.Partitions++
			if err := c.partition(ctx, t, n); err != nil {
				return fmt.Errorf("partition %d: %w", n, err)
			}
		}
	}
	return nil
}

// adopt takes files of a topic whose own topic.json is missing or damaged for
// what the bucket says they are, as the next start does.
func (c *checker) adopt(t *topicState) {
	if dir := catalog.TopicDirectory(c.fs, c.o.DataDir, t.name, t.id); dir != "" {
		t.local = &catalog.StoredTopic{Description: t.remote, Dir: dir}
	}
}

// deletedTopic lists what is left of a topic that was deleted.
func (c *checker) deletedTopic(ctx context.Context, t *topicState) error {
	when := ""
	if t.remote != nil && t.remote.DeletedMS != 0 {
		when = " at " + time.UnixMilli(t.remote.DeletedMS).UTC().Format(time.RFC3339)
	}
	if t.local != nil {
		c.report(Note, Local, t.local.Dir, 0, "the topic was deleted%s; the next start removes it here", when)
	}
	if c.bucket == nil {
		return nil
	}
	return c.bucket.List(ctx, t.name+"/"+t.id+"/", func(o objstore.Object) error {
		if o.Key != catalog.TopicKey(t.name, t.id) {
			c.report(Note, Remote, o.Key, 0, "%d bytes of a topic that was deleted%s", o.Size, when)
		}
		return nil
	})
}

// nameless judges objects of a topic that nothing describes: leftovers, unless a
// manifest shows that there are records which nobody can find.
func (c *checker) nameless(ctx context.Context, t *topicState) error {
	for _, n := range slices.Sorted(maps.Keys(t.objects)) {
		p := c.newPart(t, n)
		if err := p.loadManifest(ctx); err != nil {
			return err
		}
		if p.bucketManifest == nil || len(p.bucketManifest.Segments) == 0 {
			if err := c.orphans(ctx, t, n, "nothing describes the topic"); err != nil {
				return err
			}
			continue
		}
		c.report(Damage, Remote, catalog.TopicKey(t.name, t.id), 0, "missing, though %s names %d segments: a node with an empty disk does not find the topic",
			p.manifestKey(), len(p.bucketManifest.Segments))
		if err := p.check(ctx); err != nil {
			return err
		}
	}
	return nil
}

// orphans reports all objects of a partition.
func (c *checker) orphans(ctx context.Context, t *topicState, n int32, why string) error {
	return c.bucket.List(ctx, c.newPart(t, n).prefix, func(o objstore.Object) error {
		c.report(Note, Remote, o.Key, 0, "orphan of %d bytes: %s", o.Size, why)
		return nil
	})
}
