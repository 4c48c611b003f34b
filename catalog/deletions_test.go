package catalog

import (
	"errors"
	"testing"
	"time"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
)

func TestDeletionThroughAnotherNodeIsNoticed(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	nb := seenBy(b)
	c := newNode(t, nb).start()
	known(t, c)
	gone, kept := create(t, c, "gone", 1, nil), create(t, c, "kept", 1, nil)
	eventually(t, "both in the bucket", func() bool { return topicInBucket(t, b, gone) != nil && topicInBucket(t, b, kept) != nil })

	nb.ResetCalls()
	seen, err := c.lookForDeletions(t.Context(), nil)
	if err != nil || len(seen) != 2 || nb.Count(objstoretest.OpGet) != 2 {
		t.Fatalf("at first: %v, %v, %d reads", seen, err, nb.Count(objstoretest.OpGet))
	}
	nb.ResetCalls()
	if seen, err = c.lookForDeletions(t.Context(), seen); err != nil || nb.CountKey(topicObject("gone", gone.ID()), objstoretest.OpGetIfChanged) != 1 || nb.Count(objstoretest.OpGet) != 0 {
		t.Errorf("unchanged: %v, %d reads", err, nb.Count(objstoretest.OpGet))
	}

	other := newNode(t, b).start()
	known(t, other)
	if err := other.DeleteTopic(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "marked", func() bool { return topicInBucket(t, b, gone).DeletedMS != 0 })
	at := topicInBucket(t, b, gone).DeletedMS
	failing(nb, objstore.ErrUnavailable, func(c objstoretest.Call) bool { return c.Op == objstoretest.OpGetIfChanged })
	if _, err := c.lookForDeletions(t.Context(), seen); !errors.Is(err, objstore.ErrUnavailable) {
		t.Errorf("while the store is away: %v", err)
	}
	if _, err := c.Topic("gone"); err != nil {
		t.Errorf("while the store is away: %v", err)
	}
	nb.Before(nil)
	if _, err := c.lookForDeletions(t.Context(), seen); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Topic("gone"); !errors.Is(err, ErrTopicNotFound) {
		t.Errorf("afterwards: %v", err)
	}
	if c.disk.hasTopicDir("gone", gone.ID()) {
		t.Error("its files are still there")
	}
	if _, err := c.Topic("kept"); err != nil {
		t.Errorf("the other topic: %v", err)
	}
	// The grace period counts from the deletion, not from when it was noticed.
	eventually(t, "left to the sweeper", func() bool { return len(c.sweeper.all()) == 1 })
	if got := c.sweeper.all()[0].DeletedMS; got != at {
		t.Errorf("deleted at %d, the mark says %d", got, at)
	}
}

// A node whose grace period was made short looks that often from then on, and so
// notices before the objects go.
func TestShortGracePeriodIsFollowed(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	c := newNode(t, b).start()
	known(t, c)
	create(t, c, "t", 1, nil)
	other := newNode(t, b)
	other.noSweep = true
	o := other.start()
	known(t, o)
	if _, err := c.AlterCluster(t.Context(), map[string]any{propLookupTimeout: 1000, propGCGrace: 1000}, nil); err != nil {
		t.Fatal(err)
	}
	if err := o.DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "noticed", func() bool { _, err := c.Topic("t"); return errors.Is(err, ErrTopicNotFound) })
}

func TestDeletionPace(t *testing.T) {
	for grace, want := range map[time.Duration]time.Duration{
		time.Millisecond: 250 * time.Millisecond, time.Second: 250 * time.Millisecond, 10 * time.Second: 2500 * time.Millisecond, time.Minute: 15 * time.Second, time.Hour: 10 * time.Minute, 1<<63 - 1: 10 * time.Minute,
	} {
		if got := deletionPace(grace); got != want {
			t.Errorf("grace period %v: %v, want %v", grace, got, want)
		}
	}
}
