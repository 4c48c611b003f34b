package record_test

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"testing"

	"keyhole/record"
)

// TestBuilderEqualsAppendBatch builds what AppendBatch encodes from the same
// records, in one Builder, and wants the same bytes.
func TestBuilderEqualsAppendBatch(t *testing.T) {
	rnd := newRand(t)
	var b record.Builder
	var r record.Reader
	for range 300 {
		base := rnd.Int64N(1 << 40)
		recs := randomRecords(rnd, base)
		in, err := record.AppendBatch(nil, record.BatchOptions{BaseOffset: base, LastOffset: -1}, recs)
		if err != nil {
			t.Fatal(err)
		}
		o := record.BatchOptions{
			BaseOffset: max(0, base-rnd.Int64N(300)), LastOffset: recs[len(recs)-1].Offset + rnd.Int64N(3),
			LeaderEpoch: 7, Codec: allCodecs[rnd.IntN(len(allCodecs))],
		}
		want, err := record.AppendBatch([]byte("front"), o, recs)
		if err != nil {
			t.Fatal(err)
		}
		b.Reset()
		if err := r.Reset(in, 1<<24); err != nil {
			t.Fatal(err)
		}
		for r.Next() {
			if err := b.Add(r.Record(), r.Record().Offset); err != nil {
				t.Fatal(err)
			}
		}
		if b.Len() != len(recs) || b.Size() > len(in)+len(recs)*2 || b.Size() < len(in)-len(recs)*2 {
			t.Fatalf("%d records of %d bytes, want %d of about %d", b.Len(), b.Size(), len(recs), len(in))
		}
		got, err := b.Append([]byte("front"), o)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("built\n%x, want\n%x", got, want)
		}
	}
}

// TestBuilderSize wants Size to be that of the batch at the first record's offset.
func TestBuilderSize(t *testing.T) {
	rnd := newRand(t)
	var b record.Builder
	var r record.Reader
	for range 100 {
		recs := randomRecords(rnd, 5)
		in, err := record.AppendBatch(nil, record.BatchOptions{BaseOffset: recs[0].Offset, LastOffset: -1}, recs)
		if err != nil {
			t.Fatal(err)
		}
		b.Reset()
		if err := r.Reset(in, 0); err != nil {
			t.Fatal(err)
		}
		for r.Next() {
			before, plain := b.Size(), r.Record().PlainSize()
			if err := b.Add(r.Record(), r.Record().Offset); err != nil {
				t.Fatal(err)
			}
			if grown := int64(b.Size() - before); grown < plain || grown > plain+25 {
				t.Fatalf("size grew by %d for a record of %d", grown, plain)
			}
		}
		if b.Size() != len(in) {
			t.Fatalf("size %d, want %d", b.Size(), len(in))
		}
	}
}

func TestBuilderRefuses(t *testing.T) {
	view := func() *record.View {
		var r record.Reader
		in, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: -1}, numbered(1, 10))
		if err != nil || r.Reset(in, 0) != nil || !r.Next() {
			t.Fatal(err, r.Err())
		}
		return r.Record()
	}()
	var b record.Builder
	if _, err := b.Append(nil, record.BatchOptions{LastOffset: -1}); !errors.Is(err, record.ErrInvalid) {
		t.Errorf("neither records nor a last offset: %v", err)
	}
	out, err := b.Append(nil, record.BatchOptions{BaseOffset: 3, LastOffset: 3 + math.MaxInt32})
	if err != nil || len(out) != record.HeaderSize || len(readAll(t, out)) != 0 {
		t.Errorf("empty batch: %x, %v", out, err)
	}
	if err := b.Add(view, 10); err != nil {
		t.Fatal(err)
	}
	for _, offset := range []int64{-1, 0, 10, 11 + math.MaxInt32, math.MaxInt64} {
		if err := b.Add(view, offset); !errors.Is(err, record.ErrInvalid) {
			t.Errorf("offset %d behind 10: %v", offset, err)
		}
	}
	for _, o := range []record.BatchOptions{
		{BaseOffset: 11, LastOffset: 20}, {BaseOffset: 0, LastOffset: 9}, {BaseOffset: -1, LastOffset: 10},
		{BaseOffset: 0, LastOffset: math.MaxInt32 + 1},
	} {
		if out, err := b.Append([]byte("x"), o); !errors.Is(err, record.ErrInvalid) || string(out) != "x" {
			t.Errorf("%+v: %q, %v", o, out, err)
		}
	}
	if _, err := b.Append(nil, record.BatchOptions{LastOffset: -1, Codec: 5}); !errors.Is(err, record.ErrUnknownCodec) {
		t.Errorf("unknown codec: %v", err)
	}
	out, err = b.Append(nil, record.BatchOptions{BaseOffset: 9, LastOffset: -1})
	if err != nil {
		t.Fatal(err)
	}
	want := numbered(1, 10)
	want[0].Offset = 10
	if got := readAll(t, out); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestBuilderAllocations(t *testing.T) {
	in, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: -1}, numbered(200, 100))
	if err != nil {
		t.Fatal(err)
	}
	var b record.Builder
	var r record.Reader
	var out []byte
	build := func() {
		b.Reset()
		if err := r.Reset(in, 0); err != nil {
			t.Fatal(err)
		}
		for r.Next() {
			if err := b.Add(r.Record(), r.Record().Offset); err != nil {
				t.Fatal(err)
			}
		}
		if out, err = b.Append(out[:0], record.BatchOptions{LastOffset: -1}); err != nil {
			t.Fatal(err)
		}
	}
	build()
	if n := testing.AllocsPerRun(20, build); n != 0 {
		t.Errorf("%v allocations for 200 records", n)
	}
}
