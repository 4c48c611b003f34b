package index

import (
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/record"
)

// cloneMem copies a file system that is at rest.
func cloneMem(fs *vfs.MemFS) *vfs.MemFS {
	return fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(0, 0))})
}

func readFile(t *testing.T, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func writeFile(t *testing.T, fs vfs.FS, name string, b []byte) {
	t.Helper()
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// builtIndex returns a closed index with tables in several levels.
func builtIndex(t *testing.T, shared *Shared) (*vfs.MemFS, *history) {
	t.Helper()
	fs := vfs.NewCrashableMem()
	x := mustOpen(t, "/db", Options{FS: fs, Shared: shared})
	h := newHistory()
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range 14 {
		if err := h.commit(x, rng, 200); err != nil {
			t.Fatal(err)
		}
		if i%2 == 1 {
			if err := x.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	mustClose(t, x)
	return fs, h
}

// checkDamaged demands that an index over damaged files either says so or is right,
// and reports which.
func checkDamaged(t *testing.T, fs vfs.FS, h *history, what string) (noticed bool) {
	t.Helper()
	shared := NewShared(0, 16) // nothing comes out of a cache
	defer shared.Close()
	x, err := Open("/db", Options{FS: fs, Shared: shared})
	if err != nil {
		if !errors.Is(err, record.ErrCorrupt) {
			t.Fatalf("%s: Open: %v", what, err)
		}
		return true
	}
	defer func() {
		if err := x.Close(); err != nil && !errors.Is(err, record.ErrCorrupt) {
			t.Fatalf("%s: Close: %v", what, err)
		}
	}()
	state, ok := h.states[x.Applied()]
	if !ok {
		t.Fatalf("%s: position %+v was never committed", what, x.Applied())
	}
	for i := range 310 { // the last ten were never there
		key := keyName(i)
		want, wantOK := state[key]
		got, ok, err := x.Get([]byte(key))
		switch {
		case errors.Is(err, record.ErrCorrupt):
			noticed = true
		case err != nil:
			t.Fatalf("%s: Get: %v", what, err)
		case ok != wantOK || got != want:
			t.Fatalf("%s: Get(%s) is %d, %v; want %d, %v", what, key, got, ok, want, wantOK)
		}
	}
	seen, err := contents(x)
	switch {
	case errors.Is(err, record.ErrCorrupt):
		noticed = true
	case err != nil:
		t.Fatalf("%s: Scan: %v", what, err)
	case len(seen) != len(state):
		t.Fatalf("%s: Scan saw %d entries, want %d", what, len(seen), len(state))
	}
	return noticed
}

// damagesPerFile is how many bytes of each file are damaged, one at a time. Four
// find a gap in the checks sooner or later; the seed is printed.
const damagesPerFile = 4

// Any damaged byte of any file is noticed or without consequence: no wrong offset,
// no key missing in silence, no panic.
func TestDamagedByte(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	shared := newShared(t)
	fs, h := builtIndex(t, shared)
	names, err := fs.List("/db")
	if err != nil {
		t.Fatal(err)
	}
	tables, noticed := 0, 0
	for _, name := range names {
		good := readFile(t, fs, "/db/"+name)
		for range min(damagesPerFile, len(good)) {
			bad := append([]byte(nil), good...)
			at := rng.IntN(len(bad))
			bad[at] ^= 1 << rng.IntN(8)
			damaged := cloneMem(fs)
			writeFile(t, damaged, "/db/"+name, bad)
			n := checkDamaged(t, damaged, h, name)
			if strings.HasSuffix(name, ".sst") {
				tables++
				if n {
					noticed++
				}
			}
		}
	}
	if tables == 0 || noticed < tables/2 {
		t.Errorf("%d tables damaged, noticed %d times", tables, noticed)
	}
}

// A file that is gone, empty or cut.
func TestDamagedFile(t *testing.T) {
	shared := newShared(t)
	fs, h := builtIndex(t, shared)
	names, err := fs.List("/db")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		good := readFile(t, fs, "/db/"+name)
		table := strings.HasSuffix(name, ".sst")
		for what, damage := range map[string]func(fs vfs.FS) error{
			"gone":  func(fs vfs.FS) error { return fs.Remove("/db/" + name) },
			"empty": func(fs vfs.FS) error { writeFile(t, fs, "/db/"+name, nil); return nil },
			"cut":   func(fs vfs.FS) error { writeFile(t, fs, "/db/"+name, good[:len(good)/2]); return nil },
			"long":  func(fs vfs.FS) error { writeFile(t, fs, "/db/"+name, append(good, good...)); return nil },
		} {
			damaged := cloneMem(fs)
			if err := damage(damaged); err != nil {
				t.Fatal(err)
			}
			if noticed := checkDamaged(t, damaged, h, name+" "+what); table && !noticed {
				t.Errorf("%s is %s, and nobody noticed", name, what)
			}
		}
	}
}

// Damage that a compaction or a reader meets makes the index fail, and removing it
// makes room for a new one.
func TestDamageIsSticky(t *testing.T) {
	shared := newShared(t)
	fs, _ := builtIndex(t, shared)
	names, err := fs.List("/db")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".sst") {
			b := readFile(t, fs, "/db/"+name)
			for i := range min(len(b)/2, 2000) {
				b[i] ^= 0xff
			}
			writeFile(t, fs, "/db/"+name, b)
		}
	}
	x, err := Open("/db", Options{FS: fs, Shared: shared})
	if err == nil {
		if _, err := contents(x); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("Scan: %v", err)
		}
		b := x.NewBatch()
		if err := b.Commit(Position{9, 9, 0}); !errors.Is(err, ErrFailed) || !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("Commit: %v", err)
		}
		if err := errors.Join(b.Close(), x.Close()); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("Close: %v", err)
		}
	} else if !errors.Is(err, record.ErrCorrupt) {
		t.Fatalf("Open: %v", err)
	}
	if err := Remove(fs, "/db"); err != nil {
		t.Fatal(err)
	}
	x = mustOpen(t, "/db", Options{FS: fs, Shared: shared})
	defer mustClose(t, x)
	wantContents(t, x, nil)
}

func TestEntriesWithoutPosition(t *testing.T) {
	fs := vfs.NewMem()
	o := Options{FS: fs, Shared: newShared(t)}
	for what, breakIt := range map[string]func(b *Batch) error{
		"no position":        func(b *Batch) error { return b.b.Delete(positionKey, nil) },
		"another version":    func(b *Batch) error { return b.b.Set(positionKey, []byte{9, 0, 0}, nil) },
		"no position at all": func(b *Batch) error { return b.b.Set(positionKey, nil, nil) },
	} {
		x := mustOpen(t, "/db", o)
		commit(t, x, map[string]int64{"a": 1}, Position{1, 1, 0})
		b := x.NewBatch()
		if err := breakIt(b); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(x.db.Apply(b.b, pebble.NoSync), b.Close()); err != nil {
			t.Fatal(err)
		}
		mustClose(t, x)
		if _, err := Open("/db", o); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: Open: %v", what, err)
		}
		if err := Remove(fs, "/db"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEntryWithoutOffset(t *testing.T) {
	x := openMem(t)
	b := x.NewBatch()
	if err := b.b.Set([]byte{entryPrefix, 'a'}, []byte("not an offset"), nil); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.Commit(Position{1, 1, 0}), b.Close()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := x.Get([]byte("a")); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("Get: %v", err)
	}
	if _, err := contents(x); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("Scan: %v", err)
	}
}
