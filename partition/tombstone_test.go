package partition

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/tiered"
)

// Tombstones stay for delete.retention.ms, and as long as anything older is left.
func TestTombstonesGoLast(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	r.settings.DeleteRetention = time.Hour
	now := time.Now()
	var mu sync.Mutex
	r.options = func(o *Options) {
		o.Now = func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			return now
		}
	}
	p := r.open()
	keys := numbered(30)
	for i, k := range keys {
		put(t, p, k, fmt.Sprintf("%0100d", i))
	}
	evict(t, p)
	for _, k := range keys[:10] {
		del(t, p, k)
	}
	want := answers(t, p, keys)
	compact(t, p)
	if records, tombstones := remoteRecords(p); records != 30 || tombstones != 10 {
		t.Fatalf("young tombstones: %d records, %d tombstones", records, tombstones)
	}
	if h := p.tier.Snapshot().DeleteHorizon; h != 0 {
		t.Fatalf("horizon %d", h)
	}
	mu.Lock()
	now = now.Add(time.Hour)
	mu.Unlock()
	compact(t, p)
	if records, tombstones := remoteRecords(p); records != 20 || tombstones != 0 {
		t.Fatalf("old tombstones: %d records, %d tombstones", records, tombstones)
	}
	if h := p.tier.Snapshot().DeleteHorizon; h != 40 {
		t.Fatalf("horizon %d, want 40", h)
	}
	sameAnswers(t, "compacted", answers(t, p, keys), want)
	r.stop()
	b := r.other("node-b")
	sameAnswers(t, "empty disk", answers(t, b.open(), keys), want)
}

// Without a store tombstones go from the local log.
func TestTombstonesGoWithoutAStore(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	r.noStore = true
	p := r.open()
	keys := numbered(50)
	for round := range 2 {
		for i, k := range keys {
			put(t, p, k, fmt.Sprintf("%d %0100d", round, i))
		}
	}
	for _, k := range keys[:25] {
		del(t, p, k)
	}
	want := answers(t, p, keys)
	compact(t, p)
	sameAnswers(t, "compacted", answers(t, p, keys), want)
	if n := localRecords(t, p); n != 25 {
		t.Fatalf("%d records are left for 25 live keys", n)
	}
	r.stop()
	if err := r.fs.RemoveAll("/data/t/0/kv_index"); err != nil {
		t.Fatal(err)
	}
	p = r.open()
	sameAnswers(t, "index built anew", answers(t, p, keys), want)
	if off := put(t, p, "next", "v"); off != 125 {
		t.Fatalf("next offset %d, want 125", off)
	}
}

// A tombstone stays in the local log of a node whose store was taken away, even if
// the log does not know that the bucket has something: it goes to the bucket when
// the store is back.
func TestTombstonesStayWhereThereWasAStore(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	p := r.open()
	lost := errors.New("reply lost")
	r.store.After(func(_ context.Context, c objstoretest.Call) error {
		if c.Op == objstoretest.OpPut && c.Key == tiered.ManifestKey(tiered.Prefix("t", topicID, 0)) {
			// Nothing comes through from here on, so nothing is noted either.
			r.store.Before(func(context.Context, objstoretest.Call) error { return objstore.ErrUnavailable })
			return lost
		}
		return nil
	})
	put(t, p, "k", "deleted later")
	if err := p.log.Load().Roll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := p.uploadSealed(t.Context(), p.log.Load(), p.settings.Load(), new(CompactionStats))
	p.leave()
	if err == nil {
		t.Fatal("uploaded and noted")
	}
	r.stop()
	r.noStore = true
	p = r.open()
	del(t, p, "k")
	compact(t, p)
	r.stop()
	r.noStore = false
	r.store.Before(nil)
	r.store.After(nil)
	evict(t, r.open())
	r.stop()
	if res, err := get(r.other("node-b").open(), "k"); !errors.Is(err, ErrKeyNotFound) {
		t.Fatalf("deleted key on an empty disk: %q, %v", res.Value, err)
	}
}

// A tombstone that a newer record has replaced goes like any other record, however
// young it is and although nothing else of its segment goes.
func TestReplacedTombstonesGo(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	r.settings.SegmentBytes = 8 << 10 // no segment is small enough to be merged
	r.settings.RemoteMerge = false
	r.settings.DeleteRetention = time.Hour
	p := r.open()
	fill(t, p, "k", 20)
	del(t, p, "again")
	evict(t, p)
	put(t, p, "again", "v")
	fill(t, p, "l", 20)
	evict(t, p)
	compact(t, p)
	if records, tombstones := remoteRecords(p); records != 41 || tombstones != 0 {
		t.Fatalf("%d records, %d of them tombstones", records, tombstones)
	}
	del(t, p, "last")
	compact(t, p)
	if c := compact(t, p); c.Done.CloudSegments != 0 {
		t.Fatalf("compacted for nothing: %+v", c.Done)
	}
}

// Nor where a store is configured, but the topic uploads nothing and never has.
func TestTombstonesGoWithoutUploads(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	r.settings.RemoteWrite = false
	p := r.open()
	eventually(t, "claimed", p.claimed.Load)
	fill(t, p, "k", 50)
	for i := range 50 {
		del(t, p, fmt.Sprintf("k-%03d", i))
	}
	put(t, p, "stays", "v")
	compact(t, p)
	if n := localRecords(t, p); n != 1 {
		t.Fatalf("%d records are left for one live key", n)
	}
	s := r.settings
	s.RemoteWrite = true
	p.Configure(s)
	evict(t, p)
	r.stop()
	want := map[string]answer{"k-003": {err: "not found"}}
	b := r.other("node-b").open()
	sameAnswers(t, "empty disk", answers(t, b, []string{"k-003"}), want)
	mustGet(t, b, "stays")
}
