package index

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newShared returns small caches that live as long as the test.
func newShared(t testing.TB) *Shared {
	t.Helper()
	s := NewShared(1<<20, 64)
	t.Cleanup(s.Close)
	return s
}

func mustOpen(t testing.TB, dir string, o Options) *Index {
	t.Helper()
	x, err := Open(dir, o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return x
}

func mustClose(t testing.TB, x *Index) {
	t.Helper()
	if err := x.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
}

// openMem opens an index in memory that is closed with the test.
func openMem(t testing.TB) *Index {
	t.Helper()
	x := mustOpen(t, "/db", Options{FS: vfs.NewMem(), Shared: newShared(t)})
	t.Cleanup(func() { mustClose(t, x) })
	return x
}

// commit applies the entries (an offset below zero deletes) and sets the position.
func commit(t testing.TB, x *Index, entries map[string]int64, p Position) {
	t.Helper()
	b := x.NewBatch()
	defer b.Close()
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		if offset := entries[key]; offset < 0 {
			b.Delete([]byte(key))
		} else {
			b.Set([]byte(key), offset)
		}
	}
	if b.Len() != len(entries) {
		t.Fatalf("Len is %d, want %d", b.Len(), len(entries))
	}
	if err := b.Commit(p); err != nil {
		t.Fatalf("Commit: %v", err)
	}
	if b.Len() != 0 {
		t.Fatalf("Len is %d after Commit", b.Len())
	}
	if got := x.Applied(); got != p {
		t.Fatalf("Applied is %+v, want %+v", got, p)
	}
}

// contents returns what Scan sees, and checks the order.
func contents(x *Index) (map[string]int64, error) {
	m := map[string]int64{}
	last, first := "", true
	err := x.Scan(func(key []byte, offset int64) error {
		if k := string(key); !first && k <= last {
			return fmt.Errorf("%q after %q", k, last)
		} else {
			last, first = k, false
			m[k] = offset
		}
		return nil
	})
	return m, err
}

func wantContents(t testing.TB, x *Index, want map[string]int64) {
	t.Helper()
	got, err := contents(x)
	if err != nil {
		t.Fatalf("Scan: %v", err)
	}
	if !maps.Equal(got, want) {
		t.Fatalf("the index holds %d entries, want %d; or they differ", len(got), len(want))
	}
	for key, offset := range want {
		if got, ok, err := x.Get([]byte(key)); err != nil || !ok || got != offset {
			t.Fatalf("Get(%q) is %d, %v, %v; want %d", key, got, ok, err, offset)
		}
	}
}

func TestStrangeKeys(t *testing.T) {
	fs := vfs.NewMem()
	o := Options{FS: fs, Shared: newShared(t)}
	x := mustOpen(t, "/a/b/c", o)
	want := map[string]int64{
		"": 0, "\x00": 1, "\x01": 2, "\x00\x00": 3, "a": 4, "a\x00": 5, "aa": 6, "a\xff": 7,
		"\xff\xff": math.MaxInt64, "%2F": 8, strings.Repeat("k", 32<<10): 9, string(appendPosition(nil, Position{1, 1, 0})): 127,
	}
	p := Position{NextLog: math.MaxInt64, NextKafka: math.MaxInt64 - 1}
	commit(t, x, want, p)
	wantContents(t, x, want)
	mustClose(t, x)

	x = mustOpen(t, "/a/b/c", o)
	defer mustClose(t, x)
	wantContents(t, x, want)
	if x.Applied() != p || x.Durable() != p {
		t.Errorf("position %+v, durable %+v", x.Applied(), x.Durable())
	}
	for _, absent := range []string{"b", "a\x01", "\x02", "\xff", strings.Repeat("k", 32<<10-1)} {
		if _, ok, err := x.Get([]byte(absent)); ok || err != nil {
			t.Errorf("Get(%.10q): %v, %v", absent, ok, err)
		}
	}
}

func TestInvalidIsRefused(t *testing.T) {
	x := openMem(t)
	b := x.NewBatch()
	defer b.Close()
	for _, p := range []Position{{-1, 0, 0}, {0, -1, 0}} {
		if err := b.Commit(p); !errors.Is(err, ErrInvalid) {
			t.Errorf("Commit(%+v): %v", p, err)
		}
	}
	b.Set([]byte("a"), -1)
	if err := b.Commit(Position{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("Commit after Set(-1): %v", err)
	}
	if _, ok, _ := x.Get([]byte("a")); ok {
		t.Error("a refused entry is there")
	}
}

// Random commits, flushes and reopenings against a map.
func TestModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	o := Options{FS: vfs.NewMem(), Shared: newShared(t)}
	x := mustOpen(t, "/db", o)
	defer func() { mustClose(t, x) }()
	want := map[string]int64{}
	var p Position
	for step := range 150 {
		entries := map[string]int64{}
		for range rng.IntN(200) {
			key := fmt.Sprint(rng.IntN(2000))
			if rng.IntN(4) == 0 {
				entries[key] = -1
			} else {
				entries[key] = rng.Int64()
			}
		}
		for key, offset := range entries {
			if offset < 0 {
				delete(want, key)
			} else {
				want[key] = offset
			}
		}
		p.NextLog += int64(len(entries)) + 1
		p.NextKafka += int64(len(entries))
		commit(t, x, entries, p)
		switch rng.IntN(20) {
		case 0:
			if err := x.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if x.Durable() != p {
				t.Fatalf("Durable is %+v after Flush, want %+v", x.Durable(), p)
			}
		case 1:
			mustClose(t, x)
			x = mustOpen(t, "/db", o)
			if x.Applied() != p || x.Durable() != p {
				t.Fatalf("step %d: position %+v, durable %+v, want %+v", step, x.Applied(), x.Durable(), p)
			}
			wantContents(t, x, want)
		}
	}
	wantContents(t, x, want)
}

// A position may be set back; Durable follows what is on the disk.
func TestPositionSetBack(t *testing.T) {
	x := openMem(t)
	commit(t, x, map[string]int64{"a": 1}, Position{10, 9, 0})
	if x.Durable() != (Position{}) {
		t.Errorf("durable without a flush: %+v", x.Durable())
	}
	for _, p := range []Position{{10, 9, 0}, {5, 4, 0}, {5, 4, 0}, {6, 5, 0}} {
		commit(t, x, nil, p)
		for range 2 { // the second one has nothing to do
			if err := x.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if x.Durable() != p {
				t.Errorf("Durable is %+v, want %+v", x.Durable(), p)
			}
		}
	}
}

func TestFlushHeedsItsContext(t *testing.T) {
	x := openMem(t)
	commit(t, x, map[string]int64{"a": 1}, Position{10, 9, 0})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// Both ends may be ready at once; either answer is right, a third is not.
	if err := x.Flush(ctx); err == nil && x.Durable() != (Position{10, 9, 0}) || err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Flush: %v, durable %+v", err, x.Durable())
	}
}

// case 6-09: readers during overwrites, flushes and compactions see a version of
// their own key, and versions do not go back.
func TestReadersDuringOverwrites(t *testing.T) {
	x := openMem(t)
	const keys, versions = 200, 600
	name := func(k int) []byte { return fmt.Appendf(nil, "key-%03d", k) }
	var done atomic.Bool
	var wg sync.WaitGroup
	for r := range 100 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(r), 0))
			seen := make([]int64, keys)
			for !done.Load() {
				runtime.Gosched() // or the writer gets no turn among so many
				k := rng.IntN(keys)
				before := x.Applied()
				got, ok, err := x.Get(name(k))
				if err != nil || ok && got%keys != int64(k) || got < seen[k] || before.NextKafka > 0 && !ok {
					t.Errorf("key %d: %d, %v, %v; before %d", k, got, ok, err, seen[k])
					return
				}
				if oldest := before.NextKafka - keys; got < oldest {
					t.Errorf("key %d: %d, but the position was %d", k, got, before.NextKafka)
					return
				}
				seen[k] = got
			}
		})
	}
	defer func() {
		done.Store(true)
		wg.Wait()
	}()
	b := x.NewBatch()
	defer b.Close()
	for v := range int64(versions) {
		for k := range keys {
			b.Set(name(k), v*keys+int64(k))
		}
		if err := b.Commit(Position{(v + 1) * keys, (v + 1) * keys, 0}); err != nil {
			t.Fatal(err)
		}
		if v%50 == 0 {
			if err := x.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestScanIsASnapshot(t *testing.T) {
	x := openMem(t)
	commit(t, x, map[string]int64{"a": 1, "b": 2, "c": 3}, Position{3, 3, 0})
	var seen []string
	err := x.Scan(func(key []byte, offset int64) error {
		seen = append(seen, fmt.Sprintf("%s=%d", key, offset))
		if len(seen) == 1 {
			commit(t, x, map[string]int64{"a": 4, "b": -1, "bb": 5, "c": 6}, Position{7, 7, 0})
		}
		return nil
	})
	if want := []string{"a=1", "b=2", "c=3"}; err != nil || !slices.Equal(seen, want) {
		t.Errorf("saw %v, %v", seen, err)
	}
	stop := errors.New("enough")
	if err := x.Scan(func([]byte, int64) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("Scan: %v", err)
	}
}

func TestClosed(t *testing.T) {
	fs := vfs.NewMem()
	o := Options{FS: fs, Shared: newShared(t)}
	x := mustOpen(t, "/db", o)
	commit(t, x, map[string]int64{"a": 1, "b": 2}, Position{2, 2, 0})
	b := x.NewBatch()
	b.Set([]byte("c"), 3)

	// Close comes while a scan is inside its callback, which looks a key up.
	inside, closed := make(chan struct{}), make(chan error, 3)
	var scan error
	go func() {
		<-inside
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { closed <- x.Close() })
		}
		wg.Wait()
		close(closed)
	}()
	scan = x.Scan(func([]byte, int64) error {
		close(inside)
		for !x.gate.closing() {
			if _, _, err := x.Get([]byte("a")); err != nil && !errors.Is(err, ErrClosed) {
				return err
			}
		}
		return nil
	})
	if !errors.Is(scan, ErrClosed) {
		t.Errorf("the scan that Close met: %v", scan)
	}
	for err := range closed {
		if err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if _, _, err := x.Get([]byte("a")); !errors.Is(err, ErrClosed) {
		t.Errorf("Get: %v", err)
	}
	if err := x.Scan(nil); !errors.Is(err, ErrClosed) {
		t.Errorf("Scan: %v", err)
	}
	if err := x.Flush(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("Flush: %v", err)
	}
	if err := b.Commit(Position{3, 3, 0}); !errors.Is(err, ErrClosed) {
		t.Errorf("Commit: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Errorf("closing a batch: %v", err)
	}
	if x.EstimatedKeys() != 0 || x.DiskBytes() != 0 {
		t.Error("sizes of a closed index")
	}

	// Close has made everything durable.
	x = mustOpen(t, "/db", o)
	defer mustClose(t, x)
	wantContents(t, x, map[string]int64{"a": 1, "b": 2})
}

func TestRemove(t *testing.T) {
	fs := vfs.NewCrashableMem()
	o := Options{FS: fs, Shared: newShared(t)}
	if err := Remove(fs, "/data/db"); err != nil {
		t.Fatalf("Remove of nothing: %v", err)
	}
	x := mustOpen(t, "/data/db", o)
	commit(t, x, map[string]int64{"a": 1}, Position{1, 1, 0})
	mustClose(t, x)
	if err := Remove(fs, "/data/db"); err != nil {
		t.Fatal(err)
	}
	o.FS = fs.CrashClone(vfs.CrashCloneCfg{})
	x = mustOpen(t, "/data/db", o)
	defer mustClose(t, x)
	wantContents(t, x, nil)
	if x.Applied() != (Position{}) {
		t.Errorf("position %+v", x.Applied())
	}
}

func TestEstimatedKeys(t *testing.T) {
	x := openMem(t)
	check := func(what string, want int64) {
		t.Helper()
		if got := x.EstimatedKeys(); got != want {
			t.Errorf("%s: %d keys, want %d", what, got, want)
		}
	}
	check("empty", 0)
	entries := map[string]int64{}
	for i := range 1000 {
		entries[fmt.Sprint(i)] = int64(i)
	}
	commit(t, x, entries, Position{1, 1, 0})
	check("in memory", 1000)
	if err := x.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("flushed", 1000)
	commit(t, x, map[string]int64{"x": 1, "y": 2, "1": -1}, Position{2, 2, 0})
	check("some of each", 1001)
	if err := x.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("flushed again", 1001)
	if x.DiskBytes() < 1000 {
		t.Errorf("%d bytes on disk", x.DiskBytes())
	}
}

func TestGetAllocatesLittle(t *testing.T) {
	x := openMem(t)
	entries := map[string]int64{}
	for i := range 1000 {
		entries[fmt.Sprint(i)] = int64(i)
	}
	commit(t, x, entries, Position{1000, 1000, 0})
	key, absent := []byte("500"), []byte("500x")
	// From tables, Pebble allocates once a lookup. One more in all, because the
	// collector may empty the pools in between.
	for where, limit := range map[string]float64{"memory": 1, "tables": 3} {
		if where == "tables" {
			if err := x.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if n := testing.AllocsPerRun(1000, func() {
			if _, ok, err := x.Get(key); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if _, ok, err := x.Get(absent); ok || err != nil {
				t.Fatal(ok, err)
			}
		}); n > limit && !raceEnabled { // -race drops from pools at random
			t.Errorf("%s: %v allocations for two lookups", where, n)
		}
	}
}

func TestGate(t *testing.T) {
	for range 200 {
		var g gate
		g.init()
		var inside atomic.Int64
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for g.enter() {
					inside.Add(1)
					inside.Add(-1)
					g.leave()
				}
			})
		}
		g.close()
		if n := inside.Load(); n != 0 || !g.closing() {
			t.Fatalf("%d inside a closed gate", n)
		}
		wg.Wait()
	}
}
