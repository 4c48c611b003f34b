package partition

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"golang.org/x/sync/semaphore"

	"keyhole/record"
)

// many appends n records with keys prefix-0 … in one go.
func many(t *testing.T, p *Partition, prefix string, n int) {
	t.Helper()
	recs := make([]record.Record, n)
	for i := range recs {
		recs[i] = record.Record{Key: fmt.Appendf(nil, "%s-%d", prefix, i), Value: []byte("v")}
	}
	if _, err := p.Append(t.Context(), recs); err != nil {
		t.Fatal(err)
	}
}

// indexAhead is a rig whose power was cut when the log had not synced what the
// index had: the record "old" of offset 0 is durable, another of offset 1 and n
// of "lost" may be gone. The index vouches for all of them.
func indexAhead(t *testing.T, n, survive int, seed uint64) *rig {
	t.Helper()
	r := newRig(t)
	r.noStore = true
	r.settings.SegmentBytes = 64 << 20
	r.settings.FlushInterval = time.Hour
	p := r.open()
	put(t, p, "old", "durable")
	if err := p.log.Load().Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	put(t, p, "old", "unsynced")
	many(t, p, "lost", n)
	if err := p.serving.Load().ix.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	after := r.fs.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: survive, RNG: rand.New(rand.NewPCG(seed, 0))})
	r.stop()
	r.fs = after
	return r
}

// The index is ahead of the log after a power cut. It is built anew, also when
// records are appended before it comes to that, which then have the offsets that
// it wrongly vouches for.
func TestIndexAheadOfTheLog(t *testing.T) {
	for _, early := range []bool{false, true} {
		t.Run(fmt.Sprintf("early append %t", early), func(t *testing.T) {
			r := indexAhead(t, 200, 0, 1)
			gate := semaphore.NewWeighted(1)
			if err := gate.Acquire(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			r.options = func(o *Options) { o.Start = gate }
			p := r.start()
			t.Cleanup(r.stop)
			eventually(t, "log open", func() bool { return p.writable.Load() })
			if hw := p.log.Load().State().HighWatermark; hw != 1 {
				t.Fatalf("the log kept %d records, so the test shows nothing", hw)
			}
			if early {
				many(t, p, "acked", 400)
			}
			gate.Release(1)
			eventually(t, "ready", func() bool { ready, _, _ := p.State(); return ready })
			if res := mustGet(t, p, "old"); string(res.Value) != "durable" {
				t.Fatalf("got %q", res.Value)
			}
			for i := range 200 {
				if _, err := get(p, fmt.Sprintf("lost-%d", i)); !errors.Is(err, ErrKeyNotFound) {
					t.Fatalf("lost-%d: %v", i, err)
				}
			}
			for i := 0; early && i < 400; i++ {
				mustGet(t, p, fmt.Sprintf("acked-%d", i))
			}
		})
	}
}

// A torn tail that the index had seen and the log had not synced is cut. It is
// not damage.
func TestTornTailBelowTheIndex(t *testing.T) {
	torn := false
	for seed := range uint64(8) {
		r := indexAhead(t, 2000, 60, seed)
		p := r.open()
		if _, _, damaged := p.State(); damaged != nil {
			t.Fatalf("seed %d: %v", seed, damaged)
		}
		hw := p.log.Load().State().HighWatermark
		torn = torn || hw > 1 && hw < 2002
		want := "durable"
		if hw > 1 {
			want = "unsynced"
		}
		if res := mustGet(t, p, "old"); string(res.Value) != want {
			t.Fatalf("seed %d: log ends at %d, got %q", seed, hw, res.Value)
		}
		for i := range 2000 {
			_, err := get(p, fmt.Sprintf("lost-%d", i))
			if at := int64(2 + i); at < hw && err != nil || at >= hw && !errors.Is(err, ErrKeyNotFound) {
				t.Fatalf("seed %d: log ends at %d, record at %d: %v", seed, hw, at, err)
			}
		}
		if off := put(t, p, "next", "v"); off != hw {
			t.Fatalf("seed %d: next offset %d, want %d", seed, off, hw)
		}
		r.stop()
	}
	if !torn {
		t.Fatal("no tail was torn in the middle, so the test shows nothing")
	}
}

// The disk fails once while the index catches up, and is well again: so is the
// partition, without a restart.
func TestIndexFailsWhileCatchingUp(t *testing.T) {
	r := newRig(t)
	r.noStore = true
	r.settings.SegmentBytes = 64 << 20
	p := r.open()
	for i := range 50 {
		many(t, p, fmt.Sprintf("%030d", i), 1000)
	}
	r.stop()
	if err := r.fs.RemoveAll("/data/t/0/kv_index"); err != nil {
		t.Fatal(err)
	}
	var failed atomic.Bool
	inner := r.fs
	r.fs = errorfs.Wrap(inner, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".sst") && failed.CompareAndSwap(false, true) {
			return fmt.Errorf("injected: %w", syscall.ENOSPC)
		}
		return nil
	}))
	p = r.open()
	if !failed.Load() {
		t.Fatal("nothing failed, so the test shows nothing")
	}
	for _, k := range []string{fmt.Sprintf("%030d-0", 0), fmt.Sprintf("%030d-999", 49)} {
		mustGet(t, p, k)
	}
}

// The index is lost and so is a stretch of a local segment, but the bucket has
// the segment: its key run stands in, and the bucket's copy of the record.
func TestReplayOverDamageThatTheBucketHas(t *testing.T) {
	r := newRig(t)
	p := r.open()
	want := fill(t, p, "a", 60)
	if err := p.log.Load().Roll(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "uploaded", func() bool { p.wake(); return p.log.Load().State().RemoteNext == 60 })
	r.stop()
	r.damageLocal("value of a-010")
	if err := r.fs.RemoveAll("/data/t/0/kv_index"); err != nil {
		t.Fatal(err)
	}
	p = r.open()
	verify(t, p, want, nil)
	put(t, p, "a-010", "newer")
	if res := mustGet(t, p, "a-010"); string(res.Value) != "newer" {
		t.Fatalf("got %q", res.Value)
	}
}
