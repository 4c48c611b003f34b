package partition

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/record"
	"keyhole/tiered"
)

func TestLookupHot(t *testing.T) {
	p := newRig(t).open()
	put(t, p, "k", "old")
	off := put(t, p, "k", "new")
	res := mustGet(t, p, "k")
	if string(res.Value) != "new" || res.Offset != off || res.Source != SourceLocal || res.Position != off+1 || res.Timestamp != 1700000000000 {
		t.Fatalf("got %+v", res)
	}
	if _, err := get(p, "absent"); !errors.Is(err, ErrKeyNotFound) {
		t.Fatalf("absent key: %v", err)
	}
	del(t, p, "k")
	if _, err := get(p, "k"); !errors.Is(err, ErrKeyNotFound) {
		t.Fatalf("tombstoned key: %v", err)
	}
}

func TestEmptyValueIsNotATombstone(t *testing.T) { // case 3-20
	p := newRig(t).open()
	put(t, p, "empty", "")
	if res := mustGet(t, p, "empty"); len(res.Value) != 0 {
		t.Fatalf("got %q", res.Value)
	}
	put(t, p, "", "of the empty key") // case 2-05
	if res := mustGet(t, p, ""); string(res.Value) != "of the empty key" {
		t.Fatalf("got %q", res.Value)
	}
}

func TestHeadersComeBackInOrder(t *testing.T) {
	r := newRig(t)
	p := r.open()
	want := []record.Header{{Name: "a", Value: []byte("1")}, {Name: "null"}, {Name: "a", Value: []byte{}}}
	if _, err := p.Append(t.Context(), []record.Record{{Key: []byte("k"), Value: []byte("v"), Headers: want}}); err != nil {
		t.Fatal(err)
	}
	for _, tier := range []string{"local", "remote"} {
		got := mustGet(t, p, "k").Headers
		if len(got) != 3 || got[0].Name != "a" || string(got[0].Value) != "1" || got[1].Value != nil || got[2].Value == nil {
			t.Fatalf("%s: headers %+v", tier, got)
		}
		evict(t, p)
	}
}

// The remote-read switch decides, live, and what is refused costs no request.
func TestSwitchDecidesLive(t *testing.T) { // case 8-02
	r := newRig(t)
	p := r.open()
	want := fill(t, p, "cold", 60)
	evict(t, p)
	off := r.settings
	off.RemoteRead = false
	p.Configure(off)
	r.store.ResetCalls()
	for k := range want {
		if _, err := get(p, k); !errors.Is(err, ErrRemoteReadDisabled) {
			t.Fatalf("%s with the switch off: %v", k, err)
		}
	}
	if n := r.store.Count(); n != 0 {
		t.Fatalf("%d requests with the switch off", n)
	}
	p.Configure(r.settings)
	for k, v := range want {
		if res := mustGet(t, p, k); string(res.Value) != v {
			t.Fatalf("%s: wrong value", k)
		}
	}
	p.Configure(off)
	for k := range want {
		if _, err := get(p, k); !errors.Is(err, ErrRemoteReadDisabled) {
			t.Fatalf("%s cached, switch off again: %v", k, err)
		}
	}
}

func TestRequestsPerLookup(t *testing.T) {
	r := newRig(t)
	p := r.open()
	fill(t, p, "cold", 60)
	del(t, p, "cold-001")
	evict(t, p)

	count := func(want int, what string, do func(p *Partition)) {
		t.Helper()
		r.store.ResetCalls()
		do(r.p)
		if n := r.store.Count(); n != want {
			t.Errorf("%s: %d requests, want %d: %v", what, n, want, r.store.Calls())
		}
	}
	lookup := func(key string, q Query) func(*Partition) {
		return func(p *Partition) {
			if _, err := p.Lookup(t.Context(), []byte(key), q); err != nil && !errors.Is(err, ErrKeyNotFound) {
				t.Errorf("%s: %v", key, err)
			}
		}
	}
	count(1, "uncached", lookup("cold-000", Query{}))
	count(0, "cached", lookup("cold-000", Query{}))
	count(0, "absent", lookup("no such key", Query{}))
	count(0, "tombstoned", lookup("cold-001", Query{}))
	count(0, "304", lookup("cold-030", Query{Matches: func(_, _ int64) bool { return true }}))
	count(0, "HEAD", lookup("cold-030", Query{ResolveOnly: true}))
	r.reopen()
	count(1, "first after a restart", lookup("cold-055", Query{}))
	count(1, "50 at once", func(p *Partition) {
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() { lookup("cold-010", Query{})(p) })
		}
		wg.Wait()
	})
}

func TestSourceSaysWhereTheValueWas(t *testing.T) {
	p := newRig(t).open()
	put(t, p, "k", "v")
	for _, want := range []Source{SourceLocal, SourceRemote, SourceCache} {
		if res := mustGet(t, p, "k"); res.Source != want {
			t.Fatalf("source %v, want %v", res.Source, want)
		}
		if want == SourceLocal {
			evict(t, p)
		}
	}
}

// A pointer that leads to a record of another key is resolved once more, then
// answered as not found: never with the other key's value.
func TestForeignRecordIsNeverServed(t *testing.T) {
	p := newRig(t).open()
	off := put(t, p, "a", "of a")
	b := p.feed.ix.NewBatch()
	b.Set([]byte("b"), off)
	if err := b.Commit(p.feed.ix.Applied()); err != nil {
		t.Fatal(err)
	}
	b.Close()
	if res, err := get(p, "b"); !errors.Is(err, ErrKeyNotFound) || len(res.Value) > 0 {
		t.Fatalf("got %q, %v", res.Value, err)
	}
}

// A segment that retention has taken out of the manifest is not retained, which
// only a manifest that was read from the bucket can prove.
func TestNotRetained(t *testing.T) {
	r := newRig(t)
	want := fill(t, r.open(), "k", 60)
	evict(t, r.p)
	r.stop()
	key := tiered.ManifestKey(tiered.Prefix("t", topicID, 0))
	data, _, err := r.store.Get(t.Context(), key, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	m, err := manifest.Decode(key, data)
	if err != nil {
		t.Fatal(err)
	}
	shorter := *m
	shorter.Generation++
	shorter.Segments = m.Segments[1:]
	shorter.StartOffset = shorter.Segments[0].BaseOffset
	if data, err = manifest.Encode(&shorter); err != nil {
		t.Fatal(err)
	}
	if _, err := r.store.Put(t.Context(), key, bytes.NewReader(data), int64(len(data)), objstore.Condition{}); err != nil {
		t.Fatal(err)
	}
	p := r.open()
	gone := 0
	for k, v := range want {
		res, err := get(p, k)
		switch {
		case res.Offset >= shorter.Start() && err == nil && string(res.Value) == v:
		case res.Offset < shorter.Start() && errors.Is(err, ErrNotRetained):
			gone++
		default:
			t.Fatalf("%s at %d: %v", k, res.Offset, err)
		}
	}
	if gone == 0 {
		t.Fatal("no key was in the segment that went")
	}
}

// A remote record of another key is not found, never served.
func TestForeignRemoteRecord(t *testing.T) {
	p := newRig(t).open()
	put(t, p, "a", "v")
	evict(t, p)
	b := p.feed.ix.NewBatch()
	b.Set([]byte("b"), 0)
	if err := b.Commit(p.feed.ix.Applied()); err != nil {
		t.Fatal(err)
	}
	b.Close()
	if _, err := get(p, "b"); !errors.Is(err, ErrKeyNotFound) {
		t.Fatalf("foreign remote record: %v", err)
	}
}

func TestDamagedChunkIsAnErrorAndNotCached(t *testing.T) { // case 3-25
	r := newRig(t)
	p := r.open()
	put(t, p, "k", "the value")
	evict(t, p)
	flip := true
	r.store.FilterRead(func(_ objstoretest.Call, data []byte) []byte {
		if flip && len(data) > 0 {
			data[len(data)-3] ^= 1
		}
		return data
	})
	if res, err := get(p, "k"); !errors.Is(err, record.ErrCorrupt) || len(res.Value) > 0 {
		t.Fatalf("got %q, %v", res.Value, err)
	}
	flip = false
	if res := mustGet(t, p, "k"); string(res.Value) != "the value" || res.Source != SourceRemote {
		t.Fatalf("after healing: %+v", res)
	}
}

func TestMissingObjectIsDamageNotAbsence(t *testing.T) { // cases 4-14, 7-06
	r := newRig(t)
	p := r.open()
	put(t, p, "k", "v")
	evict(t, p)
	r.store.Before(func(_ context.Context, c objstoretest.Call) error {
		if c.Op == objstoretest.OpReadRange {
			return objstore.ErrNotFound
		}
		return nil
	})
	if _, err := get(p, "k"); !errors.Is(err, record.ErrCorrupt) {
		t.Fatalf("got %v", err)
	}
}

func TestStoreTroubleIsNeverAbsence(t *testing.T) { // case 4-15
	r := newRig(t)
	p := r.open()
	put(t, p, "cold", "v")
	evict(t, p)
	put(t, p, "hot", "v")
	for _, cause := range []error{objstore.ErrUnavailable, objstore.ErrDenied, objstore.ErrMisconfigured} {
		r.store.Before(func(context.Context, objstoretest.Call) error { return cause })
		if _, err := get(p, "cold"); !errors.Is(err, cause) {
			t.Errorf("%v became %v", cause, err)
		}
		mustGet(t, p, "hot")
	}
}

func TestMinPosition(t *testing.T) {
	p := newRig(t).open()
	off := put(t, p, "k", "v")
	q := func(min int64, wait time.Duration) error {
		_, err := p.Lookup(t.Context(), []byte("k"), Query{MinPosition: min, Wait: wait})
		return err
	}
	if err := q(off+1, 0); err != nil {
		t.Fatalf("position that is reached: %v", err)
	}
	if err := q(off+2, 0); !errors.Is(err, ErrPositionNotReached) {
		t.Fatalf("position ahead, no wait: %v", err)
	}
	waiting := make(chan error)
	go func() { waiting <- q(off+2, patience) }()
	put(t, p, "other", "v")
	if err := <-waiting; err != nil {
		t.Fatalf("position reached while waiting: %v", err)
	}
}

func TestLookupOrderOfRefusals(t *testing.T) {
	r := newRig(t)
	p := r.open()
	put(t, p, "k", "v")
	evict(t, p)
	s := r.settings
	s.IndexActive, s.RemoteRead = false, false
	p.Configure(s)
	if _, err := get(p, "k"); !errors.Is(err, ErrNotIndexed) {
		t.Fatalf("index hidden: %v", err)
	}
	p.fence(errors.New("test"))
	if _, err := get(p, "k"); !errors.Is(err, ErrNotHosted) {
		t.Fatalf("fenced: %v", err)
	}
	if _, err := p.Append(t.Context(), []record.Record{{Key: []byte("k")}}); !errors.Is(err, ErrNotHosted) {
		t.Fatalf("append while fenced: %v", err)
	}
	r.stop()
	if _, err := get(p, "k"); !errors.Is(err, ErrNotHosted) && !errors.Is(err, ErrClosed) {
		t.Fatalf("closed: %v", err)
	}
}

func TestValidation(t *testing.T) {
	p := newRig(t).open()
	for _, c := range []struct {
		rec  record.Record
		want error
	}{
		{record.Record{Value: []byte("v")}, ErrNoKey},
		{record.Record{Key: make([]byte, MaxKeyBytes+1)}, ErrKeyTooLong},
		{record.Record{Key: []byte("k"), Value: make([]byte, 1<<20)}, ErrRecordTooLarge},
	} {
		if _, err := p.Append(t.Context(), []record.Record{c.rec}); !errors.Is(err, c.want) {
			t.Errorf("got %v, want %v", err, c.want)
		}
	}
	longest := string(make([]byte, MaxKeyBytes))
	put(t, p, longest, "v")
	evict(t, p)
	if res := mustGet(t, p, longest); string(res.Value) != "v" {
		t.Fatal("the longest key is not readable")
	}
}
