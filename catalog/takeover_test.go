package catalog

import (
	"errors"
	"testing"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/partition"
)

// A node that another one has taken a topic over from neither deletes nor alters
// it, also before it has noticed; the other one does.
func TestTakenOverTopicIsNotChanged(t *testing.T) {
	for _, noticed := range []bool{false, true} {
		b := objstoretest.NewFaulty(nil)
		c := newNode(t, b).start()
		known(t, c)
		allOn(t, c)
		topic := cold(t, c, "t")
		other := newNode(t, b).start()
		known(t, other)
		allOn(t, other)
		theirs, err := other.Topic("t")
		if err != nil {
			t.Fatal(err)
		}
		serving(t, theirs, 0)
		if noticed {
			if lost, err := topic.partitions[0].CheckOwner(t.Context()); !lost || err != nil {
				t.Fatalf("takeover: %v, %v", lost, err)
			}
		}

		err = c.AlterTopic(t.Context(), "t", map[string]string{propFlush: "7"}, nil)
		if !errors.Is(err, ErrTakenOver) || !errors.Is(err, partition.ErrNotHosted) {
			t.Errorf("noticed %t: altered: %v", noticed, err)
		}
		if err := c.DeleteTopic(t.Context(), "t"); !errors.Is(err, ErrTakenOver) {
			t.Errorf("noticed %t: deleted: %v", noticed, err)
		}
		if got, err := c.Topic("t"); got != topic || err != nil || len(deletionMarks(t, c)) != 0 {
			t.Errorf("noticed %t: the topic here: %v, marks %v", noticed, err, deletionMarks(t, c))
		}
		if data := topicInBucket(t, b, topic); data.DeletedMS != 0 || data.Revision != 1 {
			t.Errorf("noticed %t: the bucket says %+v", noticed, data)
		}

		if err := other.AlterTopic(t.Context(), "t", map[string]string{propFlush: "7"}, nil); err != nil {
			t.Errorf("the owner alters: %v", err)
		}
		if err := other.DeleteTopic(t.Context(), "t"); err != nil {
			t.Errorf("the owner deletes: %v", err)
		}
		// The owner's mark counts here too.
		if _, err := c.lookForDeletions(t.Context(), nil); err != nil {
			t.Error(err)
		}
		if _, err := c.Topic("t"); !errors.Is(err, ErrTopicNotFound) {
			t.Errorf("after the owner has deleted it: %v", err)
		}
	}
}

// With the store away nobody can be asked, and what is known counts.
func TestTopicIsDeletedWhileTheStoreIsAway(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	c := newNode(t, b).start()
	known(t, c)
	allOn(t, c)
	topic := cold(t, c, "t")
	failing(b, objstore.ErrUnavailable, everything)
	if err := c.DeleteTopic(t.Context(), "t"); err != nil {
		t.Errorf("deleted: %v", err)
	}
	b.Before(nil)
	eventually(t, "marked", func() bool { return topicInBucket(t, b, topic).DeletedMS != 0 })
}
