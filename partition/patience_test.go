package partition

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
)

// Whoever evicts while an upload runs in the background waits for it as long as it
// moves, however long that takes.
func TestEvictWaitsForAnUploadThatMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		p := r.start()
		defer r.stop()
		<-p.Opened()
		fill(t, p, "k", 20)
		if err := p.enter(t.Context()); err != nil { // background work
			t.Fatal(err)
		}
		const work = 3 * evictPatience
		go func() {
			for range 24 {
				time.Sleep(work / 24)
				p.moved.Store(time.Now().UnixNano())
			}
			p.leave()
		}()
		begun := time.Now()
		evict(t, p)
		if took := time.Since(begun); took < work {
			t.Fatalf("evicted after %v, while the background work was still at it", took)
		}
	})
}

// An operator's compaction ends the background's; another operator's waits.
func TestCompactionsTakeTurns(t *testing.T) {
	r := newRig(t)
	p := r.open()
	ctx, end, err := p.compactions.begin(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	p.compactions.preempt()
	if ctx.Err() == nil {
		t.Fatal("the background goes on")
	}
	end()
	ctx, end, err = p.compactions.begin(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, err := p.Compact(t.Context())
		done <- err
	}()
	p.compactions.preempt()
	if ctx.Err() != nil {
		t.Fatal("an operator's compaction was ended by another")
	}
	end()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A replica that finds an object gone, and cannot ask whether there is a newer
// manifest, does not call that damage.
func TestReplicaThatCannotAsk(t *testing.T) {
	a := newRig(t)
	w := a.open()
	fill(t, w, "k", 20)
	evict(t, w)
	b := a.replica()
	b.settings.ReplicaInterval = time.Hour
	p := b.open()
	b.reaches(20)
	a.store.Before(func(_ context.Context, c objstoretest.Call) error {
		if strings.HasSuffix(c.Key, ".log") {
			return objstore.ErrNotFound
		}
		return objstore.ErrUnavailable
	})
	defer a.store.Before(nil)
	if _, err := get(p, "k-003"); !errors.Is(err, ErrNotReady) {
		t.Fatal(err)
	}
}

// An eviction with a target uploads everything, and leaves no more records on local
// disk than was asked for.
func TestEvictToATargetUploads(t *testing.T) {
	r := newRig(t)
	p := r.open()
	fill(t, p, "k", 5)
	st, err := p.Evict(t.Context(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if st.CloudLast == nil || *st.CloudLast != 4 || *st.LocalStart != 0 {
		t.Fatalf("the bucket ends at %v, the local log begins at %d", st.CloudLast, *st.LocalStart)
	}
	fill(t, p, "l", 200) // many groups, and a note of each in the log
	target := int64(6 << 10)
	if st, err = p.Evict(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	if *st.CloudLast != 204 || st.LocalBytes > target || *st.LocalStart == *st.HighWatermark {
		t.Fatalf("the bucket ends at %d, %d bytes are left, asked for %d", *st.CloudLast, st.LocalBytes, target)
	}
}
