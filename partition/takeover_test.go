package partition

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
)

// Two writers on one prefix: the older one stops and says so, and nothing that
// the newer one acknowledged is lost.
func TestOlderWriterIsFenced(t *testing.T) { // cases 7-17, 7-18
	a := newRig(t)
	pa := a.open()
	want := fill(t, pa, "a", 40)
	evict(t, pa)
	b := a.other("node-b")
	pb := b.open()
	maps.Copy(want, fill(t, pb, "b", 40))
	evict(t, pb)

	put(t, pa, "late", "never uploaded")
	if _, err := pa.Evict(t.Context(), 0); !errors.Is(err, ErrNotHosted) {
		t.Fatalf("evict by the older writer: %v", err)
	}
	if _, err := get(pa, "a-000"); !errors.Is(err, ErrNotHosted) {
		t.Fatalf("lookup at the older writer: %v", err)
	}
	verify(t, pb, want, nil)

	// Its disk has a tail that the bucket lacks: it does not take over again.
	b.stop()
	a.stop()
	pa = a.start()
	t.Cleanup(a.stop)
	eventually(t, "fenced again", func() bool { _, err := get(pa, "a-000"); return errors.Is(err, ErrNotHosted) })
	pb = b.open()
	verify(t, pb, want, nil)
}

// A disk that another writer has overtaken, but that holds nothing of its own,
// begins anew where the bucket ends.
func TestOvertakenDiskWithoutTailBeginsAnew(t *testing.T) {
	a, want := overtaken(t)
	p := a.open()
	verify(t, p, want, nil)
	if off := put(t, p, "next", "v"); off != 80 {
		t.Fatalf("next offset %d, want 80", off)
	}
}

// overtaken is a stopped node whose every record is in the bucket, followed by
// those of another node, and what a reader of both must find.
func overtaken(t *testing.T) (*rig, map[string]string) {
	t.Helper()
	a := newRig(t)
	want := fill(t, a.open(), "a", 40)
	evict(t, a.p)
	a.stop()
	b := a.other("node-b")
	maps.Copy(want, fill(t, b.open(), "b", 40))
	evict(t, b.p)
	b.stop()
	return a, want
}

// The same when the store was away as the overtaken disk started, so that it
// learns of it only later.
func TestOvertakenDiskLearnsLater(t *testing.T) {
	a, want := overtaken(t)
	a.store.Before(func(context.Context, objstoretest.Call) error { return objstore.ErrUnavailable })
	p := a.open()
	a.store.Before(nil)
	eventually(t, "the other writer's records", func() bool { _, err := get(p, "b-039"); return err == nil })
	verify(t, p, want, nil)
	if off := put(t, p, "next", "v"); off != 80 {
		t.Fatalf("next offset %d, want 80", off)
	}
}

// However far beginning anew came before the power went off, the next start
// begins anew, or has.
func TestPowerCutWhileBeginningAnew(t *testing.T) {
	for at := 0; ; at++ {
		a, want := overtaken(t)
		w := &power{disk: a.fs.(*vfs.MemFS), cut: make(chan struct{})}
		w.mu.at, w.mu.rng = at, rand.New(rand.NewPCG(uint64(at), 0))
		w.wire(a)
		a.dying = true
		p := a.start()
		select {
		case <-w.cut:
		case <-p.Opened():
		}
		a.stop()
		w.mu.Lock()
		after := w.mu.after
		w.mu.Unlock()
		if after == nil {
			t.Logf("%d steps", at)
			return
		}
		a.store.Before(nil)
		a.store.After(nil)
		a.fs, a.dying = after, false
		p = a.open()
		verify(t, p, want, nil)
		if off := put(t, p, "next", "v"); off != 80 {
			t.Fatalf("step %d: next offset %d, want 80", at, off)
		}
		a.stop()
	}
}
