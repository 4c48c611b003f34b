package catalog

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/partition"
	"keyhole/record"
)

// deleteElsewhere deletes topics through a node of its own and has them swept.
func deleteElsewhere(t *testing.T, b *objstoretest.Faulty, names ...string) {
	t.Helper()
	clock := newHandClock()
	n := newNode(t, b)
	n.clock = clock.read
	c := n.start()
	known(t, c)
	for _, name := range names {
		if err := c.DeleteTopic(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all marked", func() bool { return len(c.sweeper.all()) == len(names) })
	clock.advance(time.Hour)
	c.sweeper.wake()
	eventually(t, "all swept", func() bool { return len(c.sweeper.all()) == 0 })
	stop(t, c)
}

// wantGone checks what is promised of a topic that is gone, then deletes it.
func wantGone(t *testing.T, c *Catalog, b *objstoretest.Faulty, topic *Topic) {
	t.Helper()
	name, prefix := topic.Name(), topicPrefix(topic.Name(), topic.ID())
	if _, err := c.TopicForWrite(t.Context(), name); !errors.Is(err, ErrTopicGone) {
		t.Errorf("%s for a write: %v", name, err)
	}
	if err := c.AlterTopic(t.Context(), name, map[string]string{propFlush: "7"}, nil); !errors.Is(err, ErrTopicGone) {
		t.Errorf("%s altered: %v", name, err)
	}
	got, err := c.Topic(name)
	if err != nil || got.ID() != topic.ID() {
		t.Fatalf("%s is not here any more: %v", name, err)
	}
	if !slices.Contains(c.Ready().Degraded, got.advice()) {
		t.Errorf("readiness does not name %s: %q", name, c.Ready().Degraded)
	}
	// What was on its way when it was noticed stays out of the bucket as well.
	p := got.partitions[0]
	<-p.Opened()
	_, _ = p.Append(t.Context(), []record.Record{{Key: []byte("k"), Value: []byte("v")}})
	if _, err := p.Evict(t.Context(), 0); err == nil {
		t.Errorf("%s is evicted", name)
	}
	if err := c.keepOnce(); err != nil {
		t.Error(err)
	}
	if err := c.DeleteTopic(t.Context(), name); err != nil {
		t.Errorf("%s deleted: %v", name, err)
	}
	if c.disk.hasTopicDir(name, topic.ID()) || len(deletionMarks(t, c)) != 0 {
		t.Errorf("after the deletion of %s something is left", name)
	}
	if err := c.keepOnce(); err != nil {
		t.Error(err)
	}
	if keys := keysBelow(t, b, prefix); len(keys) != 0 {
		t.Errorf("%s came back as %q", name, keys)
	}
}

// An old disk does not bring a topic back that was deleted through another node
// and is swept: not one with segments, and not one that only ever had its
// description in the bucket.
func TestSweptTopicDoesNotComeBackFromAnOldDisk(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	n := newNode(t, b)
	c := n.start()
	known(t, c)
	allOn(t, c)
	full, old, empty := cold(t, c, "full"), cold(t, c, "old"), create(t, c, "empty", 1, map[string]string{propTopicRemoteWrite: "false"})
	stop(t, c)
	// A directory from before there was a note of it.
	if err := n.fs.Remove(n.fs.PathJoin(c.disk.topicDir("old", old.ID()), storedFile)); err != nil {
		t.Fatal(err)
	}
	// And one whose partitions know nothing of the bucket.
	if err := n.fs.RemoveAll(n.fs.PathJoin(c.disk.topicDir("empty", empty.ID()), "0", "remote")); err != nil {
		t.Fatal(err)
	}
	deleteElsewhere(t, b, "full", "old", "empty")

	c = n.start()
	known(t, c)
	for _, topic := range []*Topic{full, old, empty} {
		wantGone(t, c, b, topic)
	}
	if _, err := c.CreateTopic(t.Context(), "full", 1, nil); err != nil {
		t.Errorf("created anew: %v", err)
	}
}

// A node that runs on notices too, if it has missed the mark.
func TestSweptTopicIsNoticedByANodeThatRuns(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	c := newNode(t, b).start()
	known(t, c)
	topic := create(t, c, "t", 1, nil)
	serving(t, topic, 0)
	seen, err := c.lookForDeletions(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	deleteElsewhere(t, b, "t")
	if _, err := c.lookForDeletions(t.Context(), seen); err != nil {
		t.Fatal(err)
	}
	wantGone(t, c, b, topic)
}

// What the bucket has lost only the description of is mended, and what it never
// had is uploaded.
func TestLostDescriptionIsWrittenAnew(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	n := newNode(t, b)
	c := n.start()
	known(t, c)
	allOn(t, c)
	lost := cold(t, c, "lost")
	failing(b, objstore.ErrUnavailable, func(c objstoretest.Call) bool { return strings.HasPrefix(c.Key, "late/") })
	late := create(t, c, "late", 1, nil)
	stop(t, c)
	b.Before(nil)
	if err := b.Inner().Delete(t.Context(), topicObject("lost", lost.ID())); err != nil {
		t.Fatal(err)
	}
	c = n.start()
	known(t, c)
	for _, topic := range []*Topic{lost, late} {
		eventually(t, topic.Name()+" in the bucket", func() bool { return topicInBucket(t, b, topic) != nil })
	}
	if r := c.Ready(); len(r.Degraded) != 0 {
		t.Errorf("degraded: %q", r.Degraded)
	}
	got, err := c.TopicForWrite(t.Context(), "lost")
	if err != nil {
		t.Fatal(err)
	}
	p := serving(t, got, 0)
	appendKeys(t, p, 100, 110)
	if _, err := p.Evict(t.Context(), 0); err != nil && !errors.Is(err, partition.ErrNotReady) {
		t.Errorf("evict: %v", err)
	}
}
