package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"
)

// closePatience bounds how long a deletion waits for the topic's partitions.
const closePatience = 30 * time.Second

// openPatience bounds how long a creation waits for the topic's partitions.
const openPatience = 10 * time.Second

// CreateTopic makes a topic: its description is durable on this disk before it
// is opened, and in the bucket before anything else of it. If the bucket is away
// the topic is made all the same; its segments wait for the description, which
// is uploaded in the background. While the topics of the bucket are not known
// no topic is made (ErrBucketUnknown), because it may exist there already.
// It returns once the partitions have opened, so that the next write finds them
// ready, or after openPatience.
// Errors: *InvalidError, ErrTopicExists, ErrBucketUnknown, ErrReadReplica,
// ErrClosed.
func (c *Catalog) CreateTopic(ctx context.Context, name string, partitions int32, configs map[string]string) (*Topic, error) {
	t, uploaded, err := c.create(name, partitions, configs)
	if err != nil {
		return nil, err
	}
	c.keeper.await(ctx, uploaded)
	t.awaitOpened(ctx)
	return t, nil
}

func (c *Catalog) create(name string, partitions int32, configs map[string]string) (*Topic, <-chan struct{}, error) {
	if err := c.CheckWriter(); err != nil {
		return nil, nil, err
	}
	bad := &InvalidError{}
	if err := checkTopicName(name); err != nil {
		bad.add("name", err.Error())
	}
	if partitions < 1 || partitions > maxPartitions {
		bad.add("partitions", fmt.Sprintf("must be from 1 to %d", maxPartitions))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed.Load() {
		return nil, nil, ErrClosed
	}
	sw := c.switches.Load()
	properties, changes, err := topicTable.edit(nil, asAny(configs), nil, sw.store)
	var invalid *InvalidError
	switch {
	case errors.As(err, &invalid):
		for name, message := range invalid.Properties {
			bad.add(name, message)
		}
	case err != nil:
		return nil, nil, err
	default:
		checkTopic(properties, changes, sw, bad)
	}
	if err := bad.orNil(); err != nil {
		return nil, nil, err
	}
	s := c.snap.Load()
	if s.byName[name] != nil {
		return nil, nil, ErrTopicExists
	}
	if err := c.missing(s, name); !errors.Is(err, ErrTopicNotFound) {
		return nil, nil, err
	}
	data := &topicData{
		Name: name, ID: newID(), Partitions: partitions,
		CreatedMS: c.now().UnixMilli(), Revision: 1, Properties: properties,
	}
	if err := c.disk.writeTopic(data); err != nil {
		return nil, nil, err
	}
	t, err := c.openLocked(data, true)
	if err != nil {
		return nil, nil, err
	}
	c.publishLocked(func(s *snapshot) { s.byName[name] = t })
	c.o.Logger.Info("topic created", "topic", name, "id", data.ID, "partitions", partitions, "properties", map[string]string(properties))
	return t, c.keeper.add(data, t.gate), nil
}

func asAny(m map[string]string) map[string]any {
	out := make(map[string]any, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}

// DeleteTopic deletes a topic. The deletion is durable on this disk first; then
// lookups give ErrTopicNotFound, the partitions are closed, and their local
// files removed. In the bucket the topic is marked as deleted, now or as soon as
// the bucket can be reached, also after a restart; its objects stay for
// cloud_storage_gc_grace_ms, then the sweeper deletes them. Errors:
// ErrTopicNotFound, ErrBucketUnknown, ErrReadReplica, ErrTakenOver, ErrClosed, and
// those of the disk.
func (c *Catalog) DeleteTopic(ctx context.Context, name string) error {
	if err := c.CheckWriter(); err != nil {
		return err
	}
	if t := c.snap.Load().byName[name]; t != nil && !t.isGone() {
		askOwner(ctx, t)
	}
	t, err := c.beginDeletion(c.now().UnixMilli(), func(s *snapshot) (*Topic, error) {
		if t := s.byName[name]; t != nil {
			if t.isGone() {
				return t, nil // whoever had it has it no more
			}
			return t, t.changeable()
		}
		return nil, c.missing(s, name)
	})
	if err != nil {
		return err
	}
	defer c.wg.Done()
	// The client may leave; a deletion that has begun goes on.
	marked, err := c.finishDeletion(context.WithoutCancel(ctx), t)
	if err != nil {
		return err
	}
	c.keeper.await(ctx, marked)
	return nil
}

// beginDeletion makes the deletion of the picked topic durable and takes it out
// of the snapshot. at is when it was deleted, in Unix milliseconds. If it gives a
// topic, the caller calls finishDeletion, then wg.Done.
func (c *Catalog) beginDeletion(at int64, pick func(*snapshot) (*Topic, error)) (*Topic, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed.Load() {
		return nil, ErrClosed
	}
	t, err := pick(c.snap.Load())
	if t == nil || err != nil {
		return nil, err
	}
	mark := *t.config.Load().data
	mark.Revision++
	mark.DeletedMS = at
	if err := c.disk.writeDeleted(&mark); err != nil {
		return nil, err
	}
	c.publishLocked(func(s *snapshot) { delete(s.byName, t.name) })
	c.gone[t.id] = true
	c.keeper.drop(t.id)
	config := *t.config.Load()
	config.data = &mark
	t.config.Store(&config)
	c.wg.Add(1)
	c.o.Logger.Info("topic deleted", "topic", t.name, "id", t.id)
	return t, nil
}

// finishDeletion closes the partitions of a topic that beginDeletion has taken
// out and removes its files. What fails here is done at the next start.
func (c *Catalog) finishDeletion(ctx context.Context, t *Topic) (marked <-chan struct{}, err error) {
	closing, cancel := context.WithTimeout(ctx, closePatience)
	defer cancel()
	if err := closePartitions(closing, t); err != nil {
		// Files that a partition may still write to are not removed.
		return nil, fmt.Errorf("delete topic %s: %w", t.name, err)
	}
	var errs []error
	for _, p := range t.partitions {
		errs = append(errs, p.Destroy())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	errs = append(errs, c.disk.removeTopic(t.name, t.id))
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("delete topic %s: %w", t.name, err)
	}
	data := t.config.Load().data
	switch {
	case !c.store():
		return nil, c.settleDeletionLocked(data)
	case t.isGone():
		return nil, c.disk.forgetDeleted(data.ID) // there is nothing to be marked
	}
	return c.keeper.add(data, nil), nil
}

// settleDeletionLocked goes on with a deletion whose local files are gone: it is
// finished where no bucket can have the topic, else the keeper marks it there,
// and the sweeper ends it.
// Without a store, a disk that once had one keeps the deletion for the day when
// it has it again.
func (c *Catalog) settleDeletionLocked(t *topicData) error {
	switch {
	case c.store():
		c.keeper.add(t, nil)
	case c.node.ClusterID == "":
		return c.disk.forgetDeleted(t.ID)
	}
	return nil
}

// AlterTopic sets and removes properties of a topic; a removed one is back at
// its default. Everything is checked, then durable on this disk, then in force
// for all partitions; nothing is applied if any of it is refused. Errors:
// *InvalidError, those of Topic, ErrReadReplica, ErrTakenOver, ErrTopicGone, and
// those of the disk.
func (c *Catalog) AlterTopic(ctx context.Context, name string, upsert map[string]string, remove []string) error {
	if t := c.snap.Load().byName[name]; t != nil && c.CheckWriter() == nil {
		askOwner(ctx, t)
	}
	uploaded, err := c.alter(name, upsert, remove)
	if err != nil {
		return err
	}
	c.keeper.await(ctx, uploaded)
	return nil
}

func (c *Catalog) alter(name string, upsert map[string]string, remove []string) (<-chan struct{}, error) {
	if err := c.CheckWriter(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed.Load() {
		return nil, ErrClosed
	}
	s := c.snap.Load()
	t := s.byName[name]
	if t == nil {
		return nil, c.missing(s, name)
	}
	if t.isGone() {
		return nil, ErrTopicGone
	}
	if err := t.changeable(); err != nil {
		return nil, err
	}
	sw := c.switches.Load()
	old := t.config.Load().data
	properties, changes, err := topicTable.edit(old.Properties, asAny(upsert), remove, sw.store)
	if err != nil {
		return nil, err
	}
	bad := &InvalidError{}
	checkTopic(properties, changes, sw, bad)
	if err := bad.orNil(); err != nil {
		return nil, err
	}
	if maps.Equal(old.Properties, properties) {
		return nil, nil
	}
	next := old.with(properties)
	config, err := newTopicConfig(next, sw.store)
	if err != nil {
		return nil, err
	}
	if err := c.disk.writeTopic(next); err != nil {
		return nil, err
	}
	t.config.Store(config)
	t.configure(sw)
	for _, ch := range changes {
		c.o.Logger.Info("topic property changed", "topic", name, "property", ch.Name, "old", ch.Old, "new", ch.New)
	}
	return c.keeper.add(next, t.gate), nil
}
