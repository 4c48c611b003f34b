package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
)

// topicInBucket reads what the bucket says of a topic, past all faults.
func topicInBucket(t testing.TB, b *objstoretest.Faulty, topic *Topic) *topicData {
	t.Helper()
	key := topicObject(topic.Name(), topic.ID())
	raw, _, err := b.Inner().Get(context.Background(), key, maxDocumentBytes)
	if errors.Is(err, objstore.ErrNotFound) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	var data topicData
	if err := decodeDocument(key, formatTopic, raw, &data); err != nil {
		t.Fatal(err)
	}
	return &data
}

func putObject(t testing.TB, b *objstoretest.Faulty, key string, data []byte) {
	t.Helper()
	_, err := b.Inner().Put(context.Background(), key, bytes.NewReader(data), int64(len(data)), objstore.Condition{})
	if err != nil {
		t.Fatal(err)
	}
}

// failing makes the bucket answer every call that match accepts with err.
func failing(b *objstoretest.Faulty, err error, match func(objstoretest.Call) bool) {
	b.Before(func(_ context.Context, c objstoretest.Call) error {
		if match(c) {
			return &objstore.OpError{Op: string(c.Op), Key: c.Key, Kind: err}
		}
		return nil
	})
}

func everything(objstoretest.Call) bool { return true }

func TestEmptyDiskAdoptsTheTopicsOfTheBucket(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	n := newNode(t, b)
	c := n.start()
	known(t, c)
	allOn(t, c)
	want := create(t, c, "orders", 3, map[string]string{propTopicIndex: "true", propFlush: "5"})
	create(t, c, "gone", 1, nil)
	if err := c.AlterTopic(t.Context(), "orders", map[string]string{propFlush: "6"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.DeleteTopic(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	cluster := c.node.ClusterID
	stop(t, c)

	other := newNode(t, b)
	c = other.start()
	known(t, c)
	got, err := c.Topic("orders")
	if err != nil || got.ID() != want.ID() || got.NumPartitions() != 3 || got.Config()[propFlush].Value != "6" {
		t.Errorf("adopted: %v, %v", got, err)
	}
	if _, err := c.Topic("gone"); !errors.Is(err, ErrTopicNotFound) {
		t.Errorf("the deleted topic: %v", err)
	}
	if c.node.ClusterID != cluster || c.node.NodeID == "" {
		t.Errorf("cluster id is %q, was %q", c.node.ClusterID, cluster)
	}
	// The empty disk begins with defaults, so the index is maintained and hidden.
	if s := partitionSettings(got.config.Load(), c.switches.Load()); s.IndexActive || !s.IndexMaintained {
		t.Errorf("settings are %+v", s)
	}
	stop(t, c)

	// What was adopted is on disk.
	failing(b, objstore.ErrUnavailable, everything)
	c = other.start()
	if got, err := c.Topic("orders"); err != nil || got.ID() != want.ID() {
		t.Errorf("without the store: %v, %v", got, err)
	}
}

func TestRefusalIsNotAnEmptyBucket(t *testing.T) { // case 4-17
	for _, kind := range []error{objstore.ErrDenied, objstore.ErrMisconfigured, objstore.ErrUnavailable, objstore.ErrUnusable} {
		for _, full := range []bool{false, true} {
			for name, match := range map[string]func(objstoretest.Call) bool{
				"everything":   everything,
				"cluster.json": func(c objstoretest.Call) bool { return c.Op == objstoretest.OpGet && c.Key == clusterObject },
				"listings":     func(c objstoretest.Call) bool { return c.Op == objstoretest.OpListPrefixes },
				"topic.json": func(c objstoretest.Call) bool {
					return c.Op == objstoretest.OpGet && strings.HasSuffix(c.Key, "/"+topicFile)
				},
			} {
				if !full && name == "topic.json" {
					continue
				}
				t.Run(fmt.Sprintf("%v/full=%v/%s", kind, full, name), func(t *testing.T) {
					b := objstoretest.NewFaulty(nil)
					var clusterID string
					if full {
						c := newNode(t, b).start()
						known(t, c)
						create(t, c, "orders", 1, nil)
						clusterID = c.node.ClusterID
						stop(t, c)
					}
					failing(b, kind, match)
					n := newNode(t, b)
					c := n.start()
					eventually(t, "trouble noticed", func() bool { _, err := c.remote.trouble(); return err != nil })
					for _, name := range []string{"orders", "none"} {
						if _, err := c.Topic(name); !errors.Is(err, ErrBucketUnknown) || !errors.Is(err, kind) {
							t.Errorf("%s: %v", name, err)
						}
					}
					if _, err := c.CreateTopic(t.Context(), "orders", 1, nil); !errors.Is(err, ErrBucketUnknown) {
						t.Errorf("create: %v", err)
					}
					r := c.Ready()
					if r.Ready || len(r.NotReady) != 1 || len(r.Degraded) == 0 || !strings.Contains(r.NotReady[0].Reason, kind.Error()) {
						t.Errorf("readiness is %+v", r)
					}
					if permanent := errors.Is(kind, objstore.ErrDenied) || errors.Is(kind, objstore.ErrMisconfigured); permanent {
						if err := <-c.Failed(); !errors.Is(err, kind) {
							t.Errorf("failed with %v", err)
						}
						if n := n.logs.count("level=ERROR"); n != 1 {
							t.Errorf("said %d times", n)
						}
					} else if len(c.Failed()) != 0 {
						t.Error("failed for good, although trying again may help")
					}
					stop(t, c)
					if name == "everything" || full {
						raw, _, err := b.Inner().Get(context.Background(), clusterObject, maxDocumentBytes)
						if full && (err != nil || !bytes.Contains(raw, []byte(clusterID))) {
							t.Errorf("cluster.json was overwritten: %s, %v", raw, err)
						}
						if !full && !errors.Is(err, objstore.ErrNotFound) {
							t.Errorf("cluster.json was written: %v", err)
						}
					}
				})
			}
		}
	}
}

func TestStoreThatComesBackIsUsed(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	failing(b, objstore.ErrUnavailable, everything)
	c := newNode(t, b).start()
	if _, err := c.Topic("t"); !errors.Is(err, ErrBucketUnknown) {
		t.Errorf("while the store is away: %v", err)
	}
	eventually(t, "trouble noticed", func() bool { _, err := c.remote.trouble(); return err != nil })
	b.Before(nil)
	known(t, c)
	if _, err := c.Topic("t"); !errors.Is(err, ErrTopicNotFound) {
		t.Errorf("afterwards: %v", err)
	}
	if r := c.Ready(); !r.Ready || len(r.Degraded) != 0 {
		t.Errorf("readiness is %+v", r)
	}
}

func TestLocalTopicsServeWithoutTheStore(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	n := newNode(t, b)
	c := n.start()
	known(t, c)
	// Before it has a log of its own, a partition has to ask the bucket.
	serving(t, create(t, c, "t", 1, nil), 0)
	stop(t, c)
	failing(b, objstore.ErrDenied, everything)
	c = n.start()
	if _, err := c.Topic("t"); err != nil {
		t.Errorf("local topic: %v", err)
	}
	if _, err := c.Topic("u"); !errors.Is(err, ErrBucketUnknown) {
		t.Errorf("unknown topic: %v", err)
	}
	eventually(t, "ready and degraded", func() bool { r := c.Ready(); return r.Ready && len(r.Degraded) > 0 })
}

func TestTopicMadeWhileTheStoreIsAway(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	n := newNode(t, b)
	c := n.start()
	known(t, c)
	failing(b, objstore.ErrUnavailable, func(c objstoretest.Call) bool {
		return c.Op == objstoretest.OpPut && strings.HasSuffix(c.Key, "/"+topicFile)
	})
	topic := create(t, c, "t", 1, nil)
	if topicInBucket(t, b, topic) != nil {
		t.Fatal("the description is in the bucket")
	}
	gated := &gatedBucket{Bucket: b, gate: topic.gate}
	if _, err := gated.Put(t.Context(), "t/x", bytes.NewReader(nil), 0, objstore.Condition{}); !errors.Is(err, objstore.ErrUnavailable) {
		t.Errorf("an object of it before its description: %v", err)
	}
	if err := gated.Delete(t.Context(), "t/x"); !errors.Is(err, objstore.ErrUnavailable) {
		t.Errorf("a removal before its description: %v", err)
	}
	if b.CountKey("t/x") != 0 {
		t.Error("the store was asked")
	}
	if r := c.Ready(); len(r.Degraded) == 0 {
		t.Errorf("readiness is %+v", r)
	}
	stop(t, c)

	// Not done at Close, so it is found again at the next start.
	b.Before(nil)
	c = n.start()
	eventually(t, "description in the bucket", func() bool { return topicInBucket(t, b, topic) != nil })
	again, err := c.Topic("t")
	if err != nil || again.ID() != topic.ID() {
		t.Fatalf("%v, %v", again, err)
	}
	gated = &gatedBucket{Bucket: b, gate: again.gate}
	if _, err := gated.Put(t.Context(), "t/x", bytes.NewReader(nil), 0, objstore.Condition{}); err != nil {
		t.Errorf("an object of it afterwards: %v", err)
	}
}

func TestChangeMadeWhileTheStoreIsAwayArrives(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	c := newNode(t, b).start()
	known(t, c)
	topic := create(t, c, "t", 1, nil)
	failing(b, objstore.ErrUnavailable, everything)
	for _, flush := range []string{"1", "2", "3"} {
		if err := c.AlterTopic(t.Context(), "t", map[string]string{propFlush: flush}, nil); err != nil {
			t.Fatal(err)
		}
	}
	b.Before(nil)
	eventually(t, "the last change in the bucket", func() bool { return topicInBucket(t, b, topic).Properties[propFlush] == "3" })
	eventually(t, "no more trouble", func() bool { return len(c.Ready().Degraded) == 0 })
}

func TestDeletionIsMarkedEvenAfterARestart(t *testing.T) { // case 3-31
	b := objstoretest.NewFaulty(nil)
	n := newNode(t, b)
	c := n.start()
	known(t, c)
	old := create(t, c, "t", 1, nil)
	failing(b, objstore.ErrUnavailable, everything)
	if err := c.DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Topic("t"); !errors.Is(err, ErrTopicNotFound) {
		t.Errorf("right after the deletion: %v", err)
	}
	anew := create(t, c, "t", 1, nil)
	stop(t, c)

	b.Before(nil)
	c = n.start()
	eventually(t, "marked", func() bool { return topicInBucket(t, b, old).DeletedMS != 0 })
	known(t, c)
	if got, err := c.Topic("t"); err != nil || got.ID() != anew.ID() {
		t.Errorf("the new topic: %v, %v", got, err)
	}
	eventually(t, "new topic in the bucket", func() bool { return topicInBucket(t, b, anew) != nil })
	stop(t, c)

	empty := newNode(t, b).start()
	known(t, empty)
	if got, err := empty.Topic("t"); err != nil || got.ID() != anew.ID() {
		t.Errorf("on an empty disk: %v, %v", got, err)
	}
}

// A deletion that is under way while the bucket is being listed must not be
// undone by what the listing saw before.
func TestOldSightOfTheBucketDoesNotUndoADeletion(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	n := newNode(t, b)
	c := n.start()
	known(t, c)
	topic := create(t, c, "t", 1, nil)
	found, err := c.discover(t.Context(), "")
	if err != nil || len(found) != 1 {
		t.Fatalf("found %v, %v", found, err)
	}
	if err := c.DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "marked", func() bool { return topicInBucket(t, b, topic).DeletedMS != 0 })
	if err := c.reconcile(t.Context(), found); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Topic("t"); !errors.Is(err, ErrTopicNotFound) {
		t.Errorf("the topic: %v", err)
	}
}

func TestTopicDeletedThroughAnotherNode(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	n := newNode(t, b)
	c := n.start()
	known(t, c)
	topic := create(t, c, "t", 1, nil)
	stop(t, c)

	other := newNode(t, b).start()
	known(t, other)
	if err := other.DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	anew := create(t, other, "t", 2, nil)
	stop(t, other)

	c = n.start()
	known(t, c)
	if got, err := c.Topic("t"); err != nil || got.ID() != anew.ID() || got.NumPartitions() != 2 {
		t.Errorf("the topic: %v, %v", got, err)
	}
	if c.disk.hasTopicDir("t", topic.ID()) {
		t.Error("the deleted one's files are still there")
	}
}

func TestForeignBucketIsLeftAlone(t *testing.T) {
	foreign := objstoretest.NewFaulty(nil)
	c := newNode(t, foreign).start()
	known(t, c)
	create(t, c, "theirs", 1, nil)
	stop(t, c)

	n := newNode(t, objstoretest.NewFaulty(nil))
	c = n.start()
	known(t, c)
	mine := create(t, c, "mine", 1, nil)
	serving(t, mine, 0)
	stop(t, c)

	n.bucket = foreign
	c = n.start()
	eventually(t, "noticed", func() bool { _, err := c.remote.trouble(); return errors.Is(err, errForeign) })
	if _, err := c.Topic("theirs"); !errors.Is(err, ErrBucketUnknown) {
		t.Errorf("their topic: %v", err)
	}
	again, err := c.Topic("mine")
	if err != nil {
		t.Fatalf("my topic: %v", err)
	}
	p := serving(t, again, 0)
	eventually(t, "partition tried to write", func() bool { return errors.Is(p.StoreTrouble(), objstore.ErrUnavailable) })
	stop(t, c)
	if topicInBucket(t, foreign, mine) != nil {
		t.Error("my topic was written into their bucket")
	}
	for _, call := range foreign.Calls() {
		if strings.HasPrefix(call.Key, "mine/") && (call.Op == objstoretest.OpPut || call.Op == objstoretest.OpDelete) {
			t.Errorf("%v", call)
		}
	}
}

// A wrong URL is not an empty bucket, and not the loss of all segments either.
func TestEmptiedBucketIsNotTaken(t *testing.T) {
	n := newNode(t, objstoretest.NewFaulty(nil))
	right := n.bucket
	c := n.start()
	known(t, c)
	allOn(t, c)
	cold(t, c, "t")
	stop(t, c)

	wrong := objstoretest.NewFaulty(nil)
	n.bucket = wrong
	c = n.start()
	eventually(t, "noticed", func() bool { _, err := c.remote.trouble(); return errors.Is(err, errEmptied) })
	topic, err := c.Topic("t")
	if err != nil {
		t.Fatal(err)
	}
	p := serving(t, topic, 0)
	if _, err := find(t, p, 7); !errors.Is(err, objstore.ErrUnavailable) {
		t.Errorf("a cold key: %v", err)
	}
	stop(t, c)
	err = wrong.Inner().List(t.Context(), "", func(o objstore.Object) error {
		t.Errorf("object %s was written", o.Key)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	n.bucket = right
	c = n.start()
	known(t, c)
	if topic, err = c.Topic("t"); err != nil {
		t.Fatal(err)
	}
	if _, err := find(t, serving(t, topic, 0), 7); err != nil {
		t.Errorf("with the right URL: %v", err)
	}
}

func TestClusterIDIsWrittenOnce(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	ids := map[string]bool{}
	var nodes []*Catalog
	for range 8 {
		nodes = append(nodes, newNode(t, b).start())
	}
	for _, c := range nodes {
		known(t, c)
		c.mu.Lock()
		ids[c.node.ClusterID] = true
		c.mu.Unlock()
	}
	if len(ids) != 1 {
		t.Errorf("eight nodes that start at once see the ids %v", ids)
	}
}

func TestClusterIDOfTheFasterNodeCounts(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	theirs := &clusterData{ClusterID: newID(), CreatedMS: 1}
	raw, err := encodeDocument(formatCluster, theirs)
	if err != nil {
		t.Fatal(err)
	}
	b.Before(func(_ context.Context, c objstoretest.Call) error {
		if c.Op == objstoretest.OpPut && c.Key == clusterObject {
			putObject(t, b, clusterObject, raw) // they are a moment ahead
		}
		return nil
	})
	c := newNode(t, b).start()
	known(t, c)
	stop(t, c)
	if c.node.ClusterID != theirs.ClusterID {
		t.Errorf("cluster id is %s, want %s", c.node.ClusterID, theirs.ClusterID)
	}
}

// forgetful ignores the conditions of writes, as some stores do.
type forgetful struct{ objstore.Bucket }

func (f forgetful) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, _ objstore.Condition) (string, error) {
	return f.Bucket.Put(ctx, key, body, size, objstore.Condition{})
}

func TestStoreWithoutConditions(t *testing.T) { // case 4-26
	n := newNode(t, forgetful{objstoretest.NewMemory()})
	c := n.start()
	known(t, c)
	create(t, c, "t", 1, nil)
	if n.logs.count("single_writer=true") != 1 {
		t.Error("the log does not say single_writer")
	}
	stop(t, c)
	if *c.node.Conditional {
		t.Error("the probe says conditional")
	}
	// A store that stops honouring conditions must not be written to by
	// partitions that count on them.
	n = newNode(t, objstoretest.NewMemory())
	c = n.start()
	known(t, c)
	create(t, c, "t", 1, nil)
	stop(t, c)
	n.bucket = forgetful{n.bucket}
	c = n.start()
	eventually(t, "noticed", func() bool { _, err := c.remote.trouble(); return errors.Is(err, objstore.ErrMisconfigured) })
	stop(t, c)
	known(t, n.start()) // now told the truth
}
