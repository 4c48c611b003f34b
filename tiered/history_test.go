package tiered

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/record"
)

// Random histories of uploads, rewrites, truncations, collections and restarts over
// a store that fails and loses replies: the bucket alone always has every record
// that is alive, whole, and never one that was not written.
func TestRandomHistories(t *testing.T) {
	seeds := newRand(t)
	for range 12 {
		rng := rand.New(rand.NewPCG(seeds.Uint64(), 0))
		h := &history{t: t, rng: rng, b: newBucket(), fs: vfs.NewCrashableMem(), build: newBuilder(t, 0), dead: make(map[int64]bool)}
		h.build.codecs = []record.Codec{record.None, record.Snappy}
		h.o = nodeOptions{chunkBytes: 300 + rng.Int64N(2000), recode: Recode{Merge: rng.IntN(2) == 0, Codec: record.Snappy}, unconditional: rng.IntN(3) == 0}
		h.open()
		for range 80 {
			h.step()
			if t.Failed() {
				return
			}
		}
		h.failures(0)
		h.upload()
		h.check()
		late := CollectOptions{Orphans: true, Now: func() time.Time { return time.Now().Add(time.Hour) }}
		h.open()
		collected(t, h.n, late)
		m, orphans := wantClean(t, h.b)
		if len(orphans) != 0 || len(m.Removed) != 0 || len(objectsOf(t, h.b)) != 1+2*len(m.Segments) {
			t.Fatalf("objects %v with %d segments", objectsOf(t, h.b), len(m.Segments))
		}
		h.check()
	}
}

// history is one of TestRandomHistories, and the model of what must be there.
type history struct {
	t     *testing.T
	rng   *rand.Rand
	b     *objstoretest.Faulty
	fs    *vfs.MemFS
	o     nodeOptions
	n     *node
	build *sourceBuilder

	waiting []*memSource // not known to be in the bucket
	written []record.Record
	fixed   map[int64]bool // offsets in transactions
	dead    map[int64]bool // what may go
	start   int64          // what is below may be gone

	failed []manifest.Segment // whose rewrite has not come through
}

// failures has each call fail with a chance of about n in 100, half of them in effect.
func (h *history) failures(n int) {
	var mu sync.Mutex
	fail := func(context.Context, objstoretest.Call) error {
		mu.Lock()
		defer mu.Unlock()
		if h.rng.IntN(200) < n {
			return objstore.ErrUnavailable
		}
		return nil
	}
	h.b.Before(fail)
	h.b.After(fail)
}

// open begins a new process on what the disk has of the one before.
func (h *history) open() {
	h.t.Helper()
	h.failures(0)
	if h.n != nil {
		if err := h.n.Close(); err != nil {
			h.t.Fatal(err)
		}
		h.fs = h.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: h.rng.IntN(101), RNG: h.rng})
	}
	h.o.fs = h.fs
	h.n = newNode(h.t, h.b, h.o)
}

func (h *history) step() {
	h.failures(12)
	switch h.rng.IntN(12) {
	case 0, 1, 2:
		if h.rng.IntN(4) == 0 {
			h.build.hollow(1 + h.rng.Int64N(4))
		}
		src := h.build.mixed(h.rng, 1+h.rng.IntN(4))
		h.waiting = append(h.waiting, src)
		h.written = append(h.written, src.records...)
		if h.fixed == nil {
			h.fixed = make(map[int64]bool)
		}
		for offset := range transactionOffsets(src) {
			h.fixed[offset] = true
		}
		h.upload()
	case 3, 4, 5, 6:
		h.rewrite()
	case 7, 10, 11:
		_, _ = h.n.Collect(h.t.Context(), CollectOptions{Orphans: true, Now: func() time.Time { return time.Now().Add(time.Hour) }})
	case 8:
		if segs := h.n.Snapshot().Segments; len(segs) > 2 && h.rng.IntN(2) == 0 {
			h.start = max(h.start, segs[1].BaseOffset)
			_, _ = h.n.Truncate(h.t.Context(), h.start, 0, time.Now())
		}
	case 9:
		h.open()
	}
	h.check()
}

func (h *history) upload() {
	_, _ = h.n.Upload(h.t.Context(), asSources(h.waiting), 0)
	next := h.n.Snapshot().Next()
	h.waiting = slices.DeleteFunc(h.waiting, func(s *memSource) bool { return s.next <= next })
}

// rewrite drops what has died by now, and something dies before.
func (h *history) rewrite() {
	segs := h.n.Snapshot().Segments
	if len(segs) == 0 {
		return
	}
	i := h.rng.IntN(len(segs))
	old := segs[i : i+1+h.rng.IntN(min(4, len(segs)-i))]
	if h.failed != nil && h.rng.IntN(2) == 0 {
		old = h.failed
	}
	for _, r := range h.written {
		if r.Key != nil && !h.fixed[r.Offset] && h.rng.IntN(4) == 0 {
			h.dead[r.Offset] = true
		}
	}
	h.failed = old
	_, err := h.n.Rewrite(h.t.Context(), old, RewriteOptions{Keep: func(_ []byte, offset int64, _ bool) (bool, error) { return !h.dead[offset], nil }})
	if err == nil {
		h.failed = nil
	}
}

// check compares the bucket with the model.
func (h *history) check() {
	h.t.Helper()
	h.failures(0)
	m, _ := wantClean(h.t, h.b)
	got := stored(h.t, h.b)
	for _, want := range h.written {
		i, ok := slices.BinarySearchFunc(got, want.Offset, func(r record.Record, offset int64) int { return int(r.Offset - offset) })
		switch {
		case ok && !sameRecord(got[i], want):
			h.t.Fatalf("offset %d: %+v is stored, want %+v", want.Offset, got[i], want)
		case !ok && !h.dead[want.Offset] && want.Offset >= h.start && want.Offset < m.Next():
			h.t.Fatalf("offset %d is gone", want.Offset)
		}
	}
	for _, r := range got {
		if _, ok := slices.BinarySearchFunc(h.written, r.Offset, func(r record.Record, offset int64) int { return int(r.Offset - offset) }); !ok {
			h.t.Fatalf("offset %d is stored and was never written", r.Offset)
		}
	}
}
