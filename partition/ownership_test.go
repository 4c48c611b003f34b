package partition

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/record"
	"keyhole/tiered"
)

// away makes every request to the store fail until it is called with false.
func (r *rig) away(is bool) {
	if !is {
		r.store.Before(nil)
		return
	}
	r.store.Before(func(context.Context, objstoretest.Call) error { return objstore.ErrUnavailable })
}

// inBucket is the manifest as the bucket has it.
func (r *rig) inBucket() *manifest.Manifest {
	r.t.Helper()
	key := tiered.ManifestKey(tiered.Prefix("t", topicID, 0))
	data, _, err := r.store.Inner().Get(r.t.Context(), key, 1<<20)
	if err != nil {
		r.t.Fatal(err)
	}
	m, err := manifest.Decode(key, data)
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

// kept fails unless the record at offset is in the local log.
func kept(t *testing.T, p *Partition, offset int64, value string) {
	t.Helper()
	found := false
	err := p.log.Load().ReadBatch(offset, func(batch []byte, _ int64) error {
		found = bytes.Contains(batch, []byte(value))
		return nil
	})
	if err != nil || !found {
		t.Fatalf("record at offset %d: in the local log %t, %v", offset, found, err)
	}
}

func hostedElsewhere(t *testing.T, p *Partition) {
	t.Helper()
	eventually(t, "fenced", func() bool { _, err := get(p, "any"); return errors.Is(err, ErrNotHosted) })
	if err := tryPut(p, "any", "v"); !errors.Is(err, ErrNotHosted) {
		t.Fatalf("append to a fenced partition: %v", err)
	}
	if ready, reason, _ := p.State(); !ready || p.TakenOver() == nil {
		t.Fatalf("ready %t (%s), taken over: %v", ready, reason, p.TakenOver())
	}
}

// A disk that was set back to an earlier state takes a record before it can know.
// The record is never dropped in silence: the partition is fenced with it.
func TestDiskSetBack(t *testing.T) {
	for _, how := range []string{"chore", "evict", "restart"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t)
			fill(t, r.open(), "a", 40)
			evict(t, r.p)
			r.stop()
			earlier := r.fs.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{})
			fill(t, r.open(), "b", 40)
			evict(t, r.p)
			r.stop()

			r.fs = earlier
			r.away(true)
			p := r.open()
			off := put(t, p, "acknowledged", "kept for whoever looks")
			if how == "restart" {
				r.stop()
			}
			r.away(false)
			switch how {
			case "evict":
				// A chore may have found out first, and may be holding on.
				if _, err := p.Evict(t.Context(), 0); !errors.Is(err, ErrNotHosted) {
					t.Fatalf("evict: %v", err)
				}
			case "chore":
				p.wake()
			case "restart":
				p = r.start()
				t.Cleanup(r.stop)
			}
			hostedElsewhere(t, p)
			kept(t, p, off, "kept for whoever looks")
			if next := r.inBucket().Next(); next != 80 {
				t.Fatalf("the bucket ends at offset %d, want 80", next)
			}
		})
	}
}

// hook hears what is logged.
type hook struct {
	slog.Handler
	fn func(message string)
}

func (h hook) Handle(_ context.Context, r slog.Record) error { h.fn(r.Message); return nil }
func (h hook) WithAttrs([]slog.Attr) slog.Handler            { return h }

// A record that is answered after the disk was found to hold nothing of its own,
// and before its log was closed to begin anew, is not dropped.
func TestAppendWhileBeginningAnew(t *testing.T) {
	r, _ := overtaken(t)
	var p atomic.Pointer[Partition]
	var off atomic.Int64
	off.Store(-1)
	h := hook{slog.NewTextHandler(io.Discard, nil), func(message string) {
		if !strings.HasPrefix(message, "bucket is ahead") {
			return
		}
		at, err := p.Load().Append(context.Background(), []record.Record{{Key: []byte("k"), Value: []byte("just in time")}})
		if err == nil {
			off.Store(at)
		}
	}}
	r.options = func(o *Options) { o.Logger = slog.New(h) }
	r.away(true)
	p.Store(r.open())
	r.away(false)
	hostedElsewhere(t, p.Load())
	if off.Load() != 40 {
		t.Fatalf("the append got offset %d, so the test shows nothing", off.Load())
	}
	r.stop()
	r.options = nil
	again := r.start()
	t.Cleanup(r.stop)
	hostedElsewhere(t, again)
	kept(t, again, 40, "just in time")
}

// An overtaken disk whose index is lost learns that it was overtaken when the
// index asks for the bucket.
func TestIndexLearnsOfTheOtherWriter(t *testing.T) {
	r, want := overtaken(t)
	if err := r.fs.RemoveAll("/data/t/0/kv_index"); err != nil {
		t.Fatal(err)
	}
	r.store.FailNext(objstoretest.OpGet, 1, objstore.ErrUnavailable) // that is the claim before it
	p := r.open()
	verify(t, p, want, nil)
	if off := put(t, p, "next", "v"); off != 80 {
		t.Fatalf("next offset %d, want 80", off)
	}
}

// The bucket went back to an older manifest, and the local copy that could prove
// it is gone. The log's notes can: what is missing is damage and not absence, the
// rest is served, and nothing is built on the older manifest.
func TestBucketSetBack(t *testing.T) {
	r := newRig(t)
	want := fill(t, r.open(), "a", 40)
	evict(t, r.p)
	key := tiered.ManifestKey(tiered.Prefix("t", topicID, 0))
	older, _, err := r.store.Get(t.Context(), key, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, r.p, "b", 40)
	for range 3 { // so that generations cannot catch up by claims alone
		evict(t, r.p)
		fill(t, r.p, "c", 20)
	}
	evict(t, r.p)
	for k, v := range fill(t, r.p, "hot", 5) {
		want[k] = v
	}
	r.stop()
	if _, err := r.store.Put(t.Context(), key, bytes.NewReader(older), int64(len(older)), objstore.Condition{}); err != nil {
		t.Fatal(err)
	}
	if err := r.fs.RemoveAll("/data/t/0/remote"); err != nil {
		t.Fatal(err)
	}
	r.store.ResetCalls()
	var starting atomic.Pointer[Partition]
	var claims atomic.Int32 // before it served; the background tries again and again
	r.store.Before(func(_ context.Context, c objstoretest.Call) error {
		if c.Op != objstoretest.OpPut || c.Key != key {
			return nil
		}
		if p := starting.Load(); p != nil {
			select {
			case <-p.Opened():
				return nil
			default:
			}
		}
		claims.Add(1)
		return nil
	})
	p := r.start()
	starting.Store(p)
	t.Cleanup(r.stop)
	<-p.Opened()
	r.store.Before(nil)
	if n := claims.Load(); n > 2 {
		t.Fatalf("claimed %d times before it served", n)
	}
	check := func() {
		t.Helper()
		if _, err := get(p, "b-000"); !errors.Is(err, record.ErrCorrupt) {
			t.Fatalf("a record that the older manifest does not list: %v", err)
		}
		verify(t, p, want, nil)
	}
	check()
	fill(t, p, "d", 60)
	if _, err := p.Evict(t.Context(), 0); !errors.Is(err, record.ErrCorrupt) {
		t.Fatalf("evict: %v", err)
	}
	check()
	if next := r.inBucket().Next(); next != 40 {
		t.Fatalf("the bucket's manifest goes up to %d, want 40", next)
	}
	for _, c := range r.store.Calls() {
		if c.Op == objstoretest.OpPut && c.Key != key {
			t.Fatalf("%s was uploaded", c.Key)
		}
	}

	// Without an index there is no telling which keys are the damaged ones.
	r.stop()
	if err := r.fs.RemoveAll("/data/t/0/kv_index"); err != nil {
		t.Fatal(err)
	}
	p = r.start()
	eventually(t, "damage found", func() bool { _, err := get(p, "b-000"); return errors.Is(err, record.ErrCorrupt) })
}

// Background work that the store keeps from ending does not keep an eviction
// from being answered in time.
func TestEvictBehindStuckWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		p := r.start()
		defer r.stop()
		<-p.Opened()
		r.store.Before(func(ctx context.Context, _ objstoretest.Call) error {
			<-ctx.Done()
			return ctx.Err()
		})
		fill(t, p, "k", 40)
		p.wake()
		time.Sleep(2 * choreInterval)
		synctest.Wait()
		if len(p.chores) == 0 {
			t.Fatal("no work is stuck, so the test shows nothing")
		}
		begun := time.Now()
		_, err := p.Evict(t.Context(), 0)
		if !errors.Is(err, objstore.ErrUnavailable) || time.Since(begun) > 10*time.Second {
			t.Fatalf("after %v: %v", time.Since(begun), err)
		}
	})
}

// Evictions may be asked for at any time of a recovery, also of one that begins
// the log anew.
func TestEvictDuringRecovery(t *testing.T) {
	for seed := range uint64(5) {
		r, want := overtaken(t)
		rng := rand.New(rand.NewPCG(seed, 0))
		if rng.IntN(2) == 0 {
			r.store.FailNext(objstoretest.OpGet, 1+rng.IntN(2), objstore.ErrUnavailable)
		}
		p := r.start()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for {
				_, err := p.Evict(context.Background(), 0)
				if ready, _, _ := p.State(); err == nil && ready {
					return
				}
				if p.ctx.Err() != nil {
					return
				}
			}
		}()
		eventually(t, "ready", func() bool { _, err := get(p, "b-000"); return err == nil })
		<-ended
		verify(t, p, want, nil)
		r.stop()
	}
}
