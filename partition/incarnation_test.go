package partition

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// place is what an entity tag is made of.
type place struct{ offset, epoch int64 }

func places(t *testing.T, p *Partition, keys map[string]string) map[string]place {
	t.Helper()
	out := map[string]place{}
	for k := range keys {
		head, err := p.Lookup(t.Context(), []byte(k), Query{ResolveOnly: true})
		if err != nil {
			t.Fatalf("%s: %v", k, err)
		}
		out[k] = place{head.Offset, head.Epoch}
		if res := mustGet(t, p, k); (place{res.Offset, res.Epoch}) != out[k] {
			t.Fatalf("%s: %d/%d with its value, %+v without", k, res.Offset, res.Epoch, out[k])
		}
		is := false
		match := Query{Matches: func(offset, epoch int64) bool { is = place{offset, epoch} == out[k]; return is }}
		if res, err := p.Lookup(t.Context(), []byte(k), match); err != nil || !res.NotModified || !is {
			t.Fatalf("%s: %+v does not match itself: %v", k, out[k], err)
		}
	}
	return out
}

// Offset and epoch of a record stay what they are over all that may happen to it.
func TestEpochOfARecordStays(t *testing.T) {
	rng := seeded(t)
	r := newRig(t)
	p := r.open()
	want := fill(t, p, "a", 30)
	was := places(t, p, want)
	same := func(when string) {
		t.Helper()
		if is := places(t, p, want); !maps.Equal(is, was) {
			t.Fatalf("%s: %v, was %v", when, is, was)
		}
	}
	p = r.reopen()
	same("after a restart")
	p = r.crash(rng)
	same("after a crash")
	maps.Copy(want, fill(t, p, "b", 30))
	was = places(t, p, want)
	p = r.reopen()
	evict(t, p)
	same("after an eviction")
	r.stop()
	if err := r.fs.RemoveAll("/data/t/0/kv_index"); err != nil {
		t.Fatal(err)
	}
	if err := r.fs.RemoveAll("/data/t/0/remote"); err != nil {
		t.Fatal(err)
	}
	p = r.open()
	same("with nothing but the bucket")
	r.stop()
	p = r.other("node-b").open()
	same("on another disk")
	if a, b := was["a-000"].epoch, was["b-000"].epoch; a >= b {
		t.Errorf("epoch %d, and %d after a crash", a, b)
	}
}

// An offset whose record was lost is given again in another epoch, however it was
// lost.
func TestOffsetGivenAgainHasAnotherEpoch(t *testing.T) {
	// again puts another record at the offset of before.
	again := func(t *testing.T, p *Partition, before Result) {
		t.Helper()
		put(t, p, "k", "two")
		res := mustGet(t, p, "k")
		if res.Offset != before.Offset {
			t.Fatalf("offset %d, was %d, so the test shows nothing", res.Offset, before.Offset)
		}
		if res.Epoch <= before.Epoch {
			t.Fatalf("epoch %d, was %d", res.Epoch, before.Epoch)
		}
	}
	lose := func(r *rig) {
		after := r.fs.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{RNG: rand.New(rand.NewPCG(1, 1))})
		r.stop()
		r.fs = after
	}
	for _, store := range []bool{true, false} {
		t.Run(fmt.Sprintf("power cut, store %t", store), func(t *testing.T) {
			r := newRig(t)
			r.noStore = !store
			r.settings.FlushInterval = time.Hour
			put(t, r.open(), "first", "v")
			p := r.reopen()
			for range 3 {
				put(t, p, "k", "one")
				before := mustGet(t, p, "k")
				lose(r)
				p = r.open()
				again(t, p, before)
				lose(r)
				p = r.open()
			}
		})
	}
	t.Run("power cut, store away", func(t *testing.T) {
		r := newRig(t)
		r.settings.FlushInterval = time.Hour
		put(t, r.open(), "first", "v")
		r.stop()
		r.away(true)
		put(t, r.open(), "k", "one")
		before := mustGet(t, r.p, "k")
		lose(r)
		again(t, r.open(), before)
	})
	t.Run("disk lost", func(t *testing.T) {
		r := newRig(t)
		want := fill(t, r.open(), "a", 40)
		evict(t, r.p)
		for n := range 3 {
			put(t, r.p, "k", "one")
			before := mustGet(t, r.p, "k")
			r.stop()
			r = r.other(fmt.Sprint("node-", n))
			again(t, r.open(), before)
			before = mustGet(t, r.p, "k")
			r.stop()
			r = r.other(r.writer) // of the same name
			again(t, r.open(), before)
			evict(t, r.p)
		}
		verify(t, r.p, want, nil)
	})
	t.Run("disk lost that counted on its own", func(t *testing.T) {
		r := newRig(t)
		fill(t, r.open(), "a", 40)
		evict(t, r.p)
		r.away(true)
		var before Result
		for range 5 {
			lose(r)
			put(t, r.open(), "k", "one")
			before = mustGet(t, r.p, "k")
		}
		r.stop()
		r.away(false)
		r = r.other("node-b")
		p := r.open()
		for off := int64(40); off < before.Offset; off++ {
			put(t, p, "filler", "v")
		}
		again(t, p, before)
	})
	t.Run("disk set back", func(t *testing.T) {
		r := newRig(t)
		put(t, r.open(), "first", "v")
		r.stop()
		earlier := r.fs.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
		put(t, r.open(), "k", "one")
		before := mustGet(t, r.p, "k")
		r.stop()
		r.fs = earlier
		again(t, r.open(), before)
	})
}
