package partition

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/record"
)

func verify(t *testing.T, p *Partition, want map[string]string, offsets map[string]int64) {
	t.Helper()
	for k, v := range want {
		res := mustGet(t, p, k)
		if string(res.Value) != v {
			t.Fatalf("%s: got %.40q, want %.40q", k, res.Value, v)
		}
		if at, ok := offsets[k]; ok && at != res.Offset {
			t.Fatalf("%s: offset %d, was acknowledged at %d", k, res.Offset, at)
		}
	}
}

func TestEvictEmptiesTheLocalLog(t *testing.T) {
	p := newRig(t).open()
	want := fill(t, p, "k", 100)
	st := evict(t, p)
	if *st.LocalStart != *st.HighWatermark || *st.HighWatermark != 100 {
		t.Fatalf("local start %d, high watermark %d", *st.LocalStart, *st.HighWatermark)
	}
	if *st.CloudStart != 0 || *st.CloudLast != 99 || st.CloudSegments < 2 {
		t.Fatalf("cloud %d … %d in %d segments", *st.CloudStart, *st.CloudLast, st.CloudSegments)
	}
	verify(t, p, want, nil)
}

func TestEvictKeepsTheTarget(t *testing.T) {
	p := newRig(t).open()
	want := fill(t, p, "k", 100)
	before := p.Status().LocalBytes
	st, err := p.Evict(t.Context(), before/2)
	if err != nil {
		t.Fatal(err)
	}
	if st.LocalBytes > before/2 || st.LocalBytes == 0 || *st.LocalStart == *st.HighWatermark {
		t.Fatalf("%d local bytes after asking for %d, start %d", st.LocalBytes, before/2, *st.LocalStart)
	}
	verify(t, p, want, nil)
}

// An index that was removed comes back from the key runs and the local log.
func TestIndexComesBackFromBothTiers(t *testing.T) {
	r := newRig(t)
	p := r.open()
	want := fill(t, p, "cold", 80)
	del(t, p, "cold-007")
	delete(want, "cold-007")
	evict(t, p)
	maps.Copy(want, fill(t, p, "hot", 20))
	del(t, p, "cold-008")
	delete(want, "cold-008")
	r.stop()
	if err := r.fs.RemoveAll("/data/t/0/kv_index"); err != nil {
		t.Fatal(err)
	}
	p = r.open()
	verify(t, p, want, nil)
	for _, k := range []string{"cold-007", "cold-008"} {
		if _, err := get(p, k); !errors.Is(err, ErrKeyNotFound) {
			t.Fatalf("deleted %s: %v", k, err)
		}
	}
}

// An empty disk takes the partition over where the bucket ends.
func TestEmptyDiskContinuesTheBucket(t *testing.T) {
	a := newRig(t)
	want := fill(t, a.open(), "k", 80)
	evict(t, a.p)
	a.stop()
	b := a.other("node-b")
	p := b.open()
	verify(t, p, want, nil)
	if off := put(t, p, "next", "v"); off != 80 {
		t.Fatalf("first offset on the new disk is %d, want 80", off)
	}
	evict(t, p)
	verify(t, p, want, nil)
	mustGet(t, p, "next")
}

func TestIndexEnabledAfterEviction(t *testing.T) {
	r := newRig(t)
	r.settings.IndexMaintained, r.settings.IndexActive = false, false
	p := r.open()
	want := fill(t, p, "k", 60)
	evict(t, p)
	maps.Copy(want, fill(t, p, "hot", 10))
	if _, err := get(p, "k-000"); !errors.Is(err, ErrNotIndexed) {
		t.Fatalf("without an index: %v", err)
	}
	p.Configure(defaults())
	eventually(t, "index caught up", func() bool { _, err := get(p, "k-000"); return err == nil })
	verify(t, p, want, nil)
}

// Offsets are the same before and after every way of moving records about, and
// every acknowledged record stays readable.
func TestOffsetsNeverMove(t *testing.T) {
	rng := seeded(t)
	for round := range 4 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			r := newRig(t)
			r.settings.SegmentBytes = []int64{1 << 10, 2 << 10, 16 << 10, 1 << 20}[round]
			p := r.open()
			want, offsets := map[string]string{}, map[string]int64{}
			for step := range 250 {
				switch n := rng.IntN(100); {
				case n < 80:
					k, v := fmt.Sprintf("key-%d", rng.IntN(60)), fmt.Sprintf("%d %0*d", step, 1+rng.IntN(600), 0)
					offsets[k], want[k] = put(t, p, k, v), v
				case n < 85:
					k := fmt.Sprintf("key-%d", rng.IntN(60))
					del(t, p, k)
					delete(want, k)
					delete(offsets, k)
				case n < 91:
					if _, err := p.Evict(t.Context(), rng.Int64N(8<<10)); err != nil {
						t.Fatal(err)
					}
				case n < 95:
					p = r.reopen()
				case n < 98:
					p = r.crash(rng)
				default:
					r.stop()
					if err := r.fs.RemoveAll("/data/t/0/kv_index"); err != nil {
						t.Fatal(err)
					}
					p = r.open()
				}
				if step%10 == 9 {
					verify(t, p, want, offsets)
				}
			}
			verify(t, p, want, offsets)
			for i := range 60 {
				k := fmt.Sprintf("key-%d", i)
				if _, ok := want[k]; ok {
					continue
				}
				if _, err := get(p, k); !errors.Is(err, ErrKeyNotFound) {
					t.Fatalf("%s was deleted or never written: %v", k, err)
				}
			}
		})
	}
}

// crash reopens the partition on what a power cut would have left of its disk.
func (r *rig) crash(rng *rand.Rand) *Partition {
	r.t.Helper()
	after := r.fs.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
	r.stop()
	r.fs = after
	return r.open()
}

func TestUploadFailureKeepsLocalData(t *testing.T) { // cases 7-02, 7-09
	for _, failing := range []string{".log", ".index", "manifest.json"} {
		t.Run(failing, func(t *testing.T) {
			r := newRig(t)
			p := r.open()
			want := fill(t, p, "k", 60)
			r.store.Before(func(_ context.Context, c objstoretest.Call) error {
				if c.Op == objstoretest.OpPut && len(c.Key) > len(failing) && c.Key[len(c.Key)-len(failing):] == failing {
					return objstore.ErrInvalid
				}
				return nil
			})
			if _, err := p.Evict(t.Context(), 0); err == nil {
				t.Fatal("evict succeeded although the upload failed")
			}
			if st := p.Status(); *st.LocalStart != 0 {
				t.Fatalf("local start moved to %d", *st.LocalStart)
			}
			off := r.settings
			off.RemoteRead = false
			p.Configure(off)
			verify(t, p, want, nil)
			r.store.Before(nil)
			p.Configure(r.settings)
			evict(t, p)
			verify(t, p, want, nil)
		})
	}
}

// A manifest whose reply was lost counts, so that what it names is evicted when the
// eviction is repeated.
func TestEvictAfterALostReply(t *testing.T) {
	r := newRig(t)
	p := r.open()
	want := fill(t, p, "k", 20)
	lost := 0
	r.store.After(func(_ context.Context, c objstoretest.Call) error {
		switch {
		case c.Key[len(c.Key)-len("manifest.json"):] != "manifest.json":
		case c.Op == objstoretest.OpPut, lost > 0 && c.Op == objstoretest.OpGet:
			if lost++; lost <= 2 {
				return objstore.ErrInvalid // not one to wait for
			}
		}
		return nil
	})
	if _, err := p.Evict(t.Context(), 0); err == nil {
		t.Fatal("evict succeeded although the reply was lost")
	}
	r.store.After(nil)
	if _, err := p.Collect(t.Context(), true); err != nil { // looks at the manifest
		t.Fatal(err)
	}
	if st := evict(t, p); *st.LocalStart != *st.HighWatermark {
		t.Fatalf("local start %d, end %d", *st.LocalStart, *st.HighWatermark)
	}
	verify(t, p, want, nil)
}

func TestStoreAwayAtStart(t *testing.T) {
	r := newRig(t)
	p := r.open()
	fill(t, p, "cold", 40)
	evict(t, p)
	put(t, p, "hot", "v")
	r.stop()
	r.store.Before(func(context.Context, objstoretest.Call) error { return objstore.ErrUnavailable })
	p = r.open()
	mustGet(t, p, "hot")
	put(t, p, "more", "v")
	mustGet(t, p, "more")
	if _, err := get(p, "cold-000"); !errors.Is(err, objstore.ErrUnavailable) {
		t.Fatalf("cold key with the store away: %v", err)
	}

	empty := r.other("node-b")
	pe := empty.start()
	t.Cleanup(empty.stop)
	if _, err := get(pe, "hot"); !errors.Is(err, ErrNotReady) {
		t.Fatalf("empty disk with the store away: %v", err)
	}
	if ready, _, _ := pe.State(); ready {
		t.Fatal("ready although nothing is known")
	}
}

// A disk that lost its copy of the manifest cannot say "not retained" before it
// has read the bucket's again.
func TestLostManifestIsNotAbsence(t *testing.T) { // case 7-29
	r := newRig(t)
	fill(t, r.open(), "cold", 40)
	evict(t, r.p)
	r.stop()
	if err := r.fs.RemoveAll("/data/t/0/remote"); err != nil {
		t.Fatal(err)
	}
	r.store.Before(func(context.Context, objstoretest.Call) error { return objstore.ErrUnavailable })
	p := r.open()
	if _, err := get(p, "cold-000"); !errors.Is(err, ErrNotReady) {
		t.Fatalf("manifest lost, store away: %v", err)
	}
	r.store.Before(nil)
	eventually(t, "manifest read again", func() bool { _, err := get(p, "cold-000"); return err == nil })
}

// Lookups go on, right, while segments move under them.
func TestReadsDuringEviction(t *testing.T) {
	p := newRig(t).open()
	want := fill(t, p, "k", 40)
	var stop atomic.Bool
	var wg sync.WaitGroup
	errs := make(chan error, 4)
	for range 4 {
		wg.Go(func() {
			for !stop.Load() {
				for k, v := range want {
					res, err := get(p, k)
					if err == nil && string(res.Value) != v {
						err = fmt.Errorf("%s: wrong value", k)
					}
					if err != nil {
						select {
						case errs <- fmt.Errorf("%s: %w", k, err):
						default:
						}
						return
					}
				}
			}
		})
	}
	for i := range 20 {
		put(t, p, fmt.Sprintf("more-%d", i), "v")
		evict(t, p)
	}
	stop.Store(true)
	wg.Wait()
	select {
	case err := <-errs:
		t.Fatal(err)
	default:
	}
}

// While a key is overwritten without pause, some value of it is always there
// and never an older one than before.
func TestOverwriteNeverBlinks(t *testing.T) {
	p := newRig(t).open()
	put(t, p, "k", "0")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 500 {
			recs := []record.Record{{Key: []byte("k"), Value: fmt.Append(nil, i)}}
			if _, err := p.Append(context.Background(), recs); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	last := int64(-1)
	for {
		res := mustGet(t, p, "k")
		if res.Offset < last {
			t.Fatalf("offset went back from %d to %d", last, res.Offset)
		}
		if res.Position <= res.Offset {
			t.Logf("position %d read before offset %d", res.Position, res.Offset)
		}
		last = res.Offset
		select {
		case <-done:
			return
		default:
		}
	}
}

func TestRemoteWriteOff(t *testing.T) {
	r := newRig(t)
	r.settings.RemoteWrite = false
	p := r.open()
	fill(t, p, "k", 30)
	if _, err := p.Evict(t.Context(), 0); !errors.Is(err, ErrRemoteWriteDisabled) {
		t.Fatalf("evict with remote write off: %v", err)
	}
	if n := r.store.Count(objstoretest.OpPut); n > 1 { // the claim alone
		t.Fatalf("%d objects written with remote write off", n)
	}
}

func TestWithoutAStore(t *testing.T) {
	r := newRig(t)
	r.noStore = true
	p := r.open()
	want := fill(t, p, "k", 30)
	if _, err := p.Evict(t.Context(), 0); !errors.Is(err, ErrNoStore) {
		t.Fatalf("evict without a store: %v", err)
	}
	verify(t, r.reopen(), want, nil)
}

// A damaged local record comes from the bucket if that has it, and is an error
// otherwise; it is never skipped for an older value.
func TestLocalDamage(t *testing.T) { // case 7-27
	r := newRig(t)
	p := r.open()
	fill(t, p, "k", 40)
	put(t, p, "twice", "old")
	put(t, p, "twice", "new and long enough to be found in the file")
	r.stop()
	r.damageLocal("new and long enough to be found in the file")
	p = r.start()
	t.Cleanup(r.stop)
	eventually(t, "an answer", func() bool { _, err := get(p, "k-000"); return !errors.Is(err, ErrNotReady) })
	res, err := get(p, "twice")
	if !errors.Is(err, record.ErrCorrupt) {
		t.Fatalf("got %q, %v", res.Value, err)
	}
}

// damageLocal flips a bit of the record that holds text, in whichever local
// segment that is.
func (r *rig) damageLocal(text string) {
	r.t.Helper()
	names, err := r.fs.List("/data/t/0/log")
	if err != nil {
		r.t.Fatal(err)
	}
	for _, name := range names {
		path := r.fs.PathJoin("/data/t/0/log", name)
		data := readAll(r.t, r.fs, path)
		at := bytes.Index(data, []byte(text))
		if at < 0 {
			continue
		}
		data[at] ^= 1
		f, err := r.fs.Create(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			r.t.Fatal(err)
		}
		if _, err := f.Write(data); err != nil {
			r.t.Fatal(err)
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			r.t.Fatal(err)
		}
		return
	}
	r.t.Fatalf("no local segment holds %q", text)
}

func readAll(t *testing.T, fs vfs.FS, path string) []byte {
	t.Helper()
	f, err := fs.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// A bucket that refuses to list and to delete keeps its garbage; local segments go
// all the same.
func TestEvictionWithoutCleanUp(t *testing.T) {
	r := newRig(t)
	r.settings.LocalTargetBytes = 0
	clock := r.clock()
	r.store.Before(func(_ context.Context, c objstoretest.Call) error {
		if c.Op == objstoretest.OpList || c.Op == objstoretest.OpDelete {
			return objstore.ErrDenied
		}
		return nil
	})
	p := r.open()
	clock.add(2 * orphanInterval)
	fill(t, p, "k", 60)
	eventually(t, "evicted and refused", func() bool {
		p.wake()
		return p.Status().LocalSegments == 1 && r.store.Count(objstoretest.OpList) > 0
	})
}
