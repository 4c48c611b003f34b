package tiered

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/record"
)

// latest is what an index built from the records from an offset on would have.
func latest(from int64, sources ...*memSource) map[string]int64 {
	out := make(map[string]int64)
	for _, s := range sources {
		for _, r := range s.records {
			switch {
			case r.Key == nil || r.Offset < from:
			case r.Value == nil:
				delete(out, string(r.Key))
			default:
				out[string(r.Key)] = r.Offset
			}
		}
	}
	return out
}

// replay builds an index from the key runs.
func replay(t testing.TB, n *node, from int64) map[string]int64 {
	t.Helper()
	out := make(map[string]int64)
	err := n.KeyRuns(t.Context(), from, nil, func(key []byte, offset int64, tombstone bool) error {
		if offset < from {
			t.Errorf("offset %d below %d", offset, from)
		}
		if tombstone {
			delete(out, string(key))
		} else {
			out[string(key)] = offset
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestKeyRunsRebuildTheIndex(t *testing.T) {
	rng := newRand(t)
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	build := newBuilder(t, 0)
	var sources []*memSource
	for range 4 {
		build.random(rng, 40)
		sources = append(sources, build.done())
	}
	n.upload(t, sources...)
	all := latest(0, sources...)
	if got := replay(t, n, 0); !maps.Equal(got, all) {
		t.Fatalf("%d keys, want %d", len(got), len(all))
	}
	// From an offset on, it is what an index that is right below it needs.
	for range 30 {
		from := rng.Int64N(build.kafka + 2)
		got := make(map[string]int64)
		for _, s := range sources {
			for _, r := range s.records {
				if r.Offset >= from || r.Key == nil {
					continue
				}
				if r.Value == nil {
					delete(got, string(r.Key))
				} else {
					got[string(r.Key)] = r.Offset
				}
			}
		}
		err := n.KeyRuns(t.Context(), from, nil, func(key []byte, offset int64, tombstone bool) error {
			if tombstone {
				delete(got, string(key))
			} else {
				got[string(key)] = offset
			}
			return nil
		})
		if err != nil || !maps.Equal(got, all) {
			t.Fatalf("from %d: %d keys, want %d, %v", from, len(got), len(all), err)
		}
	}
}

// A run that is damaged, cut or gone is made up for by the batches.
func TestDamagedKeyRunFallsBackToTheBatches(t *testing.T) {
	build := newBuilder(t, 0)
	build.random(newRand(t), 40)
	first := build.done()
	build.random(newRand(t), 40)
	second := build.done()
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	seg := n.upload(t, first, second).Segments[0]
	index := content(t, b, IndexKey(prefix, &seg))
	want := latest(0, first, second)
	check := func(name string, wantRepairs float64) {
		t.Helper()
		before := testutil.ToFloat64(n.o.Shared.repairs.WithLabelValues(partRun))
		if got := replay(t, n, 0); !maps.Equal(got, want) {
			t.Errorf("%s: %d keys, want %d", name, len(got), len(want))
		}
		if got := testutil.ToFloat64(n.o.Shared.repairs.WithLabelValues(partRun)) - before; got != wantRepairs {
			t.Errorf("%s: %v repairs", name, got)
		}
	}
	check("whole", 0)
	for at := seg.TableBytes; at < seg.IndexSize; at += 23 {
		bad := bytes.Clone(index)
		bad[at] ^= 0x21
		put(t, b, IndexKey(prefix, &seg), bad)
		check(fmt.Sprintf("byte %d", at), 1)
	}
	put(t, b, IndexKey(prefix, &seg), index[:len(index)-30])
	check("cut", 1)
	if err := b.Delete(t.Context(), IndexKey(prefix, &seg)); err != nil {
		t.Fatal(err)
	}
	check("gone", 1)

	// An outage is no damage: nothing is read instead.
	put(t, b, IndexKey(prefix, &seg), index)
	b.FailNext(objstoretest.OpReadRange, 1, objstore.ErrUnavailable)
	b.ResetCalls()
	err := n.KeyRuns(t.Context(), 0, nil, func([]byte, int64, bool) error { return nil })
	if !errors.Is(err, objstore.ErrUnavailable) || b.CountKey(LogKey(prefix, &seg)) != 0 {
		t.Errorf("outage: %v, calls %v", err, b.Calls())
	}
	b.Before(nil)
	// Neither is an error of the caller, whatever it is.
	mine := record.Corrupt("mine", 0, errors.New("x"))
	b.ResetCalls()
	if err := n.KeyRuns(t.Context(), 0, nil, func([]byte, int64, bool) error { return mine }); err != mine {
		t.Errorf("got %v", err)
	}
	if b.CountKey(LogKey(prefix, &seg)) != 0 {
		t.Error("the batches were read for an error of the caller")
	}
	// With the batches damaged too there is nothing left to go by.
	log := content(t, b, LogKey(prefix, &seg))
	log[len(log)/2] ^= 1
	put(t, b, LogKey(prefix, &seg), log)
	put(t, b, IndexKey(prefix, &seg), index[:len(index)-30])
	err = n.KeyRuns(t.Context(), 0, nil, func([]byte, int64, bool) error { return nil })
	if !errors.Is(err, record.ErrCorrupt) || !strings.Contains(err.Error(), LogKey(prefix, &seg)) {
		t.Errorf("both damaged: %v", err)
	}
}

// A node on an empty disk that rebuilt its index has all tables as well.
func TestRebuildKeepsTheTables(t *testing.T) {
	b := newBucket()
	build := newBuilder(t, 0)
	sources := []*memSource{build.numbered(40), build.numbered(40)}
	newNode(t, b, nodeOptions{}).upload(t, sources...)
	fresh := newNode(t, b, nodeOptions{writer: "b"})
	b.ResetCalls()
	if got := replay(t, fresh, 0); len(got) != 80 {
		t.Fatalf("%d keys", len(got))
	}
	if b.Count() != 2 {
		t.Errorf("calls %v, want one for each segment", b.Calls())
	}
	for _, s := range sources {
		b.ResetCalls()
		fresh.wantRecord(t, s.records[5])
		if b.Count() != 1 {
			t.Errorf("first lookup: calls %v", b.Calls())
		}
	}
}

// Objects beyond one piece are read piece by piece.
func TestLongObjectsAreReadInPieces(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{chunkBytes: 64 << 10})
	build := newBuilder(t, 0)
	for i := range 12 {
		build.add(record.None, kv(0, fmt.Sprint("k", i), strings.Repeat(fmt.Sprint(i), 400_000)))
	}
	src := build.done()
	seg := n.upload(t, src).Segments[0]
	if seg.Size < pieceBytes+1<<20 {
		t.Fatalf("segment has only %d bytes", seg.Size)
	}
	put(t, b, IndexKey(prefix, &seg), content(t, b, IndexKey(prefix, &seg))[:seg.TableBytes])
	b.ResetCalls()
	if got := replay(t, n, 0); !maps.Equal(got, latest(0, src)) {
		t.Errorf("keys %v", got)
	}
	for _, c := range b.Calls() {
		if c.N > pieceBytes {
			t.Errorf("one read of %d bytes", c.N)
		}
	}
}

func TestKeyRunsEndWithTheirContext(t *testing.T) {
	n := newNode(t, newBucket(), nodeOptions{})
	n.upload(t, newBuilder(t, 0).numbered(5))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.KeyRuns(ctx, 0, nil, func([]byte, int64, bool) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
