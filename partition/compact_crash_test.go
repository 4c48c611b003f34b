package partition

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"keyhole/objstore"
	"keyhole/record"
	"keyhole/tiered"
)

// compactionScript writes, evicts, compacts and restarts until it is through or the
// power is off. It gives what each key may be.
func compactionScript(r *rig, w *power, rng *rand.Rand) map[string][]answer {
	may := map[string][]answer{}
	p := r.start()
	defer r.stop()
	for step := range 60 {
		if step%29 == 28 {
			r.stop()
			p = r.start()
		}
		select {
		case <-p.Opened():
		case <-w.cut:
			return may
		}
		k := fmt.Sprintf("key-%03d", rng.IntN(8))
		rec := record.Record{Key: []byte(k), Timestamp: int64(step)}
		if rng.IntN(4) > 0 {
			rec.Value = fmt.Appendf(nil, "%d %0*d", step, 1+rng.IntN(400), 0)
		}
		off, err := p.Append(context.Background(), []record.Record{rec})
		a := answer{err: "not found"}
		if rec.Value != nil {
			a = answer{value: string(rec.Value), offset: off, time: int64(step)}
		}
		if err != nil {
			a.offset = -1 // not known
			may[k] = append(may[k], a)
			return may
		}
		may[k] = []answer{a}
		switch step % 10 {
		case 4:
			_, _ = p.Evict(context.Background(), rng.Int64N(3<<10))
		case 7:
			_, _ = p.Compact(context.Background())
		case 9:
			_, _ = p.Collect(context.Background(), false)
		}
	}
	return may
}

func compactionCrashAt(t *testing.T, seed uint64, at int) int {
	rng := rand.New(rand.NewPCG(seed, 1))
	r := newRig(t)
	r.settings = compacting()
	r.settings.SegmentBytes = 1 << 10
	w := newPower(r, rng, at)
	may := compactionScript(r, w, rand.New(rand.NewPCG(seed, 2)))
	steps := w.back(r)
	r.isNew = len(may) == 0
	keys := numbered(8)
	verify := func(what string, p *Partition) map[string]answer {
		t.Helper()
		got := answers(t, p, keys)
		for k, a := range got {
			all := may[k]
			if len(all) == 0 || all[0].offset == -1 && len(all) == 1 {
				all = append(all, answer{err: "not found"}) // never written for sure
			}
			ok := false
			for _, m := range all {
				ok = ok || a.value == m.value && a.err == m.err && (m.offset == -1 || a.offset == m.offset)
			}
			if !ok {
				t.Fatalf("%s: %s is %.80v, may be %.80v", what, k, a, all)
			}
		}
		return got
	}
	want := verify("reopened", r.open())
	if _, err := r.p.Collect(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	compact(t, r.p)
	sameAnswers(t, "compacted again", verify("compacted again", r.p), want)
	evict(t, r.p)
	r.stop()
	if err := r.fs.RemoveAll("/data/t/0/kv_index"); err != nil {
		t.Fatal(err)
	}
	sameAnswers(t, "index built anew", answers(t, r.open(), keys), want)
	r.stop()
	b := r.other("node-b")
	sameAnswers(t, "empty disk", answers(t, b.open(), keys), want)
	// Whatever the crash left in the bucket, clean-up finds it.
	later := tiered.CollectOptions{Orphans: true, Now: func() time.Time { return time.Now().Add(time.Hour) }}
	if _, err := b.p.tier.Collect(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	objects := 0
	if err := r.store.List(t.Context(), "", func(objstore.Object) error { objects++; return nil }); err != nil {
		t.Fatal(err)
	}
	if want := 1 + 2*len(b.p.tier.Snapshot().Segments); objects != want {
		t.Fatalf("%d objects are in the bucket, want %d", objects, want)
	}
	b.stop()
	return steps
}

// The power goes off at every k-th step while both tiers are compacted.
func TestPowerCutWhileCompacting(t *testing.T) { atEveryStep(t, 100, compactionCrashAt) }
