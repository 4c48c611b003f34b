package index

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"keyhole/record"
)

// history remembers the state after each commit, by position.
type history struct {
	state  map[string]int64
	states map[Position]map[string]int64
	next   Position
}

func newHistory() *history {
	return &history{state: map[string]int64{}, states: map[Position]map[string]int64{{}: {}}}
}

func keyName(i int) string { return fmt.Sprintf("key-%04d", i) }

// commit applies random overwrites and deletions of few keys.
func (h *history) commit(x *Index, rng *rand.Rand, n int) error {
	b := x.NewBatch()
	defer b.Close()
	state := maps.Clone(h.state)
	next := h.next
	for range n {
		key := keyName(rng.IntN(300))
		if rng.IntN(3) == 0 {
			b.Delete([]byte(key))
			delete(state, key)
		} else {
			b.Set([]byte(key), next.NextKafka)
			state[key] = next.NextKafka
		}
		next.NextKafka++
	}
	next.NextLog = 2*next.NextKafka + 1
	// It is written down before, as a commit may reach the disk and fail after.
	h.states[next] = state
	h.next = next
	if err := b.Commit(next); err != nil {
		return err
	}
	h.state = state
	return nil
}

// check demands that x holds exactly the state of the position it claims, and that
// this position is not below durable.
func (h *history) check(t *testing.T, x *Index, durable Position) {
	t.Helper()
	p := x.Applied()
	state, ok := h.states[p]
	if !ok {
		t.Fatalf("position %+v was never committed", p)
	}
	if p.NextLog < durable.NextLog {
		t.Fatalf("position %+v, but %+v was durable", p, durable)
	}
	if x.Durable() != p {
		t.Fatalf("opened at %+v, durable %+v", p, x.Durable())
	}
	wantContents(t, x, state)
}

// cases 6-02 and 6-03: a crash at any moment leaves a true prefix, and position and
// entries belong together, however much of the unsynced data survives.
func TestCrash(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(uint64(seed), 0))
	shared := newShared(t)
	fs := vfs.NewCrashableMem()
	h := newHistory()
	crashes := 0
	for life := range 12 {
		x := mustOpen(t, "/data/db", Options{FS: fs, Shared: shared})
		var snapshot *vfs.MemFS
		var durable Position
		steps := 1 + rng.IntN(40)
		for range steps {
			if err := h.commit(x, rng, rng.IntN(400)); err != nil {
				t.Fatal(err)
			}
			if rng.IntN(4) == 0 {
				if err := x.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if rng.IntN(6) == 0 {
				// Crash here: what is durable is known before the picture is taken,
				// while flushes and compactions go on.
				durable = x.Durable()
				snapshot = fs.CrashClone(vfs.CrashCloneCfg{
					UnsyncedDataPercent: rng.IntN(5) * 25,
					RNG:                 rand.New(rand.NewPCG(uint64(seed), uint64(life))),
				})
				crashes++
				after := mustOpen(t, "/data/db", Options{FS: snapshot, Shared: shared})
				h.check(t, after, durable)
				mustClose(t, after)
			}
		}
		if snapshot == nil || rng.IntN(2) == 0 {
			mustClose(t, x)
			continue
		}
		// The next life goes on from the crash.
		mustClose(t, x)
		fs = snapshot
		x = mustOpen(t, "/data/db", Options{FS: fs, Shared: shared})
		h.check(t, x, durable)
		h.next, h.state = x.Applied(), h.states[x.Applied()]
		mustClose(t, x)
	}
	if crashes < 5 {
		t.Errorf("only %d crashes", crashes)
	}
}

// faults makes the k-th change of the file system fail, and from then on each one
// (lasting) or none.
type faults struct {
	only    string // part of the file's name
	k       int64
	lasting bool
	err     error
	n       atomic.Int64
	now     atomic.Bool
}

func (f *faults) String() string { return "faults" }

func (f *faults) MaybeError(op errorfs.Op) error {
	switch op.Kind.ReadOrWrite() {
	case errorfs.OpIsWrite:
	default:
		return nil
	}
	if !strings.Contains(op.Path, f.only) {
		return nil
	}
	n := f.n.Add(1)
	if n == f.k || f.lasting && n > f.k || f.now.Load() {
		return f.err
	}
	return nil
}

// cases 6-06 and 6-08: whichever write fails, for a moment or for good, the index
// says so and stays readable, nothing hangs or panics, and once the disk is well
// again a true prefix is there that holds whatever was called durable.
func TestEveryWriteFails(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	shared := newShared(t)
	fresh := base{vfs.NewCrashableMem(), newHistory()}
	for _, only := range []string{"", "MANIFEST-", "marker."} {
		for _, lasting := range []bool{true, false} {
			for name, from := range map[string]base{"fresh": fresh, "used": usedBase(t, shared)} {
				t.Run(fmt.Sprintf("only=%q,lasting=%v,%s", only, lasting, name), func(t *testing.T) {
					failures := 0
					for k := int64(1); ; k += 1 + rng.Int64N(failureStride) {
						f := &faults{only: only, k: k, lasting: lasting, err: &fullDisk{}}
						done, failed := runWithFaults(t, shared, f, from)
						if failed {
							failures++
						}
						if done {
							break
						}
					}
					if failures == 0 {
						t.Error("no failure seen")
					}
				})
			}
		}
	}
}

// failureStride is how many writes are left out at most, less one, from one that
// fails to the next. With 1 each is tried, which takes a minute or two with -race.
const failureStride = 12

// base is what an index starts from.
type base struct {
	fs *vfs.MemFS
	h  *history
}

// usedBase is an index that has been used and closed, with work left for compactions.
func usedBase(t *testing.T, shared *Shared) base {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 1))
	b := base{vfs.NewCrashableMem(), newHistory()}
	x := mustOpen(t, "/data/db", Options{FS: b.fs, Shared: shared})
	for range 5 {
		if err := errors.Join(b.h.commit(x, rng, 100), x.Flush(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, x)
	return b
}

// fullDisk is what a real file system says.
type fullDisk struct{}

func (*fullDisk) Error() string { return "write: no space left on device" }
func (*fullDisk) Unwrap() error { return syscall.ENOSPC }

// runWithFaults runs a workload on a copy of from and reports whether it ended before
// the fault was reached, and whether the index failed.
func runWithFaults(t *testing.T, shared *Shared, f *faults, from base) (done, failed bool) {
	t.Helper()
	mem := cloneMem(from.fs)
	rng := rand.New(rand.NewPCG(1, 2))
	h := &history{state: from.h.state, states: maps.Clone(from.h.states), next: from.h.next}
	durable := h.next
	o := Options{FS: errorfs.Wrap(mem, f), Shared: shared}
	x, err := Open("/data/db", o)
	if err != nil {
		if !errors.Is(err, syscall.ENOSPC) || errors.Is(err, record.ErrCorrupt) {
			t.Fatalf("k %d: Open: %v", f.k, err)
		}
		failed = true
	} else {
		work := func() error {
			for i := range 24 {
				if err := h.commit(x, rng, 100); err != nil {
					return err
				}
				if i%3 == 2 {
					if err := x.Flush(t.Context()); err != nil {
						return err
					}
				}
			}
			return nil
		}
		if err := work(); err != nil {
			failed = true
			if !errors.Is(err, ErrFailed) || !errors.Is(err, syscall.ENOSPC) || !errors.Is(x.Err(), ErrFailed) {
				t.Fatalf("k %d: %v; sticky: %v", f.k, err, x.Err())
			}
			// Sticky, also where the disk is well again.
			if err := h.commit(x, rng, 1); !errors.Is(err, ErrFailed) {
				t.Fatalf("k %d: commit after the failure: %v", f.k, err)
			}
			if err := x.Flush(t.Context()); !errors.Is(err, ErrFailed) {
				t.Fatalf("k %d: flush after the failure: %v", f.k, err)
			}
			wantContents(t, x, h.state) // reads go on
		}
		if p := x.Durable(); p.NextLog < durable.NextLog {
			t.Fatalf("k %d: durable went back from %+v to %+v", f.k, durable, p)
		} else {
			durable = p
		}
		if err := x.Close(); err != nil {
			failed = true
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("k %d: Close: %v", f.k, err)
			}
		} else if x.Durable() != x.Applied() {
			t.Fatalf("k %d: closed at %+v, durable %+v", f.k, x.Applied(), x.Durable())
		}
	}
	done = f.n.Load() < f.k

	for name, fs := range map[string]vfs.FS{"as it is": mem, "after a crash": mem.CrashClone(vfs.CrashCloneCfg{})} {
		x, err := Open("/data/db", Options{FS: fs, Shared: shared})
		if err != nil {
			t.Fatalf("k %d, %s: Open: %v", f.k, name, err)
		}
		h.check(t, x, durable)
		mustClose(t, x)
	}
	return done, failed
}

// A failed index does not keep a processor busy with flushes that cannot succeed.
func TestFailedIndexRests(t *testing.T) {
	f := &faults{k: 1 << 60, lasting: true, err: &fullDisk{}}
	x := mustOpen(t, "/db", Options{FS: errorfs.Wrap(vfs.NewMem(), f), Shared: newShared(t)})
	commit(t, x, map[string]int64{"a": 1}, Position{1, 1, 0})
	f.now.Store(true)
	if err := x.Flush(t.Context()); !errors.Is(err, ErrFailed) {
		t.Fatalf("Flush: %v", err)
	}
	before := f.n.Load()
	for range 1000 {
		runtime.Gosched()
	}
	// Each attempt would be a write that the faults count; failingFS lets none through.
	if n := f.n.Load() - before; n > 2 {
		t.Errorf("%d writes after the failure", n)
	}
	start := time.Now()
	if err := x.Close(); !errors.Is(err, ErrFailed) {
		t.Errorf("Close: %v", err)
	}
	if d := time.Since(start); d > retryDelay {
		t.Errorf("Close took %v", d)
	}
}
