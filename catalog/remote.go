package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"keyhole/objstore"
	"keyhole/record"
)

const (
	clusterObject = "cluster.json"
	// listPatience bounds one listing of the bucket's topics.
	listPatience = 5 * time.Minute
	// readsAtOnce bounds the topic.json objects read at the same time.
	readsAtOnce = 16
)

var (
	// errForeign says that the bucket belongs to another cluster than this
	// data directory.
	errForeign = errors.New("bucket belongs to another cluster than this data directory")
	// errEmptied says that the bucket is nobody's although this directory has
	// objects in one. Taking it would split the topics over two buckets.
	errEmptied = errors.New("bucket has no cluster.json although this data directory has one in use: another URL is meant, or the bucket was emptied")
)

// remote is what is known of the bucket as a whole.
type remote struct {
	verified chan struct{} // closed once the bucket has proved to be ours

	mu      sync.Mutex
	err     error         // why the topics of the bucket are not known; nil: not asked yet, or known
	notes   []string      // what an operator should know of the bucket's topics
	changed chan struct{} // closed and replaced when there may be new trouble
}

func newRemote() *remote {
	return &remote{verified: make(chan struct{}), changed: make(chan struct{})}
}

// set notes why the topics are not known, and tells those who wait.
func (r *remote) set(err error) {
	r.mu.Lock()
	r.err = err
	r.mu.Unlock()
	r.tell()
}

// tell lets those look again who wait for the bucket.
func (r *remote) tell() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.changed)
	r.changed = make(chan struct{})
}

// news gives a channel that is closed at the next tell.
func (r *remote) news() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

func (r *remote) note(notes []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = notes
}

func (r *remote) trouble() (notes []string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.notes, r.err
}

// unknown is ErrBucketUnknown with its cause, if there is one yet.
func (r *remote) unknown() error {
	if _, err := r.trouble(); err != nil {
		return fmt.Errorf("%w: %w", ErrBucketUnknown, err)
	}
	return ErrBucketUnknown
}

// permanent gives the class of an error that somebody has to mend before a
// repetition can help; nil: err is not of that kind.
func permanent(err error) error {
	for _, class := range []error{objstore.ErrDenied, objstore.ErrMisconfigured, errForeign, errEmptied} {
		if errors.Is(err, class) {
			return class
		}
	}
	return nil
}

// attach finds out, for as long as it takes, whose bucket it is, what the store
// can do and which topics it has. After it the catalog knows every topic.
// Permanent errors are repeated too, at the slowest pace: credentials and
// settings are mended outside of this process.
//
//	cluster.json ─► verified: reads pass ─► probe ─► topics ─► known: writes pass
func (c *Catalog) attach() {
	a := attacher{c: c}
	var tries bucketTries
	for {
		err := a.run(c.ctx)
		c.remote.set(err)
		if err == nil || c.ctx.Err() != nil {
			return
		}
		c.pause(tries.failed(c, err), nil)
	}
}

// bucketTries paces the attempts to learn the topics of the bucket. Its zero
// value is that of no failure.
type bucketTries struct {
	backoff time.Duration
	said    error // the class of the permanent error that was logged last
}

// failed logs a failure, delivers it to Failed if it is for good and leaves
// nothing to be served, and gives the pause until the next attempt.
func (t *bucketTries) failed(c *Catalog, err error) (pause time.Duration) {
	class := permanent(err)
	if class == nil {
		t.backoff, t.said = nextBackoff(t.backoff), nil
		c.o.Logger.Warn("topics of the object store are not known yet; will try again", "err", err, "in", t.backoff)
		return jitter(t.backoff)
	}
	t.backoff = maxBackoff
	// Not by its text, which may differ each time by a request's id.
	if class != t.said {
		c.o.Logger.Error("object store cannot be used; somebody has to mend this", "err", err)
		t.said = class
	}
	if s := c.snap.Load(); len(s.byName)+len(s.broken) == 0 {
		select {
		case c.failed <- err:
		default: // it has been delivered
		}
	}
	return jitter(t.backoff)
}

// attacher remembers which steps are done, so that a repetition goes on where
// the last one failed.
type attacher struct {
	c                       *Catalog
	verified, probed, swept bool
}

func (a *attacher) run(ctx context.Context) error {
	if !a.verified {
		if err := a.verify(ctx); err != nil {
			return err
		}
		a.verified = true
		close(a.c.remote.verified)
	}
	if err := a.probe(ctx); err != nil {
		return err
	}
	if !a.swept {
		a.swept = true
		a.c.removeProbes(ctx)
	}
	found, err := a.c.discover(ctx, "")
	if err != nil {
		return err
	}
	return a.c.reconcile(ctx, found)
}

// verify reads cluster.json, writes it into a bucket that has none, and
// compares it with what this directory has seen before. Only "no such object"
// makes a bucket empty; whatever else keeps the object from being read is an
// error.
func (a *attacher) verify(ctx context.Context) error {
	c := a.c
	id, err := c.readCluster(ctx)
	if errors.Is(err, objstore.ErrNotFound) {
		if err := a.probe(ctx); err != nil {
			return err
		}
		id, err = c.writeCluster(ctx)
	}
	if err != nil {
		return err
	}
	return c.belongsTo(id)
}

// belongsTo compares the id of the bucket with that of this directory, which has
// it for good from the first time on.
func (c *Catalog) belongsTo(id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.node.ClusterID {
	case id:
		return nil
	case "":
		node := c.node
		node.ClusterID = id
		if err := c.disk.write(c.disk.path(nodeFile), formatNode, &node); err != nil {
			return err
		}
		c.node = node
		return nil
	}
	return fmt.Errorf("%w: %s says %s, the directory %s", errForeign, clusterObject, id, c.node.ClusterID)
}

func (c *Catalog) readCluster(ctx context.Context) (id string, err error) {
	ctx, cancel := context.WithTimeout(ctx, getPatience)
	defer cancel()
	b, _, err := c.o.Bucket.Get(ctx, clusterObject, maxDocumentBytes)
	if err != nil {
		return "", fmt.Errorf("read %s of the bucket: %w", clusterObject, err)
	}
	return DecodeCluster(b)
}

// writeCluster makes the bucket a cluster's. Of two that try at once, one wins
// where the store knows conditions.
func (c *Catalog) writeCluster(ctx context.Context) (id string, err error) {
	ctx, cancel := context.WithTimeout(ctx, putPatience)
	defer cancel()
	c.mu.Lock()
	seen := c.node.ClusterID
	conditional := c.node.Conditional != nil && *c.node.Conditional
	c.mu.Unlock()
	if seen != "" {
		return "", errEmptied
	}
	id = newID()
	b, err := encodeDocument(formatCluster, &clusterData{ClusterID: id, CreatedMS: time.Now().UnixMilli()})
	if err != nil {
		return "", err
	}
	cond := objstore.Condition{IfNoneMatch: conditional}
	_, err = c.o.Bucket.Put(ctx, clusterObject, bytes.NewReader(b), int64(len(b)), cond)
	switch {
	case errors.Is(err, objstore.ErrPrecondition):
		return c.readCluster(ctx)
	case err != nil:
		return "", fmt.Errorf("write %s of the bucket: %w", clusterObject, err)
	}
	return id, nil
}

// probe tries whether the store honours conditional writes. Partitions that
// opened before it were told the outcome of the last start, or, where there was
// none, the cautious answer, which works on every store.
func (a *attacher) probe(ctx context.Context) error {
	if a.probed {
		return nil
	}
	c := a.c
	ctx, cancel := context.WithTimeout(ctx, putPatience)
	defer cancel()
	conditional, err := objstore.Probe(ctx, c.o.Bucket)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !conditional {
		c.o.Logger.Warn("the object store does not honour conditional writes: this must be its only writer", "single_writer", true)
	}
	if c.node.Conditional == nil || *c.node.Conditional != conditional {
		node := c.node
		node.Conditional = &conditional
		if err := c.disk.write(c.disk.path(nodeFile), formatNode, &node); err != nil {
			return err
		}
		c.node = node
	}
	if c.conditional && !conditional {
		return fmt.Errorf("%w: it honoured conditional writes before and does not now; restart to go on as its only writer", objstore.ErrMisconfigured)
	}
	a.probed = true
	return nil
}

// probeAge is how old an object of a probe must be to be of none that is under way.
const probeAge = 24 * time.Hour

// removeProbes is tried once per start; what it leaves costs next to nothing.
func (c *Catalog) removeProbes(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, putPatience)
	defer cancel()
	n, err := objstore.RemoveProbes(ctx, c.o.Bucket, c.now().Add(-probeAge))
	if err != nil {
		c.o.Logger.Warn("objects that checks of the store have left behind are still there", "err", err)
	}
	if n > 0 {
		c.o.Logger.Info("objects removed that checks of the store had left behind", "objects", n)
	}
}

// foundTopic is one topic.json of the bucket, or what is wrong with it.
type foundTopic struct {
	name, id string
	data     *topicData
	err      error
}

// discover reads every topic.json of the bucket, or of the topics of one name.
// What cannot be read for now fails the whole: half of the topics would make
// "not found" a lie.
func (c *Catalog) discover(ctx context.Context, name string) ([]*foundTopic, error) {
	ctx, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	found, err := c.topicFolders(ctx, name)
	if err != nil {
		return nil, err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readsAtOnce)
	for _, f := range found {
		g.Go(func() error { return c.readTopicObject(ctx, f) })
	}
	return found, g.Wait()
}

// topicFolders lists the folders of topics in the bucket, of all names if name is
// empty.
func (c *Catalog) topicFolders(ctx context.Context, name string) (found []*foundTopic, err error) {
	ids := func(folder string) error {
		name := strings.TrimSuffix(folder, "/")
		if checkTopicName(name) != nil {
			return nil // the probe's folder, or not ours
		}
		return c.o.Bucket.ListPrefixes(ctx, folder, func(prefix string) error {
			id := strings.TrimSuffix(strings.TrimPrefix(prefix, folder), "/")
			if checkID("id", id) == nil {
				found = append(found, &foundTopic{name: name, id: id})
			}
			return nil
		})
	}
	if name != "" {
		err = ids(name + "/")
	} else {
		err = c.o.Bucket.ListPrefixes(ctx, "", ids)
	}
	if err != nil {
		return nil, fmt.Errorf("list the bucket's topics: %w", err)
	}
	return found, nil
}

// readTopicObject fills f in. Objects without a topic.json are what a deletion
// that swept it first would leave; they are no topic.
func (c *Catalog) readTopicObject(ctx context.Context, f *foundTopic) error {
	ctx, cancel := context.WithTimeout(ctx, getPatience)
	defer cancel()
	key := topicObject(f.name, f.id)
	b, _, err := c.o.Bucket.Get(ctx, key, maxDocumentBytes)
	return f.fill(key, b, err)
}

// fill takes what reading the object gave.
func (f *foundTopic) fill(key string, b []byte, err error) error {
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return nil
	case errors.Is(err, objstore.ErrTooLarge):
		f.err = record.Corrupt(key, 0, err)
		return nil
	case err != nil:
		return fmt.Errorf("read %s: %w", key, err)
	}
	var data topicData
	if err := decodeDocument(key, formatTopic, b, &data); err != nil {
		f.err = err
		return nil
	}
	if data.Name != f.name || data.ID != f.id {
		f.err = record.Corrupt(key, 0, fmt.Errorf("holds topic %s with id %s", data.Name, data.ID))
		return nil
	}
	f.data = &data
	return nil
}
