package partition

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"keyhole/objstore/objstoretest"
	"keyhole/record"
)

// power is a switch over a disk and a bucket. It goes off at the k-th step: a
// write to the disk, or one side of a request to the bucket. From then on
// everything fails, and what a power cut leaves of the disk is kept.
type power struct {
	disk *vfs.MemFS
	cut  chan struct{} // closed when the power is off
	mu   struct {
		sync.Mutex
		rng   *rand.Rand
		steps int
		at    int // the step at which it goes off; negative: never
		after *vfs.MemFS
	}
}

var errPowerCut = errors.New("power cut")

func (w *power) step() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.after != nil {
		return errPowerCut
	}
	w.mu.steps++
	if w.mu.at < 0 || w.mu.steps <= w.mu.at {
		return nil
	}
	close(w.cut)
	w.mu.after = w.disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[w.mu.rng.IntN(3)], RNG: w.mu.rng})
	return errPowerCut
}

// wire puts the switch between the rig and its disk and bucket.
func (w *power) wire(r *rig) {
	r.fs = errorfs.Wrap(w.disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsRead || op.Kind == errorfs.OpFileClose {
			return nil
		}
		return w.step()
	}))
	r.store.Before(func(context.Context, objstoretest.Call) error { return w.step() })
	r.store.After(func(context.Context, objstoretest.Call) error { return w.step() })
}

// newPower gives r a power that goes off at step at.
func newPower(r *rig, rng *rand.Rand, at int) *power {
	w := &power{disk: r.fs.(*vfs.MemFS), cut: make(chan struct{})}
	w.mu.at, w.mu.rng = at, rng
	w.wire(r)
	r.dying = at >= 0
	return w
}

// back gives r what is left of its disk, without the switch, and says how many steps
// there were.
func (w *power) back(r *rig) (steps int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.fs = w.disk
	if w.mu.after != nil {
		r.fs = w.mu.after
	}
	r.dying = false
	r.store.Before(nil)
	r.store.After(nil)
	return w.mu.steps
}

// history is what a client knows: the records that were acknowledged, by offset,
// and the one whose fate an error left open.
type history struct {
	acked   []record.Record
	pending *record.Record
	seen    int64 // highest position that a lookup reported
}

// script appends, deletes, overwrites, evicts and restarts until it is through
// or the power is off.
func (h *history) script(r *rig, w *power, rng *rand.Rand) {
	p := r.start()
	defer r.stop()
	for step := range 70 {
		if step > 0 && step%23 == 0 {
			r.stop()
			p = r.start()
		}
		select {
		case <-p.Opened():
		case <-w.cut:
			return
		}
		rec := record.Record{Key: fmt.Appendf(nil, "key-%d", rng.IntN(12)), Timestamp: int64(step)}
		if rng.IntN(8) > 0 {
			rec.Value = fmt.Appendf(nil, "%d %0*d", step, 1+rng.IntN(500), 0)
		}
		h.pending = &rec
		off, err := p.Append(context.Background(), []record.Record{rec})
		if err != nil {
			return
		}
		rec.Offset = off
		h.acked, h.pending = append(h.acked, rec), nil
		if res, err := get(p, string(rec.Key)); err == nil || errors.Is(err, ErrKeyNotFound) {
			h.seen = max(h.seen, res.Position)
		}
		if step%9 == 8 {
			_, _ = p.Evict(context.Background(), rng.Int64N(3<<10))
		}
	}
}

// verify compares the reopened partition with what the client knows.
func (h *history) verify(t *testing.T, p *Partition) {
	t.Helper()
	got := allRecords(t, p)
	if len(got) < len(h.acked) || int64(len(got)) < h.seen {
		t.Fatalf("%d records are left; %d were acknowledged and position %d was seen", len(got), len(h.acked), h.seen)
	}
	want := h.acked
	if len(got) == len(h.acked)+1 && h.pending != nil {
		want = append(want[:len(want):len(want)], *h.pending)
	}
	if len(got) != len(want) {
		t.Fatalf("%d records, want %d", len(got), len(want))
	}
	latest := map[string]record.Record{}
	for i, rec := range got {
		if rec.Offset != int64(i) || string(rec.Key) != string(want[i].Key) || (rec.Value == nil) != (want[i].Value == nil) || string(rec.Value) != string(want[i].Value) {
			t.Fatalf("record %d is %s=%.20q at offset %d, want %s=%.20q", i, rec.Key, rec.Value, rec.Offset, want[i].Key, want[i].Value)
		}
		latest[string(rec.Key)] = rec
	}
	for i := range 12 {
		k := fmt.Sprintf("key-%d", i)
		res, err := get(p, k)
		if rec, ok := latest[k]; ok && rec.Value != nil {
			if err != nil || string(res.Value) != string(rec.Value) || res.Offset != rec.Offset {
				t.Fatalf("%s: %.20q at %d, %v; want %.20q at %d", k, res.Value, res.Offset, err, rec.Value, rec.Offset)
			}
		} else if !errors.Is(err, ErrKeyNotFound) {
			t.Fatalf("%s has no value: %v", k, err)
		}
	}
}

// allRecords reads every offset below the high watermark from the tier that
// holds it, and fails on a hole.
func allRecords(t *testing.T, p *Partition) []record.Record {
	t.Helper()
	var out []record.Record
	var r record.Reader
	st := p.log.Load().State()
	for off := int64(0); off < st.HighWatermark; {
		take := func(batch []byte, base int64) error {
			if err := r.Reset(batch, maxUncompressed); err != nil {
				return err
			}
			for r.Next() {
				v := r.Record()
				rec := record.Record{Offset: v.Offset - r.Header().BaseOffset + base, Key: append([]byte{}, v.Key...)}
				if v.Value != nil {
					rec.Value = append([]byte{}, v.Value...)
				}
				out = append(out, rec)
			}
			off = base + int64(r.Header().LastOffsetDelta) + 1
			return r.Err()
		}
		var err error
		if off >= st.LocalStart {
			err = p.log.Load().ReadBatch(off, take)
		} else {
			_, err = p.tier.ReadBatch(t.Context(), p.tier.Snapshot(), off, take)
		}
		if err != nil {
			t.Fatalf("offset %d (local start %d): %v", off, st.LocalStart, err)
		}
	}
	return out
}

// crashAt runs the script, cuts the power at step at, reopens what is left and
// compares; it gives the number of steps that the script took.
func crashAt(t *testing.T, seed uint64, at int) int {
	rng := rand.New(rand.NewPCG(seed, 1))
	r := newRig(t)
	r.settings.SegmentBytes = 2 << 10
	w := newPower(r, rng, at)
	var h history
	h.script(r, w, rand.New(rand.NewPCG(seed, 2)))
	steps := w.back(r)
	// A topic whose partition never came to be is new again, as the catalog
	// would say.
	r.isNew = len(h.acked) == 0
	h.verify(t, r.open())
	evict(t, r.p)
	h.verify(t, r.p)
	r.stop()
	if err := r.fs.RemoveAll("/data/t/0/kv_index"); err != nil {
		t.Fatal(err)
	}
	h.verify(t, r.open())
	return steps
}

// The power goes off at every k-th step of the disk and the bucket.
func TestPowerCutAtEveryStep(t *testing.T) { atEveryStep(t, 120, crashAt) }

// atEveryStep has crash cut the power at every step that it counts when it does not,
// or at a sample of them unless KEYHOLE_CRASH_SEEDS asks for whole rounds.
func atEveryStep(t *testing.T, sample int, crash func(t *testing.T, seed uint64, at int) (steps int)) {
	seeds := 1
	if n, err := strconv.Atoi(os.Getenv("KEYHOLE_CRASH_SEEDS")); err == nil {
		seeds, sample = n, 0
	}
	for range seeds {
		seed := rand.Uint64()
		steps := crash(t, seed, -1)
		stride := 1
		if sample > 0 {
			stride = steps/sample + 1
		}
		t.Logf("seed %d: %d steps, one in %d", seed, steps, stride)
		for at := int(seed % uint64(stride)); at < steps; at += stride {
			if !t.Run(fmt.Sprintf("seed=%d/step=%d", seed, at), func(t *testing.T) { crash(t, seed, at) }) {
				return
			}
		}
	}
}
