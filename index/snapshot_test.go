package index

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

func mustSnapshot(t testing.TB, x *Index) *Snapshot {
	t.Helper()
	s, err := x.Snapshot()
	if err != nil {
		t.Fatalf("Snapshot: %v", err)
	}
	return s
}

// wantSnapshot demands that Scan, in order, and Get say just that.
func wantSnapshot(s *Snapshot, want map[string]int64) error {
	got, last := map[string]int64{}, ""
	err := s.Scan(func(key []byte, offset int64) error {
		if k := string(key); len(got) > 0 && k <= last {
			return fmt.Errorf("%q after %q", k, last)
		} else {
			last, got[k] = k, offset
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !maps.Equal(got, want) {
		return fmt.Errorf("snapshot at %+v has %d entries, want %d; or they differ", s.Applied(), len(got), len(want))
	}
	for key, offset := range want {
		if got, ok, err := s.Get([]byte(key)); err != nil || !ok || got != offset {
			return fmt.Errorf("snapshot at %+v: Get(%q) is %d, %t, %w; want %d", s.Applied(), key, got, ok, err, offset)
		}
	}
	if _, ok, err := s.Get([]byte("never there")); ok || err != nil {
		return fmt.Errorf("snapshot at %+v: a key that was never there: %t, %w", s.Applied(), ok, err)
	}
	return nil
}

// Snapshots that are taken while the index is written, flushed and compacted are each
// as of the commit that their position names, and stay so.
func TestSnapshotIsOneCommit(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	x := openMem(t)

	// One writer; what it is about to commit is known before it does.
	const versions, keys = 300, 400
	states := make([]map[string]int64, versions+1)
	states[0] = map[string]int64{}
	for v := 1; v <= versions; v++ {
		states[v] = maps.Clone(states[v-1])
		for range 60 {
			key := fmt.Sprintf("key-%03d", rng.IntN(keys))
			if rng.IntN(3) == 0 {
				delete(states[v], key)
			} else {
				states[v][key] = int64(v)
			}
		}
	}
	first := mustSnapshot(t, x)
	defer first.Close()

	var done atomic.Bool
	var taken atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for !done.Load() {
				before := x.Applied()
				s, err := x.Snapshot()
				if err != nil {
					t.Error(err)
					return
				}
				after := x.Applied()
				p := s.Applied()
				if p.NextKafka < before.NextKafka || p.NextKafka > after.NextKafka || p.NextLog != 2*p.NextKafka {
					t.Errorf("position %+v, the index was at %+v before and %+v after", p, before, after)
				}
				for range 2 { // the index goes on in between
					if err := wantSnapshot(s, states[p.NextKafka]); err != nil {
						t.Error(err)
					}
					runtime.Gosched()
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				taken.Add(1)
			}
		})
	}
	stop := func() {
		done.Store(true)
		wg.Wait()
	}
	defer stop()
	for v := 1; v <= versions; v++ {
		changes := map[string]int64{}
		for key := range states[v-1] {
			if _, ok := states[v][key]; !ok {
				changes[key] = -1
			}
		}
		for key, offset := range states[v] {
			if offset == int64(v) {
				changes[key] = offset
			}
		}
		commit(t, x, changes, Position{NextLog: int64(2 * v), NextKafka: int64(v)})
		if v%20 == 0 {
			if err := x.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop()
	if taken.Load() == 0 {
		t.Error("no snapshot was taken")
	}
	if err := x.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false); err != nil {
		t.Fatal(err)
	}
	if err := wantSnapshot(first, states[0]); err != nil {
		t.Error(err)
	}
	last := mustSnapshot(t, x)
	defer last.Close()
	if err := wantSnapshot(last, states[versions]); err != nil {
		t.Error(err)
	}
}

func TestCloseWaitsForSnapshots(t *testing.T) { synctest.Test(t, testCloseWaitsForSnapshots) }

func testCloseWaitsForSnapshots(t *testing.T) {
	o := Options{FS: vfs.NewMem(), Shared: newShared(t)}
	x := mustOpen(t, "/db", o)
	want := map[string]int64{"a": 1, "b": 2}
	commit(t, x, want, Position{2, 2, 0})
	s, idle := mustSnapshot(t, x), mustSnapshot(t, x)
	closed := make(chan error, 1)
	seen := 0
	err := s.Scan(func([]byte, int64) error {
		seen++
		go func() { closed <- x.Close() }()
		synctest.Wait()
		return nil
	})
	if seen != 1 || !errors.Is(err, ErrClosed) {
		t.Errorf("a scan while the index closes: %d entries, %v", seen, err)
	}
	if _, _, err := s.Get([]byte("a")); !errors.Is(err, ErrClosed) {
		t.Errorf("Get while the index closes: %v", err)
	}
	if _, err := x.Snapshot(); !errors.Is(err, ErrClosed) {
		t.Errorf("Snapshot while the index closes: %v", err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Wait()
	select {
	case err := <-closed:
		t.Fatalf("closed in spite of a snapshot: %v", err)
	default:
	}
	if err := idle.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-closed; err != nil {
		t.Fatalf("Close: %v", err)
	}
	for name, s := range map[string]*Snapshot{"used": s, "idle": idle} {
		if _, _, err := s.Get([]byte("a")); !errors.Is(err, ErrClosed) {
			t.Errorf("%s: Get after Close: %v", name, err)
		}
		if err := s.Scan(func([]byte, int64) error { return nil }); !errors.Is(err, ErrClosed) {
			t.Errorf("%s: Scan after Close: %v", name, err)
		}
		if s.Applied() != (Position{2, 2, 0}) {
			t.Errorf("%s: position %+v", name, s.Applied())
		}
	}
	x = mustOpen(t, "/db", o)
	defer mustClose(t, x)
	wantContents(t, x, want)
}

// A snapshot may be closed while others read it.
func TestSnapshotClosedUnderReaders(t *testing.T) {
	x := openMem(t)
	want := map[string]int64{"a": 1, "b": 2}
	commit(t, x, want, Position{2, 2, 0})
	for range 200 {
		s := mustSnapshot(t, x)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for {
					err := wantSnapshot(s, want)
					if errors.Is(err, ErrClosed) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		runtime.Gosched()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
	if n := x.db.Metrics().Snapshots.Count; n != 0 {
		t.Errorf("%d snapshots are open", n)
	}
}

// Nobody decides by the snapshot of an index that has failed; it can still be closed.
func TestSnapshotOfAFailedIndex(t *testing.T) {
	f := &faults{k: 1 << 60, lasting: true, err: &fullDisk{}}
	x := mustOpen(t, "/db", Options{FS: errorfs.Wrap(vfs.NewMem(), f), Shared: newShared(t)})
	commit(t, x, map[string]int64{"a": 1, "b": 2}, Position{2, 2, 0})
	s := mustSnapshot(t, x)
	empty := mustSnapshot(t, x)
	n := 0
	err := s.Scan(func([]byte, int64) error {
		n++
		f.now.Store(true)
		if err := x.Flush(t.Context()); !errors.Is(err, ErrFailed) {
			t.Errorf("Flush: %v", err)
		}
		return nil
	})
	if n != 1 || !errors.Is(err, ErrFailed) {
		t.Errorf("a scan when the index fails: %d entries, %v", n, err)
	}
	if _, _, err := s.Get([]byte("a")); !errors.Is(err, ErrFailed) {
		t.Errorf("Get: %v", err)
	}
	if err := empty.Scan(func([]byte, int64) error { return nil }); !errors.Is(err, ErrFailed) {
		t.Errorf("Scan: %v", err)
	}
	if _, err := x.Snapshot(); !errors.Is(err, ErrFailed) {
		t.Errorf("Snapshot: %v", err)
	}
	if err := errors.Join(s.Close(), empty.Close()); err != nil {
		t.Errorf("Close of snapshots: %v", err)
	}
	if n := x.db.Metrics().Snapshots.Count; n != 0 {
		t.Errorf("%d snapshots are open", n)
	}
	if err := x.Close(); !errors.Is(err, ErrFailed) {
		t.Errorf("Close: %v", err)
	}
}

func TestSnapshotReadOnly(t *testing.T) {
	shared := newShared(t)
	fsys, h := builtIndex(t, shared)
	if err := fsys.Remove("/db/LOCK"); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, fsys, "/db")
	x := mustOpen(t, "/db", Options{FS: fsys, Shared: shared, ReadOnly: true})
	s := mustSnapshot(t, x)
	if s.Applied() != x.Applied() {
		t.Errorf("position %+v, the index has %+v", s.Applied(), x.Applied())
	}
	if err := wantSnapshot(s, h.states[s.Applied()]); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	mustClose(t, x)
	if after := snapshot(t, fsys, "/db"); !maps.Equal(before, after) {
		t.Error("files have changed")
	}
}
