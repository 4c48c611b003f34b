package catalog

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/partition"
)

// collectable is a node with deleted topics in the bucket whose grace period is
// over, and which its sweeper does not touch: only Collect may.
func collectable(t *testing.T, objects int, names ...string) (*Catalog, *objstoretest.Faulty) {
	t.Helper()
	b := objstoretest.NewFaulty(nil)
	c := newNode(t, b).start()
	known(t, c)
	for _, name := range names {
		deletedTopic(t, c, b, name, objects)
	}
	stop(t, c)
	clock := newHandClock()
	n := newNode(t, b)
	n.clock, n.noSweep = clock.read, true
	clock.advance(2 * time.Hour)
	c = n.start()
	known(t, c)
	return c, b
}

func TestCollectOfDeletedTopics(t *testing.T) {
	c, b := collectable(t, 6, "a", "b")
	before := keysBelow(t, b, "")
	var total int
	for _, name := range []string{"a", "b"} {
		total += len(keysBelow(t, b, name+"/"))
	}
	dry, err := c.Collect(t.Context(), CollectOptions{Partition: -1, DryRun: true, Listed: 5})
	if err != nil || len(dry.Failed) != 0 {
		t.Fatalf("%+v, %v", dry, err)
	}
	if dry.Count != int64(total) || len(dry.Objects) != 5 || dry.Bytes < 12*4 {
		t.Errorf("a dry run finds %d objects of %d bytes and lists %d, want %d and 5", dry.Count, dry.Bytes, len(dry.Objects), total)
	}
	for _, g := range dry.Objects {
		if g.Why != whyDeletedTopic || g.Age < 2*time.Hour || !strings.HasPrefix(g.Key, "a/") {
			t.Errorf("listed: %+v", g)
		}
	}
	if after := keysBelow(t, b, ""); len(after) != len(before) {
		t.Errorf("a dry run left %d objects of %d", len(after), len(before))
	}

	one, err := c.Collect(t.Context(), CollectOptions{Topic: "b", Partition: -1, Listed: 100})
	if err != nil || one.Count == 0 || len(one.Objects) != int(one.Count) {
		t.Fatalf("%+v, %v", one, err)
	}
	if len(keysBelow(t, b, "b/")) != 0 || len(keysBelow(t, b, "a/")) == 0 {
		t.Errorf("of topic b %d objects are left, of topic a %d", len(keysBelow(t, b, "b/")), len(keysBelow(t, b, "a/")))
	}
	if _, err := c.Collect(t.Context(), CollectOptions{Topic: "b", Partition: -1}); !errors.Is(err, ErrTopicNotFound) {
		t.Errorf("a topic of which nothing is left: %v", err)
	}
	if _, err := c.Collect(t.Context(), CollectOptions{Partition: -1}); err != nil || len(keysBelow(t, b, "a/")) != 0 {
		t.Errorf("%d objects of topic a are left, %v", len(keysBelow(t, b, "a/")), err)
	}
}

func TestCollectBeforeTheGracePeriodIsOver(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	c := newNode(t, b).start()
	known(t, c)
	old := deletedTopic(t, c, b, "t", 3)
	before := len(keysBelow(t, b, topicPrefix("t", old.ID())))
	got, err := c.Collect(t.Context(), CollectOptions{Topic: "t", Partition: -1, Listed: 9})
	if err != nil || got.Count != 0 || len(keysBelow(t, b, topicPrefix("t", old.ID()))) != before {
		t.Errorf("%+v, %v", got, err)
	}
}

// A mark that another node has set since this one looked at the bucket counts.
func TestCollectFindsNewMarks(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	clock := newHandClock()
	n := newNode(t, b)
	n.clock, n.noSweep = clock.read, true
	c := n.start()
	known(t, c)
	w := newNode(t, b).start()
	known(t, w)
	old := deletedTopic(t, w, b, "t", 3)
	stop(t, w)
	clock.advance(2 * time.Hour)
	got, err := c.Collect(t.Context(), CollectOptions{Partition: -1})
	if err != nil || got.Count < 4 || len(keysBelow(t, b, topicPrefix("t", old.ID()))) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestCollectErrors(t *testing.T) {
	c := newNode(t, nil).start()
	if _, err := c.Collect(t.Context(), CollectOptions{Partition: -1}); !errors.Is(err, partition.ErrNoStore) {
		t.Errorf("without a store: %v", err)
	}
	b := objstoretest.NewFaulty(nil)
	failing(b, objstore.ErrUnavailable, everything)
	away := newNode(t, b).start()
	if _, err := away.Collect(t.Context(), CollectOptions{Partition: -1}); !errors.Is(err, ErrBucketUnknown) {
		t.Errorf("a store that was never there: %v", err)
	}
	c, b = collectable(t, 6, "a")
	create(t, c, "t", 1, nil)
	if _, err := c.Collect(t.Context(), CollectOptions{Topic: "t", Partition: 1}); !errors.Is(err, ErrPartitionNotFound) {
		t.Errorf("no such partition: %v", err)
	}
	if _, err := c.Collect(t.Context(), CollectOptions{Topic: "u", Partition: 0}); !errors.Is(err, ErrTopicNotFound) {
		t.Errorf("no such topic: %v", err)
	}
	for _, kind := range []error{objstore.ErrUnavailable, objstore.ErrDenied} {
		failing(b, kind, func(c objstoretest.Call) bool { return c.Op == objstoretest.OpDelete })
		if _, err := c.Collect(t.Context(), CollectOptions{Topic: "a", Partition: -1}); !errors.Is(err, kind) {
			t.Errorf("%v: %v", kind, err)
		}
	}
	b.Before(nil)
	if _, err := c.Collect(t.Context(), CollectOptions{Topic: "a", Partition: -1}); err != nil || len(keysBelow(t, b, "a/")) != 0 {
		t.Errorf("afterwards: %d objects are left, %v", len(keysBelow(t, b, "a/")), err)
	}
}

// A client that leaves ends it where it is; the rest is left for the next one.
func TestCollectIsCutShort(t *testing.T) {
	c, b := collectable(t, 20, "a")
	ctx, cancel := context.WithCancel(t.Context())
	var deletions atomic.Int64
	b.Before(func(ctx context.Context, call objstoretest.Call) error {
		if call.Op == objstoretest.OpDelete && deletions.Add(1) == 5 {
			cancel()
		}
		return ctx.Err()
	})
	if _, err := c.Collect(ctx, CollectOptions{Topic: "a", Partition: -1}); !errors.Is(err, context.Canceled) {
		t.Errorf("cut short: %v", err)
	}
	left := keysBelow(t, b, "a/")
	if len(left) < 21-5 || !slices.ContainsFunc(left, func(key string) bool { return strings.HasSuffix(key, "/"+topicFile) }) {
		t.Errorf("left: %v", left)
	}
	if _, err := c.Collect(t.Context(), CollectOptions{Topic: "a", Partition: -1}); err != nil || len(keysBelow(t, b, "a/")) != 0 {
		t.Errorf("again: %d objects are left, %v", len(keysBelow(t, b, "a/")), err)
	}
}
