package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
)

// handClock is a clock that only the test moves.
type handClock struct {
	mu  sync.Mutex
	now time.Time
}

func newHandClock() *handClock { return &handClock{now: time.Now().Round(0)} }

func (h *handClock) read() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

func (h *handClock) advance(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = h.now.Add(d)
}

// keysBelow lists the bucket past all faults.
func keysBelow(t testing.TB, b *objstoretest.Faulty, prefix string) (keys []string) {
	t.Helper()
	err := b.Inner().List(context.Background(), prefix, func(o objstore.Object) error {
		keys = append(keys, o.Key)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// deletedTopic makes a topic with so many objects in the bucket and deletes it.
func deletedTopic(t testing.TB, c *Catalog, b *objstoretest.Faulty, name string, objects int) *Topic {
	t.Helper()
	topic := create(t, c, name, 1, nil)
	for i := range objects {
		putObject(t, b, fmt.Sprintf("%s%d/%020d-x.log", topicPrefix(name, topic.ID()), i%3, i), []byte("data"))
	}
	if err := c.DeleteTopic(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	eventually(t, "marked", func() bool { d := topicInBucket(t, b, topic); return d != nil && d.DeletedMS != 0 })
	return topic
}

func deletionMarks(t testing.TB, c *Catalog) []string {
	t.Helper()
	names, err := c.disk.list(c.disk.path(deletedDir))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestSweepEmptiesThePrefixOfADeletedTopic(t *testing.T) { // case 3-31
	b := objstoretest.NewFaulty(nil)
	clock := newHandClock()
	n := newNode(t, b)
	n.clock = clock.read
	c := n.start()
	known(t, c)
	other := create(t, c, "t.x", 1, nil) // its prefix begins alike
	old := deletedTopic(t, c, b, "t", 2*sweepBatch+sweepBatch/2)
	anew := create(t, c, "t", 1, nil)
	putObject(t, b, topicPrefix("t", anew.ID())+"0/x.log", []byte("theirs"))
	prefix := topicPrefix("t", old.ID())
	kept := append(keysBelow(t, b, topicPrefix("t", anew.ID())), keysBelow(t, b, topicPrefix("t.x", other.ID()))...)
	before := len(keysBelow(t, b, prefix))

	clock.advance(time.Hour - time.Millisecond)
	if next, err := c.sweepDue(); err != nil || next <= 0 || next > sweepLook {
		t.Errorf("before the grace period is over: next look in %v, %v", next, err)
	}
	if got := len(keysBelow(t, b, prefix)); got != before || len(deletionMarks(t, c)) != 1 {
		t.Fatalf("before the grace period is over %d of %d objects are left", got, before)
	}

	var busy, most atomic.Int64
	b.Before(func(_ context.Context, call objstoretest.Call) error {
		if call.Op == objstoretest.OpDelete {
			now := busy.Add(1)
			for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
			}
		}
		return nil
	})
	b.After(func(_ context.Context, call objstoretest.Call) error {
		if call.Op == objstoretest.OpDelete {
			busy.Add(-1)
		}
		return nil
	})
	clock.advance(time.Millisecond)
	c.sweeper.wake()
	eventually(t, "prefix empty", func() bool { return len(keysBelow(t, b, prefix)) == 0 })
	eventually(t, "deletion forgotten here", func() bool { return len(deletionMarks(t, c)) == 0 })
	if got := most.Load(); got < 1 || got > sweepDeletes {
		t.Errorf("%d deletions at once, at most %d are meant", got, sweepDeletes)
	}
	for _, key := range kept {
		if !slices.Contains(keysBelow(t, b, ""), key) {
			t.Errorf("%s is gone", key)
		}
	}
	if got, err := c.Topic("t"); err != nil || got.ID() != anew.ID() {
		t.Errorf("the topic of the same name: %v, %v", got, err)
	}
	b.Before(nil)
	b.After(nil)
	b.ResetCalls()
	c.sweeper.wake()
	next, err := c.sweepDue()
	asked := b.Count(objstoretest.OpList, objstoretest.OpDelete) // the watchers read meanwhile
	if next != 0 || err != nil || asked != 0 {
		t.Errorf("afterwards: next look in %v, %v, %d requests", next, err, asked)
	}
}

func TestSweepFollowsALiveGracePeriod(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	clock := newHandClock()
	n := newNode(t, b)
	n.clock = clock.read
	c := n.start()
	known(t, c)
	old := deletedTopic(t, c, b, "t", 3)
	clock.advance(10 * time.Second)
	if _, err := c.AlterCluster(t.Context(), map[string]any{propGCGrace: 10_000}, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "prefix empty", func() bool { return len(keysBelow(t, b, topicPrefix("t", old.ID()))) == 0 })
}

// A mark from the future, by a clock that is ahead, must not be due at once, and
// the wait for it must not be longer than the time between two looks.
func TestMarkFromTheFuture(t *testing.T) {
	c := newNode(t, objstoretest.NewFaulty(nil)).start()
	known(t, c)
	for _, ms := range []int64{time.Now().Add(time.Hour).UnixMilli(), 1 << 62} {
		mark := &topicData{Name: "t", ID: newID(), Partitions: 1, Revision: 2, DeletedMS: ms}
		if c.sweepable(mark) {
			t.Errorf("deleted_ms %d is due", ms)
		}
		if wait := c.untilSweep(mark, 0); wait != sweepLook {
			t.Errorf("deleted_ms %d: next look in %v", ms, wait)
		}
	}
}

// Whichever request fails, and whether it took effect or not, the rest is swept
// later, by the same process or after a restart; the description is never gone
// before the other objects.
func TestSweepIsCutShortAnywhere(t *testing.T) {
	const objects = 7
	for _, restart := range []bool{false, true} {
		for _, after := range []bool{false, true} {
			for k, done := 0, false; !done; k++ {
				name := fmt.Sprintf("restart=%v/after=%v/call %d", restart, after, k)
				done = sweepWithFault(t, name, objects, k, restart, after)
				if k > 10*objects {
					t.Fatal("it does not come to an end")
				}
			}
		}
	}
}

// sweepWithFault reports whether the sweep came through without reaching call k.
func sweepWithFault(t *testing.T, name string, objects, k int, restart, after bool) (through bool) {
	b := objstoretest.NewFaulty(nil)
	clock := newHandClock()
	n := newNode(t, b)
	n.clock = clock.read
	c := n.start()
	known(t, c)
	old := deletedTopic(t, c, b, "t", objects)
	anew := create(t, c, "t", 1, nil)
	prefix, description := topicPrefix("t", old.ID()), topicObject("t", old.ID())
	eventually(t, "mark noted", func() bool { return len(c.sweeper.all()) == 1 })

	var calls, faults atomic.Int64
	hook := func(_ context.Context, call objstoretest.Call) error {
		if !strings.HasPrefix(call.Key, prefix) {
			return nil
		}
		if restart && calls.Load() > int64(k) || calls.Add(1) == int64(k)+1 {
			faults.Add(1) // until a restart, nothing works after the first one
			return &objstore.OpError{Op: string(call.Op), Key: call.Key, Kind: objstore.ErrUnavailable}
		}
		return nil
	}
	if after {
		b.After(hook)
	} else {
		b.Before(hook)
	}
	clock.advance(2 * time.Hour)
	c.sweeper.wake()
	ordered := func() {
		t.Helper()
		if keys := keysBelow(t, b, prefix); len(keys) > 0 && !slices.Contains(keys, description) {
			t.Fatalf("%s: %d objects are left, the description is not", name, len(keys))
		}
	}
	eventually(t, "fault or end", func() bool {
		ordered()
		return faults.Load() > 0 || len(deletionMarks(t, c)) == 0
	})
	if faults.Load() == 0 {
		through = true
	}
	if restart {
		stop(t, c)
		b.Before(nil)
		b.After(nil)
		ordered()
		c = n.start()
	}
	eventually(t, name+": swept", func() bool { return len(keysBelow(t, b, prefix)) == 0 && len(deletionMarks(t, c)) == 0 })
	if topicInBucket(t, b, anew) == nil {
		t.Errorf("%s: the new topic of that name is gone", name)
	}
	stop(t, c)
	return through
}

// Who finds the mark of another node when it lists the bucket sweeps it, also on
// an empty disk.
func TestSweepOfAnotherNodesTopic(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	c := newNode(t, b).start()
	known(t, c)
	old := deletedTopic(t, c, b, "t", 5)
	keep := create(t, c, "keep", 1, nil)
	eventually(t, "description in the bucket", func() bool { return topicInBucket(t, b, keep) != nil })
	stop(t, c)

	clock := newHandClock()
	clock.advance(2 * time.Hour)
	other := newNode(t, b)
	other.clock = clock.read
	c = other.start()
	eventually(t, "swept", func() bool { return len(keysBelow(t, b, topicPrefix("t", old.ID()))) == 0 })
	known(t, c)
	eventually(t, "nothing left to be done", func() bool { return len(c.sweeper.all()) == 0 })
	if topicInBucket(t, b, keep) == nil {
		t.Error("a living topic was swept")
	}
}

// A description that says again that the topic lives is no reason to delete its
// objects, and none to forget the deletion.
func TestSweepConfirmsTheMark(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	clock := newHandClock()
	n := newNode(t, b)
	n.clock = clock.read
	c := n.start()
	known(t, c)
	old := deletedTopic(t, c, b, "t", 4)
	eventually(t, "mark noted", func() bool { return len(c.sweeper.all()) == 1 })
	mark, before := c.sweeper.all()[0], len(keysBelow(t, b, topicPrefix("t", old.ID())))
	for _, name := range []string{"damaged", "alive"} {
		raw := []byte("{")
		if name == "alive" {
			revived := *mark
			revived.DeletedMS, revived.Revision = 0, 9
			var err error
			if raw, err = encodeDocument(formatTopic, &revived); err != nil {
				t.Fatal(err)
			}
		}
		putObject(t, b, topicObject("t", old.ID()), raw)
		if err := c.sweepTopic(t.Context(), mark, nil); err == nil {
			t.Fatalf("%s: it was swept", name)
		}
		if got := len(keysBelow(t, b, topicPrefix("t", old.ID()))); got != before {
			t.Fatalf("%s: %d objects are left of %d", name, got, before)
		}
		eventually(t, "marked again", func() bool {
			raw, _, err := b.Inner().Get(t.Context(), topicObject("t", old.ID()), maxDocumentBytes)
			var data topicData
			return err == nil && decodeDocument("", formatTopic, raw, &data) == nil && data.DeletedMS == mark.DeletedMS
		})
	}
	if got := topicInBucket(t, b, old).Revision; got != 10 {
		t.Errorf("the mark has revision %d, want one more than what it replaces", got)
	}
	clock.advance(2 * time.Hour)
	c.sweeper.wake()
	eventually(t, "swept", func() bool { return len(keysBelow(t, b, topicPrefix("t", old.ID()))) == 0 })
}

// A store that goes on listing what it has deleted is not asked for ever.
func TestSweepOfAStoreThatForgetsDeletions(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	n := newNode(t, undying{b})
	c := n.start()
	known(t, c)
	old := deletedTopic(t, c, b, "t", 3)
	eventually(t, "mark noted", func() bool { return len(c.sweeper.all()) == 1 })
	err := c.sweepTopic(t.Context(), c.sweeper.all()[0], nil)
	if !errors.Is(err, objstore.ErrUnusable) {
		t.Errorf("got %v", err)
	}
	if topicInBucket(t, b, old) == nil {
		t.Error("the description went first")
	}
}

// undying does not delete, and says it has.
type undying struct{ objstore.Bucket }

func (u undying) Delete(ctx context.Context, key string) error {
	if strings.HasSuffix(key, ".log") {
		return nil
	}
	return u.Bucket.Delete(ctx, key)
}

func TestGuardedClock(t *testing.T) {
	early, late := time.Unix(100, 0), time.Unix(200, 0)
	if got := earlier(early, late); !got.Equal(early) {
		t.Errorf("earlier gives %v", got)
	}
	if got := earlier(late, early); !got.Equal(early) {
		t.Errorf("earlier gives %v", got)
	}
	now := guardedClock()
	a := now()
	b := now()
	if b.Before(a) || time.Since(a).Abs() > time.Minute {
		t.Errorf("the clock reads %v, then %v", a, b)
	}
}
