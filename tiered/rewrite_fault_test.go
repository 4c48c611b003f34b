package tiered

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/record"
)

// rewriteWorld is a bucket with three segments of which the first two are to be
// rewritten.
type rewriteWorld struct {
	sources []*memSource
	segs    []manifest.Segment
	old     []record.Record // what is stored before
	new     []record.Record // and behind
	keep    func(key []byte, offset int64, tombstone bool) (bool, error)
}

func newRewriteWorld(t testing.TB, n *node, rng *rand.Rand) *rewriteWorld {
	t.Helper()
	build := newBuilder(t, 0)
	build.codecs = []record.Codec{record.None, record.Snappy} // the others are slow under -race
	w := &rewriteWorld{sources: []*memSource{build.mixed(rng, 4), build.mixed(rng, 4), build.mixed(rng, 4)}}
	w.segs = n.upload(t, w.sources...).Segments
	w.old = allRecords(w.sources...)
	w.keep = keepLatest(w.old)
	fixed := transactionOffsets(w.sources...)
	for _, s := range w.sources[2].records {
		fixed[s.Offset] = true // not rewritten
	}
	w.new = kept(w.old, fixed, w.keep)
	return w
}

func (w *rewriteWorld) rewrite(t testing.TB, n *node) error {
	_, err := n.Rewrite(t.Context(), w.segs[:2], RewriteOptions{Keep: w.keep, Horizon: 1})
	return err
}

// wantOldOrNew looks at the bucket alone: its manifest is one of the two, and all
// that it names is whole.
func (w *rewriteWorld) wantOldOrNew(t testing.TB, b objstore.Bucket) (isNew bool) {
	t.Helper()
	m, _ := wantClean(t, b)
	switch len(m.Segments) {
	case 3:
		wantStored(t, b, w.old)
	case 2:
		wantStored(t, b, w.new)
	default:
		t.Fatalf("%d segments", len(m.Segments))
	}
	return len(m.Segments) == 2
}

// wantDone is the end of every story: the new state, and after Collect nothing else
// in the bucket.
func (w *rewriteWorld) wantDone(t testing.TB, n *node, b objstore.Bucket) {
	t.Helper()
	if !w.wantOldOrNew(t, b) {
		t.Fatal("the rewrite has not come through")
	}
	for _, r := range w.new {
		n.wantRecord(t, r)
	}
	c := collected(t, n, CollectOptions{Grace: time.Minute, Orphans: true, Now: func() time.Time { return time.Now().Add(time.Hour) }})
	m, orphans := wantClean(t, b)
	if len(orphans) != 0 || len(m.Removed) != 0 {
		t.Fatalf("orphans %v, removed %v, collected %v", orphans, m.Removed, c.Objects)
	}
	for _, r := range w.new {
		n.wantRecord(t, r)
	}
}

// Whichever call of a Rewrite fails, and whether or not it took effect: the bucket
// has the old state or the new one, a repetition comes through under the same
// names, and no orphan is left.
func TestEveryCallOfARewriteFailsOnce(t *testing.T) {
	rng := newRand(t)
	for _, unconditional := range []bool{false, true} {
		for _, f := range failures {
			for k := 0; ; k++ {
				b := newBucket()
				n := newNode(t, b, nodeOptions{unconditional: unconditional, recode: Recode{Merge: k%2 == 0, Codec: record.Snappy}})
				w := newRewriteWorld(t, n, rng)
				met := failAt(b, k, f)
				err := w.rewrite(t, n)
				if !met() {
					if k < 5 {
						t.Fatalf("only %d calls", k)
					}
					break
				}
				if err == nil && !f.lost {
					t.Fatalf("%s, call %d: no error", f.name, k)
				}
				w.wantOldOrNew(t, b)
				for _, r := range w.new {
					n.wantRecord(t, r)
				}
				wantNoTemporaryFile(t, n.fs)
				if err != nil {
					if err := w.rewrite(t, n); err != nil {
						t.Fatalf("%s, call %d: repetition: %v", f.name, k, err)
					}
				}
				if _, orphans := wantClean(t, b); len(orphans) != 0 {
					t.Fatalf("%s, call %d: orphans %v", f.name, k, orphans)
				}
				w.wantDone(t, n, b)
			}
		}
	}
}

// The same for the disk.
func TestEveryDiskOperationOfARewriteFailsOnce(t *testing.T) {
	rng := newRand(t)
	for k := int64(0); ; k++ {
		var count atomic.Int64
		count.Store(-1 << 40)
		fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if strings.HasPrefix(op.Path, "p/remote") && count.Add(1) == k+1 {
				return errorfs.ErrInjected
			}
			return nil
		}))
		b := newBucket()
		n := newNode(t, b, nodeOptions{fs: fs})
		w := newRewriteWorld(t, n, rng)
		count.Store(0)
		err := w.rewrite(t, n)
		met := count.Load() > k
		count.Store(-1 << 40)
		if !met {
			if k < 10 {
				t.Fatalf("only %d operations", k)
			}
			break
		}
		w.wantOldOrNew(t, b)
		for _, r := range w.new {
			n.wantRecord(t, r)
		}
		if err != nil {
			if err := w.rewrite(t, n); err != nil {
				t.Fatalf("operation %d: repetition: %v", k, err)
			}
		}
		if _, orphans := wantClean(t, b); len(orphans) != 0 {
			t.Fatalf("operation %d: orphans %v", k, orphans)
		}
		w.wantDone(t, n, b)
		again := newNode(t, b, nodeOptions{fs: fs, unclaimed: true})
		wantNoTemporaryFile(t, fs)
		again.Close()
	}
}

// The process ends at any call or disk operation of Rewrite or Collect, with the
// disk losing what was not synced. The next process finds the old state or the new
// one, and orphans that Collect takes.
func TestEndOfTheProcessDuringRewriteAndCollect(t *testing.T) {
	rng := newRand(t)
	errEnd := errors.New("process ended")
	soon := CollectOptions{Orphans: true, Now: func() time.Time { return time.Now().Add(time.Hour) }}
	for _, lost := range []bool{false, true} {
		for k := int64(0); ; k++ {
			var count atomic.Int64
			count.Store(-1 << 40)
			end := func() error {
				if count.Add(1) > k { // nothing is done by a process that has ended
					return errEnd
				}
				return nil
			}
			crashable := vfs.NewCrashableMem()
			fs := errorfs.Wrap(crashable, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if strings.HasPrefix(op.Path, "p/remote") {
					return end()
				}
				return nil
			}))
			b := newBucket()
			n := newNode(t, b, nodeOptions{fs: fs})
			w := newRewriteWorld(t, n, rng)
			b.Before(func(context.Context, objstoretest.Call) error {
				if c := count.Load(); c >= k {
					return errEnd
				}
				if !lost {
					return end()
				}
				return nil
			})
			b.After(func(context.Context, objstoretest.Call) error {
				if lost {
					return end()
				}
				return nil
			})
			count.Store(0)
			err := w.rewrite(t, n)
			if err == nil {
				_, err = n.Collect(t.Context(), soon)
			}
			met := count.Load() >= k
			count.Store(-1 << 40)
			crashed := crashable.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rand.New(rand.NewPCG(rng.Uint64(), 0))})
			b.Before(nil)
			b.After(nil)
			if !met {
				if k < 20 || err != nil {
					t.Fatalf("%d operations, %v", k, err)
				}
				break
			}
			w.wantOldOrNew(t, b)
			again := newNode(t, b, nodeOptions{fs: crashed, unclaimed: true})
			wantNoTemporaryFile(t, crashed)
			if _, err := again.Claim(t.Context(), false); err != nil {
				t.Fatalf("operation %d: %v", k, err)
			}
			for _, r := range w.new {
				again.wantRecord(t, r)
			}
			if len(again.Snapshot().Segments) == 3 {
				if err := w.rewrite(t, again); err != nil {
					t.Fatalf("operation %d: %v", k, err)
				}
			}
			w.wantDone(t, again, b)
			// Neither are tables of what is gone left behind.
			names, err := crashed.List("p/remote")
			if err != nil {
				t.Fatal(err)
			}
			if len(names) > 1+len(again.Snapshot().Segments) {
				t.Errorf("operation %d: files %v", k, names)
			}
		}
	}
}

// A repetition that comes to other bytes takes other names: what was stored first
// may be in the manifest already, though nobody knows.
func TestRepetitionWithOtherBytesTakesOtherNames(t *testing.T) {
	for _, landed := range []bool{false, true} {
		b := newBucket()
		n := newNode(t, b, nodeOptions{})
		w := newRewriteWorld(t, n, newRand(t))
		fail := func(_ context.Context, c objstoretest.Call) error {
			if c.Op == objstoretest.OpPut && c.Key == ManifestKey(prefix) {
				return objstore.ErrUnavailable
			}
			return nil
		}
		if landed {
			b.After(fail)
		} else {
			b.Before(fail)
		}
		if err := w.rewrite(t, n); !errors.Is(err, objstore.ErrUnavailable) {
			t.Fatal(err)
		}
		b.Before(nil)
		b.After(nil)
		objects := make(map[string]string)
		each := func(fn func(key string, data string)) {
			if err := b.List(t.Context(), prefix+"0", func(o objstore.Object) error {
				fn(o.Key, string(content(t, b, o.Key)))
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		each(func(key, data string) { objects[key] = data })
		// What has a name that may come to be known is no orphan.
		if !landed { // Collect would find out
			if c := collected(t, n, CollectOptions{Orphans: true, Now: func() time.Time { return time.Now().Add(time.Hour) }}); len(c.Objects) != 0 {
				t.Errorf("collected %v", c.Objects)
			}
		}
		more := keepLatest(append(slices.Clone(w.old), record.Record{Offset: 1 << 40, Key: w.new[len(w.new)-1].Key}))
		_, err := n.Rewrite(t.Context(), w.segs[:2], RewriteOptions{Keep: func(key []byte, offset int64, tombstone bool) (bool, error) {
			keep, err := more(key, offset, tombstone)
			return keep && offset%2 == 0, err
		}})
		if landed != errors.Is(err, ErrChanged) || !landed && err != nil {
			t.Errorf("landed %t: %v", landed, err)
		}
		m, orphans := wantClean(t, b)
		if len(m.Segments) != 2 {
			t.Fatalf("%d segments", len(m.Segments))
		}
		if landed {
			wantStored(t, b, w.new)
		} else if len(orphans) != 2 {
			t.Errorf("orphans %v", orphans)
		}
		each(func(key, data string) {
			if was, ok := objects[key]; ok && was != data {
				t.Errorf("%s had other bytes before", key)
			}
		})
		collected(t, n, CollectOptions{Orphans: true, Now: func() time.Time { return time.Now().Add(time.Hour) }})
		if _, orphans := wantClean(t, b); len(orphans) != 0 {
			t.Errorf("orphans %v", orphans)
		}
	}
}

// Over all partitions of a process one Rewrite runs at a time; who waits may give
// up, and uploads go on meanwhile.
func TestOneRewriteAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var nodes []*node
		var segs [][]manifest.Segment
		for range 3 {
			n := newNode(t, newBucket(), nodeOptions{})
			if len(nodes) > 0 {
				n.o.Shared = nodes[0].o.Shared
			}
			build := newBuilder(t, 0)
			segs = append(segs, n.upload(t, build.numbered(5), build.numbered(5)).Segments)
			nodes = append(nodes, n)
		}
		var running, most atomic.Int64
		gate := make(chan struct{})
		o := RewriteOptions{Pace: func(context.Context, time.Duration) error {
			most.Store(max(most.Load(), running.Add(1)))
			<-gate
			running.Add(-1)
			return nil
		}}
		impatient, giveUp := context.WithCancel(t.Context())
		done := make(chan error, 3)
		for i, n := range nodes {
			ctx := t.Context()
			if i == 2 {
				synctest.Wait()
				ctx = impatient
			}
			go func() {
				_, err := n.Rewrite(ctx, segs[i], o)
				done <- err
			}()
		}
		synctest.Wait()
		if running.Load() != 1 {
			t.Errorf("%d are running", running.Load())
		}
		build := newBuilder(t, 10)
		for _, n := range nodes {
			n.upload(t, build.numbered(3))
			build = newBuilder(t, 10)
		}
		giveUp()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("given up: %v", err)
		}
		close(gate)
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if most.Load() != 1 {
			t.Errorf("%d ran at once", most.Load())
		}
		wantRanges(t, nodes[0].Snapshot(), "0-9 10-12")
	})
}

// Lookups, by snapshots old and new, go on during rewrites, truncations and
// collections with a grace period, and never miss what stays.
func TestReadersNeverNoticeARewrite(t *testing.T) {
	rng := newRand(t)
	b := newBucket()
	n := newNode(t, b, nodeOptions{cacheBytes: 4 << 10, recode: Recode{Merge: true, Codec: record.Snappy}})
	build := newBuilder(t, 0)
	var sources []*memSource
	for range 8 {
		sources = append(sources, build.mixed(rng, 10))
	}
	n.upload(t, sources...)
	all := allRecords(sources...)
	keep := keepLatest(all)
	survivors := kept(all, transactionOffsets(sources...), keep)
	ctx, stop := context.WithCancel(t.Context())
	var lookups atomic.Int64
	var wg sync.WaitGroup
	for i := range 4 {
		own := rand.New(rand.NewPCG(rng.Uint64(), uint64(i)))
		wg.Go(func() {
			old := n.Snapshot()
			for ctx.Err() == nil {
				want := survivors[own.IntN(len(survivors))]
				m := n.Snapshot()
				if own.IntN(2) == 0 {
					m = old // a lookup that takes its time
				}
				var r record.Reader
				_, err := n.ReadBatch(t.Context(), m, want.Offset, func(batch []byte, base int64) error {
					if err := r.Reset(batch, maxUncompressed); err != nil {
						return err
					}
					for r.Next() {
						if v := r.Record(); v.Offset == want.Offset && string(v.Key) == string(want.Key) && string(v.Value) == string(want.Value) {
							return nil
						}
					}
					return fmt.Errorf("no record at offset %d in a batch from %d on", want.Offset, base)
				})
				if err != nil {
					t.Errorf("offset %d: %v", want.Offset, err)
					return
				}
				if lookups.Add(1)%64 == 0 {
					old = n.Snapshot()
				}
			}
		})
	}
	for step := 0; step < 40 || lookups.Load() < 500; step++ {
		segs := n.Snapshot().Segments
		i := rng.IntN(len(segs))
		old := segs[i:min(len(segs), i+1+rng.IntN(3))]
		if len(segs) < 4 {
			old = segs[i : i+1]
		}
		if _, err := n.Rewrite(t.Context(), old, RewriteOptions{Keep: keep}); err != nil {
			t.Error(err)
			break
		}
		collected(t, n, CollectOptions{Grace: time.Minute, Orphans: true})
	}
	stop()
	wg.Wait()
	wantClean(t, b)
	wantStored(t, b, survivors)
}
