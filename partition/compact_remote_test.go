package partition

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/record"
)

// Records whose keys have newer ones that are not in the bucket yet stay, and do not
// make one segment of everything.
func TestGroupsStayWithinASegment(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	r.settings.RemoteCodec = record.None
	p := r.open()
	keys := numbered(200)
	for i, k := range keys {
		put(t, p, k, fmt.Sprintf("%0200d", i))
	}
	evict(t, p)
	var newer []record.Record
	for _, k := range keys {
		newer = append(newer, record.Record{Key: []byte(k), Value: []byte{}})
	}
	// In one batch, which seals no segment: nothing is uploaded meanwhile.
	if _, err := p.Append(t.Context(), newer); err != nil {
		t.Fatal(err)
	}
	if err := p.compactRemote(t.Context(), p.serving.Load(), p.settings.Load(), false, new(CompactionStats)); err != nil {
		t.Fatal(err)
	}
	if records, _ := remoteRecords(p); records != int64(len(keys)) {
		t.Fatalf("%d records are left in the bucket for %d keys", records, len(keys))
	}
	for _, seg := range p.tier.Snapshot().Segments {
		if limit := r.settings.SegmentBytes * 3 / 2; seg.Size > limit {
			t.Fatalf("segment of %d bytes; at most some %d are wanted", seg.Size, limit)
		}
	}
}

// What is merged with newer segments again and again grows old all the same: its
// tombstones go, and retention takes it.
func TestMergedSegmentsGrowOld(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	r.settings.SegmentBytes = 1 << 20
	r.settings.DirtyRatio = 0.2
	r.settings.DeleteRetention = 4 * time.Hour
	r.settings.RetentionAge = 8 * time.Hour
	clock := r.clock()
	p := r.open()
	put(t, p, "deleted", "v")
	put(t, p, "cold", "v")
	del(t, p, "deleted")
	keys := numbered(20)
	for round := range 24 {
		for i, k := range keys {
			put(t, p, k, fmt.Sprintf("%d %0100d", round, i))
		}
		evict(t, p)
		if err := p.compactDue(t.Context()); err != nil {
			t.Fatal(err)
		}
		retained(t, p, *p.settings.Load())
		if _, tombstones := remoteRecords(p); tombstones != 0 && round > 14 {
			t.Fatalf("%d tombstones are left after %v", tombstones, time.Duration(round)*30*time.Minute)
		}
		clock.add(30 * time.Minute)
	}
	if _, err := get(p, "cold"); !errors.Is(err, ErrNotRetained) && !errors.Is(err, ErrKeyNotFound) {
		t.Fatalf("cold key: %v", err)
	}
	for _, k := range keys {
		mustGet(t, p, k)
	}
	if n := len(p.tier.Snapshot().Segments); n > 2*ages {
		t.Fatalf("%d segments are left", n)
	}
}

// Uploads go in one manifest after a compaction without uploads, also if the store fails in between.
func TestUploadAfterCompactionWithoutUploadsFails(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	r.settings.RemoteWrite = false
	p := r.open()
	keys := numbered(10)
	states := map[int64]map[string]answer{0: answers(t, p, keys)}
	for round := range 12 {
		for i, k := range keys {
			if (round+i)%5 != 0 || round == 11 {
				put(t, p, k, fmt.Sprintf("%d %0100d", round, i))
			} else {
				del(t, p, k)
			}
		}
		// A key of its own keeps every segment alive.
		put(t, p, fmt.Sprintf("own-%d", round), "v")
		if err := p.log.Load().Roll(t.Context()); err != nil {
			t.Fatal(err)
		}
		states[p.log.Load().State().HighWatermark] = answers(t, p, keys)
	}
	compact(t, p)
	puts := 0
	r.store.Before(func(_ context.Context, c objstoretest.Call) error {
		if c.Op == objstoretest.OpPut && strings.HasSuffix(c.Key, ".log") {
			if puts++; puts > 3 {
				return objstore.ErrInvalid
			}
		}
		return nil
	})
	s := r.settings
	s.RemoteWrite, s.DirtyRatio = true, 2
	p.Configure(s)
	if _, err := p.Evict(t.Context(), 0); err == nil {
		t.Fatal("no error")
	}
	next := p.tier.Snapshot().Next()
	replica := r.other("replica")
	replica.options = func(o *Options) { o.Replica = true }
	sameAnswers(t, fmt.Sprintf("bucket up to %d", next), answers(t, replica.open(), keys), states[next])
	r.store.Before(nil)
	evict(t, p) // what was stored is not stored again
	next = p.tier.Snapshot().Next()
	eventually(t, "replica follows", func() bool { return replica.p.position() == next })
	sameAnswers(t, "all of it", answers(t, replica.p, keys), states[next])
}
