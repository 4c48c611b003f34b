package record_test

import (
	"encoding/binary"
	"errors"
	"reflect"
	"testing"

	"keyhole/record"
)

// FuzzReader feeds the reader bytes as they are and with a length and checksum
// put right, so that the fuzzer gets past them. Whatever reads without an
// error must survive being encoded again.
func FuzzReader(f *testing.F) {
	for _, c := range allCodecs {
		b, err := record.AppendBatch(nil, record.BatchOptions{BaseOffset: 10, LastOffset: 30, Codec: c}, sample())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(packed(c, 50, compress(f, c, section(f, numbered(50, 40)))))
	}
	f.Add(packed(record.Snappy, 50, xerial(f, section(f, numbered(50, 40)), 100)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var r record.Reader
		checkReader(t, &r, b)
		if len(b) >= record.HeaderSize {
			b = append([]byte(nil), b...)
			b[16] = 2
			checkReader(t, &r, seal(b))
		}
	})
}

func checkReader(t *testing.T, r *record.Reader, b []byte) {
	const limit = 1 << 16
	if err := r.Reset(b, limit); err != nil {
		if !errors.Is(err, record.ErrCorrupt) && !errors.Is(err, record.ErrShort) {
			t.Fatalf("unmarked error %v", err)
		}
		return
	}
	h := r.Header()
	if h.Size() != int64(len(b)) {
		t.Fatalf("took %d of %d bytes", h.Size(), len(b))
	}
	var recs []record.Record
	total := 0
	for r.Next() {
		v := r.Record()
		hs, err := v.Headers()
		if err != nil || len(hs) != v.NumHeaders() {
			t.Fatalf("headers of a valid record: %d of %d, %v", len(hs), v.NumHeaders(), err)
		}
		rec := record.Record{Offset: v.Offset, Timestamp: v.Timestamp, Key: v.Key, Value: v.Value, Headers: hs}
		total += rec.Size()
		recs = append(recs, rec)
	}
	if total > max(limit, len(b)) {
		t.Fatalf("%d bytes of records out of %d", total, len(b))
	}
	if err := r.Err(); err != nil {
		if !errors.Is(err, record.ErrCorrupt) {
			t.Fatalf("unmarked error %v", err)
		}
		return
	}
	if len(recs) != int(h.NumRecords) {
		t.Fatalf("%d records of %d", len(recs), h.NumRecords)
	}
	again, err := record.AppendBatch(nil, record.BatchOptions{BaseOffset: h.BaseOffset, LastOffset: h.LastOffset()}, recs)
	if err != nil {
		t.Fatalf("encoding again: %v", err)
	}
	if got := readAll(t, again); !reflect.DeepEqual(got, recs) {
		t.Fatalf("encoded again: %v, want %v", got, recs)
	}
}

// FuzzRecord encodes one record and a fixed neighbour; the bytes must read
// back equal and be rejected at every cut.
func FuzzRecord(f *testing.F) {
	f.Add([]byte("k"), []byte("v"), "name", []byte("x"), int64(5), int64(1700000000000), uint8(0))
	f.Add([]byte{}, []byte{}, "", []byte{}, int64(0), int64(-1), uint8(7))
	f.Fuzz(func(t *testing.T, key, value []byte, name string, hv []byte, off, ts int64, shape uint8) {
		// The fuzzer cannot produce nil, so the low bits of shape do.
		for i, p := range []*[]byte{&key, &value, &hv} {
			if shape&(1<<i) != 0 {
				*p = nil
			} else if *p == nil {
				*p = []byte{}
			}
		}
		off &= 1<<31 - 1
		recs := []record.Record{
			{Offset: off, Timestamp: ts, Key: key, Value: value, Headers: []record.Header{{Name: name, Value: hv}, {Name: name}}},
			{Offset: off + 1, Key: []byte("neighbour")},
		}
		c := allCodecs[int(shape>>3)%len(allCodecs)]
		batch, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: off + 1, Codec: c}, recs)
		if errors.Is(err, record.ErrInvalid) && off+1 > 1<<31-1 {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := readAll(t, batch); !reflect.DeepEqual(got, recs) {
			t.Fatalf("got %v, want %v", got, recs)
		}
		if n := int(binary.BigEndian.Uint32(batch[8:])) + 12; n != len(batch) {
			t.Fatalf("declares %d of %d bytes", n, len(batch))
		}
		for i := 0; i < len(batch); i += 1 + len(batch)/64 {
			if _, err := record.Verify(batch[:i]); err == nil {
				t.Fatalf("cut at %d passes", i)
			}
		}
	})
}
