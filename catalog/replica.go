package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"keyhole/objstore"
)

// A read replica has the topics of the bucket and nothing of its own: no log, no
// claim, no description that it would write. Its disk holds indexes and copies
// that can be thrown away. In place of the writer's attacher, keeper, watcher and
// sweeper it has one follower:
//
//	cluster.json ─► verified ─► topic.json of every topic ─► topics here ─┐
//	     ▲                                                                │
//	     └──────────────────────── replicaInterval ◄──────────────────────┘
//
// Nothing of it can write into the bucket: it is wrapped by objstore.ReadOnly.

// ErrReadReplica refuses to change topics or the bucket on a read replica.
var ErrReadReplica = errors.New("this node is a read replica")

// errNoWriter says that nobody has used the bucket yet.
var errNoWriter = errors.New("bucket has no cluster.json yet: no writer has used it")

// replicaInterval is how often a read replica looks for new, changed and deleted
// topics; less often if read_replica_refresh_ms is longer. What is new within a
// topic its partitions find out by themselves.
const replicaInterval = 10 * time.Second

// wrongRole says why a data directory is refused; the roles keep other things in
// it, and a writer must not take an index of no log for its own.
func wrongRole(replica bool) error {
	if replica {
		return errors.New("it belongs to a node that writes: a read replica needs a data directory of its own")
	}
	return errors.New("it belongs to a read replica, which holds no log: start it as a read replica, or give the writer a data directory of its own")
}

// CheckWriter gives ErrReadReplica on a read replica, where only switches can be
// changed, else nil.
func (c *Catalog) CheckWriter() error {
	if c.o.ReadReplica {
		return ErrReadReplica
	}
	return nil
}

func (c *Catalog) wakeFollower() {
	select {
	case c.follow <- struct{}{}:
	default:
	}
}

// followTopics is the follower's goroutine.
func (c *Catalog) followTopics() {
	f := follower{c: c, seen: make(map[string]seenTopic)}
	defer f.closeDropped(context.WithoutCancel(c.ctx))
	var tries bucketTries
	for {
		err := f.look(c.ctx)
		c.remote.set(err)
		if c.ctx.Err() != nil {
			return
		}
		if err != nil {
			// Without a look at the bucket, nobody can say that a topic is not there.
			c.setKnown(false)
			c.pause(tries.failed(c, err), c.follow)
			continue
		}
		tries = bucketTries{}
		c.pause(jitter(max(replicaInterval, c.switches.Load().replicaPace)), c.follow)
	}
}

func (c *Catalog) setKnown(known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.snap.Load().known != known {
		c.publishLocked(func(s *snapshot) { s.known = known })
	}
}

// follower remembers what it has read, so that a look at a bucket that has not
// changed costs listings and requests without a body.
type follower struct {
	c        *Catalog
	verified bool
	cluster  string // ETag of cluster.json; empty: not read yet
	seen     map[string]seenTopic
	// dropped are topics that are not served any more and not closed yet. Their
	// files stay until they are.
	dropped []*Topic
	tidy    bool // the disk has been looked through for what is left of dropped ones
}

// seenTopic is a topic.json as it was read.
type seenTopic struct {
	etag string
	data *topicData
}

func (f *follower) look(ctx context.Context) error {
	if err := f.verify(ctx); err != nil {
		return err
	}
	if !f.verified {
		f.verified = true
		close(f.c.remote.verified)
	}
	found, err := f.discover(ctx)
	if err != nil {
		return err
	}
	if err := f.mirror(found); err != nil {
		return err
	}
	// What stays behind costs nobody an answer.
	if err := f.finishDropping(ctx); err != nil && ctx.Err() == nil {
		f.c.o.Logger.Warn("topic that the bucket does not have any more is still here; will try again", "err", err)
	}
	return nil
}

// verify compares the bucket's cluster.json with the one this directory belongs
// to, each time: an emptied bucket, or another one under the same name, must not
// pass for one whose topics were deleted.
func (f *follower) verify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, getPatience)
	defer cancel()
	b, etag, err := f.c.getIfChanged(ctx, clusterObject, f.cluster)
	switch {
	case errors.Is(err, objstore.ErrNotModified):
		return nil
	case errors.Is(err, objstore.ErrNotFound):
		f.cluster = ""
		return f.c.withoutCluster()
	case err != nil:
		return fmt.Errorf("read %s of the bucket: %w", clusterObject, err)
	}
	id, err := DecodeCluster(b)
	if err != nil {
		return err
	}
	if err := f.c.belongsTo(id); err != nil {
		return err
	}
	f.cluster = etag
	return nil
}

// withoutCluster says what a bucket without cluster.json means.
func (c *Catalog) withoutCluster() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.node.ClusterID == "" {
		return errNoWriter
	}
	return errEmptied
}

// getIfChanged is Bucket.GetIfChanged, or Get where no ETag is known.
func (c *Catalog) getIfChanged(ctx context.Context, key, etag string) ([]byte, string, error) {
	if etag == "" {
		return c.o.Bucket.Get(ctx, key, maxDocumentBytes)
	}
	return c.o.Bucket.GetIfChanged(ctx, key, etag, maxDocumentBytes)
}

// discover is Catalog.discover, by conditional requests.
func (f *follower) discover(ctx context.Context) ([]*foundTopic, error) {
	ctx, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	found, err := f.c.topicFolders(ctx, "")
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	now := make(map[string]seenTopic, len(found))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readsAtOnce)
	for _, t := range found {
		old := f.seen[t.id]
		g.Go(func() error {
			etag, err := f.read(ctx, t, old)
			if err == nil && t.data != nil {
				mu.Lock()
				defer mu.Unlock()
				now[t.id] = seenTopic{etag, t.data}
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	f.seen = now
	return found, nil
}

func (f *follower) read(ctx context.Context, t *foundTopic, old seenTopic) (etag string, err error) {
	etag, changed, err := f.c.readTopicIfChanged(ctx, t, old.etag)
	if err == nil && !changed {
		t.data = old.data
	}
	return etag, err
}

// mirror makes the topics here those of the bucket:
//
//	only there, alive          adopted: written to disk, opened
//	on both, changed           its properties are applied
//	on both, deleted or swept  closed, its files removed
//	another id is newer        the same, and the newer one takes the name in one step
//	cannot be read             goes on as it is; unknown here, its name answers with the damage
func (f *follower) mirror(found []*foundTopic) error {
	c := f.c
	alive, unreadable, broken := sortOut(found)
	var notes []string
	for _, name := range slices.Sorted(maps.Keys(broken)) {
		notes = append(notes, fmt.Sprintf("topic %s: its description in the bucket cannot be read: %v", name, broken[name]))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed.Load() {
		return ErrClosed
	}
	var dropped []*Topic
	for _, t := range c.snap.Load().sorted {
		data := alive[t.name]
		same := data != nil && data.ID == t.id
		if !same && !unreadable[t.id] {
			dropped = append(dropped, t)
			continue
		}
		delete(alive, t.name) // if it cannot be read, which is newer cannot be told
		delete(broken, t.name)
		if !same {
			continue
		}
		if n := len(t.partitions); int(data.Partitions) != n {
			notes = append(notes, fmt.Sprintf("topic %s: %d partitions in the bucket, %d here", t.name, data.Partitions, n))
		} else if err := c.applyTopicLocked(t, data); err != nil {
			return err
		}
	}
	adopted, failed := f.adoptLocked(alive, broken)
	c.publishLocked(func(s *snapshot) {
		for _, t := range dropped {
			delete(s.byName, t.name)
		}
		for _, t := range adopted {
			s.byName[t.name] = t
		}
		s.broken, s.known = broken, failed == nil
	})
	f.dropped = append(f.dropped, dropped...)
	c.remote.note(notes)
	c.warnOfSwitches(adopted)
	return failed
}

// adoptLocked opens topics that are only in the bucket.
func (f *follower) adoptLocked(alive map[string]*topicData, broken map[string]error) (adopted []*Topic, err error) {
	for _, name := range slices.Sorted(maps.Keys(alive)) {
		data := alive[name]
		if broken[name] != nil {
			continue // the one that cannot be read may be the newer one
		}
		if slices.ContainsFunc(f.dropped, func(t *Topic) bool { return t.id == data.ID }) {
			return adopted, fmt.Errorf("topic %s is back and has not been closed yet", name)
		}
		t, err := f.c.adoptLocked(data)
		if err != nil {
			return adopted, err
		}
		adopted = append(adopted, t)
	}
	return adopted, nil
}

// sortOut gives the newest living topic of each name, the ids whose description
// cannot be read, and the damage by name.
func sortOut(found []*foundTopic) (alive map[string]*topicData, unreadable map[string]bool, broken map[string]error) {
	alive, unreadable, broken = make(map[string]*topicData), make(map[string]bool), make(map[string]error)
	for _, t := range found {
		switch {
		case t.err != nil:
			unreadable[t.id], broken[t.name] = true, t.err
		case t.data == nil, t.data.DeletedMS != 0:
		default:
			if have := alive[t.name]; have == nil || t.data.newerThan(have) {
				alive[t.name] = t.data
			}
		}
	}
	return alive, unreadable, broken
}

// applyTopicLocked puts the description of a topic in force if it is not that
// already. The bucket is right, whichever revision is the higher one.
func (c *Catalog) applyTopicLocked(t *Topic, data *topicData) error {
	old := t.config.Load().data
	if old.Revision == data.Revision && maps.Equal(old.Properties, data.Properties) {
		return nil
	}
	config, err := newTopicConfig(data, c.store())
	if err != nil {
		return err
	}
	if err := c.disk.writeTopic(data); err != nil {
		return err
	}
	t.config.Store(config)
	t.configure(c.switches.Load())
	c.o.Logger.Info("topic changed in the bucket", "topic", t.name, "revision", data.Revision, "properties", map[string]string(data.Properties))
	return nil
}

// finishDropping closes the topics that are not served any more, and removes from
// disk whatever belongs to no topic that is: it can all be had again.
func (f *follower) finishDropping(ctx context.Context) error {
	if f.tidy && len(f.dropped) == 0 {
		return nil
	}
	c := f.c
	if err := f.closeDropped(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.snap.Load()
	if c.closed.Load() || !s.known {
		return nil // what is on disk may be a topic that could not be adopted
	}
	local, err := c.disk.topicFolders()
	if err != nil {
		return err
	}
	for _, l := range local {
		if t := s.byName[l.name]; t != nil && t.id == l.id || t == nil && s.broken[l.name] != nil {
			continue
		}
		if err := c.disk.removeTopic(l.name, l.id); err != nil {
			return err
		}
		c.o.Logger.Info("files of a topic that the bucket does not have any more removed", "topic", l.name, "id", l.id)
	}
	f.tidy = true
	return nil
}

// closeDropped closes dropped topics. What does not close in time is tried again.
func (f *follower) closeDropped(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closePatience)
	defer cancel()
	for len(f.dropped) > 0 {
		t := f.dropped[0]
		if err := closePartitions(ctx, t); err != nil {
			return fmt.Errorf("drop topic %s: %w", t.name, err)
		}
		f.c.o.Logger.Info("topic dropped: the bucket does not have it any more", "topic", t.name, "id", t.id)
		f.dropped, f.tidy = f.dropped[1:], false
	}
	return nil
}
