package catalog

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"keyhole/objstore/objstoretest"
	"keyhole/partition"
	"keyhole/record"
)

// sameAnswers compares the replica's answers with the writer's, key by key, and
// their entity tags.
func sameAnswers(t *testing.T, w, r *Topic, keys int) {
	t.Helper()
	wp, rp := serving(t, w, 0), serving(t, r, 0)
	for i := range keys {
		key := fmt.Appendf(nil, "key-%d", i)
		want, wantErr := wp.Lookup(t.Context(), key, partition.Query{})
		got, gotErr := rp.Lookup(t.Context(), key, partition.Query{})
		switch {
		case wantErr != nil:
			if !errors.Is(gotErr, wantErr) {
				t.Errorf("%s: %v, the writer says %v", key, gotErr, wantErr)
			}
		case gotErr != nil:
			t.Errorf("%s: %v", key, gotErr)
		case !slices.Equal(got.Value, want.Value) || r.ETag(0, got.Epoch, got.Offset) != w.ETag(0, want.Epoch, want.Offset) || got.Timestamp != want.Timestamp:
			t.Errorf("%s: %q at %d, the writer has %q at %d", key, got.Value, got.Offset, want.Value, want.Offset)
		}
	}
}

// caughtUp waits until the replica reflects everything below next.
func caughtUp(t *testing.T, r *Topic, next int64) {
	t.Helper()
	p := serving(t, r, 0)
	_, err := p.Lookup(t.Context(), []byte("none"), partition.Query{MinPosition: next, Wait: patience})
	if !errors.Is(err, partition.ErrKeyNotFound) {
		t.Fatalf("position %d: %v", next, err)
	}
}

func TestReplicaAnswersAsTheWriterDoes(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	w := startWriter(t, b)
	topic := create(t, w, "t", 1, map[string]string{propTopicIndex: "true", propSegmentBytes: "2048"})
	p := serving(t, topic, 0)
	publish := func() int64 {
		t.Helper()
		status, err := p.Evict(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		return *status.HighWatermark
	}
	appendKeys(t, p, 0, 100)
	next := publish()

	rb := seenBy(b)
	n := newReplica(t, rb)
	r := n.start()
	if _, err := r.AlterCluster(t.Context(), map[string]any{propReplicaPace: 10}, nil); err != nil {
		t.Fatal(err)
	}
	known(t, r)
	got, err := r.Topic("t")
	if err != nil {
		t.Fatal(err)
	}
	caughtUp(t, got, next)
	sameAnswers(t, topic, got, 101)

	// Not uploaded: not seen, and nothing of it said.
	appendKeys(t, p, 100, 101)
	if _, err := find(t, serving(t, got, 0), 100); !errors.Is(err, partition.ErrKeyNotFound) {
		t.Errorf("a record that is not in the bucket: %v", err)
	}
	// Overwritten, deleted and compacted in the bucket.
	for round := range 3 {
		appendKeys(t, p, 0, 50)
		if _, err := p.Append(t.Context(), []record.Record{{Key: fmt.Appendf(nil, "key-%d", 60+round)}}); err != nil {
			t.Fatal(err)
		}
		next = publish()
		caughtUp(t, got, next)
		sameAnswers(t, topic, got, 102)
		if done, err := p.Compact(t.Context()); err != nil {
			t.Fatal(err)
		} else if done.Done.RecordsRemoved == 0 {
			t.Error("nothing was compacted")
		}
		sameAnswers(t, topic, got, 102)
	}
	if _, err := serving(t, got, 0).Append(t.Context(), []record.Record{{Key: []byte("k"), Value: []byte("v")}}); !errors.Is(err, partition.ErrNotHosted) {
		t.Errorf("a write: %v", err)
	}
	if s := serving(t, got, 0).Status(); s.SingleWriter || s.Fenced {
		t.Errorf("status is %+v", s)
	}
	eventually(t, "ready", func() bool { s := r.Ready(); return s.Ready && len(s.Degraded)+len(s.Damaged) == 0 })
	stop(t, r)
	noWrites(t, rb)

	// Again on the same disk, and on an empty one.
	for _, again := range []*node{n, newReplica(t, rb)} {
		r := again.start()
		known(t, r)
		got, err := r.Topic("t")
		if err != nil {
			t.Fatal(err)
		}
		caughtUp(t, got, next)
		sameAnswers(t, topic, got, 102)
		stop(t, r)
	}
	noWrites(t, rb)
}

// The topic is asked for an index after its segments were uploaded and evicted:
// the replica follows that too.
func TestReplicaFollowsAnIndexThatIsAskedFor(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	w := startWriter(t, b)
	topic := create(t, w, "t", 1, nil)
	p := serving(t, topic, 0)
	appendKeys(t, p, 0, 20)
	if _, err := p.Evict(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	r := newReplica(t, seenBy(b)).start()
	known(t, r)
	got, err := r.Topic("t")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := find(t, serving(t, got, 0), 3); !errors.Is(err, partition.ErrNotIndexed) {
		t.Errorf("without an index: %v", err)
	}
	if err := w.AlterTopic(t.Context(), "t", map[string]string{propTopicIndex: "true"}, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "found", func() bool {
		r.wakeFollower()
		_, err := find(t, serving(t, got, 0), 3)
		return err == nil
	})
}
