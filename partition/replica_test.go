package partition

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sync/semaphore"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/record"
)

// replica is a read replica of r's partition, on a disk of its own.
func (r *rig) replica() *rig {
	b := r.other("replica")
	b.settings.ReplicaInterval = 10 * time.Millisecond
	b.options = func(o *Options) {
		o.Replica = true
		o.Bucket = readOnly{o.Bucket, r.t}
	}
	return b
}

// readOnly fails the test if anything is written.
type readOnly struct {
	objstore.Bucket
	t *testing.T
}

func (b readOnly) Put(context.Context, string, io.ReadSeeker, int64, objstore.Condition) (string, error) {
	b.t.Error("a replica writes")
	return "", objstore.ErrDenied
}

func (b readOnly) Delete(context.Context, string) error {
	b.t.Error("a replica deletes")
	return objstore.ErrDenied
}

func (r *rig) reaches(next int64) {
	r.t.Helper()
	defer func() {
		if r.t.Failed() {
			r.t.Logf("replica is at %d, its store: %v", r.p.position(), r.p.StoreTrouble())
		}
	}()
	eventually(r.t, fmt.Sprintf("replica at %d", next), func() bool { return r.p.position() == next })
}

// A replica answers what the bucket has, follows it, and writes nothing.
func TestReplicaFollows(t *testing.T) {
	a := newRig(t)
	a.settings = compacting()
	b := a.replica()
	w := a.open()
	p := b.open() // nothing is in the bucket yet
	if _, err := get(p, "key-000"); !errors.Is(err, ErrKeyNotFound) {
		t.Fatal(err)
	}
	keys := numbered(40)
	for round := range 3 {
		for i, k := range keys {
			if (i+round)%5 == 0 {
				del(t, w, k)
			} else {
				put(t, w, k, fmt.Sprintf("%d %0100d", round, i))
			}
		}
		evict(t, w)
		b.reaches(int64(len(keys) * (round + 1)))
		sameAnswers(t, "replica", answers(t, p, keys), answers(t, w, keys))
	}
	want := answers(t, w, keys)
	put(t, w, keys[0], "not in the bucket yet")
	sameAnswers(t, "replica", answers(t, p, keys), want)
	if _, err := p.Append(t.Context(), []record.Record{{Key: []byte("k"), Value: []byte("v")}}); !errors.Is(err, ErrNotHosted) {
		t.Fatalf("append: %v", err)
	}
	if _, err := p.Compact(t.Context()); !errors.Is(err, ErrNotHosted) {
		t.Fatalf("compact: %v", err)
	}
	st := p.Status()
	if st.LocalStart != nil || st.CloudLast == nil || *st.CloudLast != 119 || *st.IndexLastApplied != 119 {
		t.Fatalf("status %+v", st)
	}
	// Again, with the index of before and the store away.
	b.stop()
	a.store.Before(func(context.Context, objstoretest.Call) error { return objstore.ErrUnavailable })
	p = b.start()
	t.Cleanup(b.stop)
	eventually(t, "trouble noticed", func() bool { return p.StoreTrouble() != nil })
	a.store.Before(nil)
	b.reaches(120)
	sameAnswers(t, "replica after a restart", answers(t, p, keys), want)
}

// Next to a writer that overwrites, deletes, evicts, compacts and cleans up, a
// replica never goes back, never misses a key that is always there, and never
// fails; also where tombstones go at once, so that it may miss deletions and must
// build its index anew beside the one in use. The grace period is by a clock that
// stands still until nobody needs any more what was replaced before.
func TestReplicaUnderLoad(t *testing.T) {
	a := newRig(t)
	a.settings = compacting()
	a.settings.GCGrace = time.Second
	clock := a.clock()
	clock.add(time.Hour) // segments are sealed by another one
	w := a.open()
	keys := numbered(40)
	for i, k := range keys {
		put(t, w, k, fmt.Sprintf("00000000 %0100d", i))
	}
	evict(t, w)
	b := a.replica()
	p := b.open()
	b.reaches(40)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	var lookups [4]atomic.Int64
	for reader := range lookups {
		wg.Go(func() {
			seen, at := map[string]string{}, int64(0)
			for i := 0; ctx.Err() == nil; i++ {
				k := keys[i%30] // these are never deleted
				res, err := get(p, k)
				if err != nil {
					t.Errorf("lookup %s: %v", k, err)
					return
				}
				n := string(res.Value[:8])
				if n < seen[k] || res.Position < at {
					t.Errorf("%s went back from %s to %s, position %d after %d", k, seen[k], n, res.Position, at)
					return
				}
				seen[k], at = n, res.Position
				if _, err := get(p, keys[30+i%10]); err != nil && !errors.Is(err, ErrKeyNotFound) {
					t.Errorf("lookup of a key that comes and goes: %v", err)
					return
				}
				lookups[reader].Add(1)
			}
		})
	}
	// graceOver lets the grace period pass once the replica is at the manifest of now,
	// and all lookups have ended that began before.
	graceOver := func() {
		generation := w.tier.Snapshot().Generation
		eventually(t, "the replica goes by the newest manifest", func() bool {
			v := p.serving.Load()
			return t.Failed() || len(v.remote) == 1 && v.remote[0].Generation >= generation
		})
		for reader := range lookups {
			before := lookups[reader].Load()
			eventually(t, "lookups end", func() bool { return t.Failed() || lookups[reader].Load() >= before+2 })
		}
		clock.add(a.settings.GCGrace + time.Millisecond)
	}
	for n := 1; n <= 40; n++ {
		for i, k := range keys {
			if i >= 30 && (i+n)%3 > 0 {
				del(t, w, k)
			} else if i >= 30 || i%(1+n%4) == 0 {
				put(t, w, k, fmt.Sprintf("%08d %0100d", n, i))
			}
		}
		if n%2 == 0 {
			compact(t, w)
		} else {
			evict(t, w)
		}
		if n%4 == 3 {
			graceOver()
		}
		if n%8 == 0 {
			if _, err := w.Collect(t.Context(), false); err != nil {
				t.Fatal(err)
			}
		}
	}
	compact(t, w)
	next := *w.Status().HighWatermark
	b.reaches(next)
	cancel()
	wg.Wait()
	sameAnswers(t, "replica at rest", answers(t, p, keys), answers(t, w, keys))
	for _, k := range keys { // what needs no reading must say the same
		head, err := p.Lookup(t.Context(), []byte(k), Query{ResolveOnly: true})
		full, err2 := get(p, k)
		if (err == nil) != (err2 == nil) || head.Offset != full.Offset && err == nil {
			t.Fatalf("%s: %d, %v without its value, %d, %v with it", k, head.Offset, err, full.Offset, err2)
		}
	}
	total := int64(0)
	for reader := range lookups {
		total += lookups[reader].Load()
	}
	deleted := testutil.ToFloat64(a.metrics.Collected)
	if total == 0 || deleted == 0 {
		t.Fatalf("%d lookups came through, %v objects were deleted", total, deleted)
	}
	t.Logf("%d lookups, %v objects deleted, %v indexes built beside one in use", total, deleted, testutil.ToFloat64(b.metrics.Rebuilds))
}

// Replicas that start at once build their indexes a few at a time.
func TestReplicaStartsInTurn(t *testing.T) {
	a := newRig(t)
	fill(t, a.open(), "k", 40)
	evict(t, a.p)
	start := semaphore.NewWeighted(1)
	if err := start.Acquire(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	b := a.replica()
	options := b.options
	b.options = func(o *Options) {
		options(o)
		o.Start = start
	}
	a.stop()
	a.store.ResetCalls()
	p := b.start()
	eventually(t, "index opened", func() bool { return p.feed.open() != nil })
	b.stop()
	if n := a.store.Count(objstoretest.OpReadRange); n != 0 {
		t.Fatalf("%d reads of key runs out of turn", n)
	}
	start.Release(1)
	b.open()
	b.reaches(40)
}

// Whoever waits for a replica to open does not wait for one that was closed.
func TestReplicaClosedBeforeItOpened(t *testing.T) {
	a := newRig(t)
	a.store.Before(func(context.Context, objstoretest.Call) error { return objstore.ErrUnavailable })
	b := a.replica()
	p := b.start()
	eventually(t, "store asked", func() bool { return p.StoreTrouble() != nil })
	b.stop()
	select {
	case <-p.Opened():
	default:
		t.Fatal("closed and not opened")
	}
}

// A replica purges by the manifest that it serves by, and not by a newer one that it
// has read and not applied.
func TestReplicaPurgesByWhatItServes(t *testing.T) {
	a := newRig(t)
	p := a.open()
	put(t, p, "k", "old")
	evict(t, p)
	b := a.replica()
	b.settings.ReplicaInterval = time.Hour
	q := b.open()
	m := q.tier.Snapshot()
	put(t, p, "k", "new")
	evict(t, p)
	s := a.settings
	s.RetentionBytes = 1
	if err := p.expire(t.Context(), &s, new(CompactionStats)); err != nil {
		t.Fatal(err)
	}
	if _, err := q.tier.Follow(t.Context()); err != nil {
		t.Fatal(err)
	}
	if start := q.tier.Snapshot().StartOffset; start != 1 {
		t.Fatalf("partition begins at %d, want 1", start)
	}
	if err := q.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := q.serveReplica(t.Context(), q.feed.open(), m)
	q.leave()
	if err != nil {
		t.Fatal(err)
	}
	if string(mustGet(t, q, "k").Value) != "old" {
		t.Fatal("not what was there at this position")
	}
}
