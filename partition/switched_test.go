package partition

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"

	"keyhole/objstore/objstoretest"
)

// Uploads that are switched on while the local log is compacted without them may have
// a segment in hand as it was, so no tombstone goes from another one any more.
func TestUploadsSwitchedOnDuringACompaction(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	r.settings.RemoteWrite = false
	p := r.open()
	put(t, p, "deleted", "v")
	fill(t, p, "k", 10)
	del(t, p, "deleted")
	fill(t, p, "l", 10)
	if err := p.log.Load().Roll(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := r.settings // as a compaction that has begun has them
	after := r.settings
	after.RemoteWrite, after.DirtyRatio = true, 2
	p.settings.Store(&after)
	if err := p.compactLocal(t.Context(), p.serving.Load(), &before, new(CompactionStats)); !errors.Is(err, ErrNotReady) {
		t.Fatalf("the compaction went on: %v", err)
	}
	p.settings.Store(&before)
	if err := p.compactLocal(t.Context(), p.serving.Load(), &before, new(CompactionStats)); err != nil {
		t.Fatal(err)
	}
}

// A compaction that fails again and again, or finds too much that is not in the
// bucket, is tried less and less often.
func TestCompactionBackoff(t *testing.T) {
	d := time.Duration(0)
	for range 20 {
		next := compactionBackoff(d, errBacklog)
		if next < d || next < choreInterval || next > maxCompactionBackoff {
			t.Fatalf("%v behind %v", next, d)
		}
		d = next
	}
	if d != maxCompactionBackoff || compactionBackoff(d, nil) != 0 {
		t.Fatalf("at last %v", d)
	}
}

// A replica that serves reads little at once, and what an outage has left in turn with
// the others.
func TestReplicaCatchesUpInTurn(t *testing.T) {
	a := newRig(t)
	a.settings.SegmentBytes = 8 << 20
	w := a.open()
	put(t, w, "first", "v")
	evict(t, w)
	start := semaphore.NewWeighted(1)
	b := a.replica()
	options := b.options
	b.options = func(o *Options) {
		options(o)
		o.Start = start
	}
	p := b.open()
	b.reaches(1)
	if err := start.Acquire(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	put(t, w, "little", "v")
	evict(t, w)
	b.reaches(2)
	rng := seeded(t)
	for range 40 {
		key := make([]byte, 16<<10)
		for i := range key {
			key[i] = byte(rng.Uint32())
		}
		put(t, w, string(key), "v")
	}
	evict(t, w)
	a.store.ResetCalls()
	eventually(t, "replica has the manifest", func() bool { return p.tier.Snapshot().Next() == 42 })
	eventually(t, "and waits for its turn", func() bool { return len(p.serving.Load().remote) == 2 })
	if n := a.store.Count(objstoretest.OpReadRange); n != 0 || p.position() != 2 {
		t.Errorf("%d reads of key runs out of turn, position %d", n, p.position())
	}
	mustGet(t, p, "first") // it serves on
	start.Release(1)
	b.reaches(42)
}

// An upload whose partition must wait until others have found out what they need not
// upload ends with its context, and goes on in its turn.
func TestJudgementsTakeTurns(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	r.settings.DirtyRatio = 0.5
	turn := semaphore.NewWeighted(1)
	r.options = func(o *Options) { o.Judgements = turn }
	p := r.open()
	for range 3 {
		fill(t, p, "k", 20)
	}
	if err := turn.Acquire(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.compactBeforeUpload(ctx, p.segments(p.log.Load())[:1], p.settings.Load(), new(CompactionStats)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("out of turn: %v", err)
	}
	turn.Release(1)
	evict(t, p)
}
