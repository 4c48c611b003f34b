package rewrite_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"keyhole/record"
	"keyhole/rewrite"
)

// reseal makes the checksum right of a batch whose header a test changed.
func reseal(b []byte) []byte {
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// setAttributes gives b other attributes.
func setAttributes(b []byte, attrs uint16) []byte {
	binary.BigEndian.PutUint16(b[21:], attrs)
	return reseal(b)
}

const (
	logAppendTime = 1 << 3
	transactional = 1 << 4
)

// describe puts a sequence of batches into words: base-last, records.
func describe(t testing.TB, batches [][]byte) string {
	t.Helper()
	var s string
	for _, b := range batches {
		h, recs := decode(t, b)
		s += fmt.Sprintf("[%d-%d", h.BaseOffset, h.LastOffset())
		for _, r := range recs {
			s += fmt.Sprintf(" %s%d", r.Key, r.Offset)
		}
		s += "]"
	}
	return s
}

func TestShapes(t *testing.T) {
	batch := func(base, last int64, keys ...string) []byte {
		recs := make([]record.Record, 0, len(keys))
		for i, k := range keys {
			if k != "" {
				recs = append(recs, rec(base+int64(i), k))
			}
		}
		return encode(t, record.BatchOptions{BaseOffset: base, LastOffset: last}, recs...)
	}
	control := encode(t, record.BatchOptions{LastOffset: 0, Control: true}, record.Record{Key: []byte("c")})
	tx := setAttributes(batch(0, 0, "t"), transactional)
	epoch2 := encode(t, record.BatchOptions{LastOffset: 0, LeaderEpoch: 2}, rec(0, "e"))
	drop := func(gone string) func([]byte, int64, bool) (bool, error) {
		return func(key []byte, _ int64, _ bool) (bool, error) { return string(key) != gone, nil }
	}
	for _, c := range []struct {
		name          string
		o             rewrite.Options
		seq           []in
		sparse, dense string
	}{{
		name: "small batches are merged",
		seq:  []in{{batch(0, 1, "a", "b"), 10}, {batch(0, 0, "c"), 12}, {nil, 13}},
		o:    rewrite.Options{Target: 1000}, sparse: "[10-12 a10 b11 c12]", dense: "[10-12 a10 b11 c12]",
	}, {
		name: "a large batch is cut",
		seq:  []in{{batch(0, 2, "a", "b", "c"), 0}, {nil, 3}},
		o:    rewrite.Options{Target: 70}, sparse: "[0-0 a0][1-1 b1][2-2 c2]", dense: "[0-0 a0][1-1 b1][2-2 c2]",
	}, {
		name: "gaps stay, or are covered by the batch before them",
		seq:  []in{{batch(0, 4, "x", "a", "x", "x", "b"), 5}, {batch(0, 1, "x", "x"), 12}, {nil, 20}},
		o:    rewrite.Options{Target: 80, Keep: drop("x")}, sparse: "[6-9 a6 b9]", dense: "[5-19 a6 b9]",
	}, {
		name: "nothing is left",
		seq:  []in{{batch(0, 1, "x", "x"), 5}, {nil, 7}, {batch(0, 0, "x"), 8}, {nil, 9}},
		o:    rewrite.Options{Target: 80, Keep: drop("x")}, sparse: "", dense: "[5-6][8-8]",
	}, {
		name: "a run ends where it is told to",
		seq:  []in{{batch(0, 0, "a"), 5}, {nil, 6}, {batch(0, 0, "b"), 7}, {nil, 8}, {nil, 8}},
		o:    rewrite.Options{Target: 1000}, sparse: "[5-5 a5][7-7 b7]", dense: "[5-5 a5][7-7 b7]",
	}, {
		name: "control batches and transactions pass",
		seq:  []in{{batch(0, 0, "a"), 1}, {control, 3}, {batch(0, 0, "b"), 4}, {tx, 5}, {batch(0, 1, "x", "d"), 6}, {nil, 8}},
		o:    rewrite.Options{Target: 1000, Keep: drop("x")}, sparse: "[1-1 a1][3-3 c3][4-4 b4][5-5 t5][7-7 d7]",
		dense: "[1-2 a1][3-3 c3][4-4 b4][5-5 t5][6-7 d7]",
	}, {
		name: "a batch has one epoch",
		seq:  []in{{batch(0, 0, "a"), 1}, {epoch2, 3}, {epoch2, 4}, {batch(0, 0, "b"), 5}, {nil, 6}},
		o:    rewrite.Options{Target: 1000}, sparse: "[1-1 a1][3-4 e3 e4][5-5 b5]", dense: "[1-2 a1][3-4 e3 e4][5-5 b5]",
	}, {
		name: "batches without records",
		seq:  []in{{batch(0, 9), 0}, {batch(0, 0, "a"), 10}, {batch(0, 9), 11}, {nil, 21}},
		o:    rewrite.Options{Target: 1000}, sparse: "[10-10 a10]", dense: "[0-20 a10]",
	}, {
		name: "offsets beyond the reach of one batch",
		seq:  []in{{batch(0, math.MaxInt32), 0}, {batch(0, math.MaxInt32, "a"), 1 << 31}, {batch(0, 3, "b"), 2 << 31}, {nil, 5 << 31}},
		o:    rewrite.Options{Target: 1000}, sparse: "[2147483648-2147483648 a2147483648][4294967296-4294967296 b4294967296]",
		dense: "[0-2147483647][2147483648-4294967295 a2147483648][4294967296-6442450943 b4294967296]" +
			"[6442450944-8589934591][8589934592-10737418239]",
	}, {
		name: "the last offsets there are",
		seq:  []in{{batch(0, 0, "a"), math.MaxInt64 - 5}, {batch(0, 2, "b", "x", "x"), math.MaxInt64 - 3}, {nil, math.MaxInt64}},
		o:    rewrite.Options{Target: 1000, Keep: drop("x")}, sparse: "[9223372036854775802-9223372036854775804 a9223372036854775802 b9223372036854775804]",
		dense: "[9223372036854775802-9223372036854775806 a9223372036854775802 b9223372036854775804]",
	}} {
		t.Run(c.name, func(t *testing.T) {
			for _, dense := range []bool{false, true} {
				want := c.sparse
				if dense {
					want = c.dense
				}
				c.o.Dense = dense
				out, _ := run(t, c.o, c.seq...)
				if got := describe(t, out); got != want {
					t.Errorf("dense %v: %s\nwant %s", dense, got, want)
				}
			}
		})
	}
}

// history is a random sequence of batches and the records in it.
type history struct {
	seq  []in
	recs []record.Record // by output offset
	pass map[int64]bool  // base offsets of batches that go through as they are
	gaps bool
}

func randomBytes(rnd *rand.Rand, n int) []byte {
	if rnd.IntN(5) == 0 {
		return nil
	}
	b := make([]byte, rnd.IntN(n+1))
	for i := range b {
		b[i] = byte('a' + rnd.IntN(4))
	}
	return b
}

func randomHistory(t testing.TB, rnd *rand.Rand, gaps bool) history {
	h := history{pass: map[int64]bool{}, gaps: gaps}
	next := rnd.Int64N(1 << 40)
	for range 1 + rnd.IntN(30) {
		base := next
		in0 := rnd.Int64N(1 << 30) // base offset in the input
		var recs []record.Record
		off := in0 + rnd.Int64N(3)
		for range rnd.IntN(12) {
			r := record.Record{Offset: off, Timestamp: rnd.Int64N(1e12), Key: randomBytes(rnd, 3), Value: randomBytes(rnd, 200)}
			for range rnd.IntN(3) {
				r.Headers = append(r.Headers, record.Header{Name: string(randomBytes(rnd, 5)), Value: randomBytes(rnd, 20)})
			}
			recs = append(recs, r)
			off += 1 + rnd.Int64N(3)
		}
		o := record.BatchOptions{BaseOffset: in0, LastOffset: off + rnd.Int64N(3), LeaderEpoch: 3, Codec: anyCodec(rnd)}
		b := encode(t, o, recs...)
		hd, _ := decode(t, b)
		switch rnd.IntN(8) {
		case 0:
			b = setAttributes(b, uint16(hd.Attributes)|transactional)
			h.pass[base] = true
		case 1:
			b = setAttributes(b, uint16(hd.Attributes)|logAppendTime)
			for i := range recs {
				recs[i].Timestamp = hd.MaxTimestamp
			}
		}
		for i := range recs {
			recs[i].Offset += base - in0
		}
		h.recs = append(h.recs, recs...)
		h.seq = append(h.seq, in{b, base})
		next = base + o.LastOffset - in0 + 1
		if gaps {
			next += rnd.Int64N(20)
		}
		if rnd.IntN(6) == 0 {
			h.seq = append(h.seq, in{nil, next})
		}
	}
	h.seq = append(h.seq, in{nil, next})
	return h
}

// TestRandom rewrites random sequences and compares record by record.
func TestRandom(t *testing.T) {
	rnd := newRand(t)
	for range 100 {
		h := randomHistory(t, rnd, rnd.IntN(2) == 0)
		dead := map[int64]bool{}
		share := rnd.IntN(11)
		for _, r := range h.recs {
			dead[r.Offset] = r.Key != nil && rnd.IntN(10) < share
		}
		o := rewrite.Options{
			Codec: anyCodec(rnd), Target: rnd.IntN(3000), Dense: rnd.IntN(2) == 0,
			Keep: func(key []byte, offset int64, _ bool) (bool, error) {
				if key == nil {
					t.Fatalf("asked about offset %d, which has no key", offset)
				}
				return !dead[offset], nil
			},
		}
		out, stats := run(t, o, h.seq...)
		again, _ := run(t, o, h.seq...)
		if !reflect.DeepEqual(out, again) {
			t.Fatal("the same input gave other bytes")
		}
		passing := h.passing(t)
		var want, got []record.Record
		ws := rewrite.Stats{RecordsIn: int64(len(h.recs))}
		for _, r := range h.recs {
			if dead[r.Offset] && !passing[r.Offset] {
				continue
			}
			want = append(want, r)
			ws.RecordsOut++
			if r.Value == nil {
				ws.Tombstones++
			}
			ws.MaxTimestamp = max(ws.MaxTimestamp, r.Timestamp)
		}
		next := int64(-1)
		for _, b := range out {
			hd, recs := decode(t, b)
			ws.BytesOut += int64(len(b))
			if hd.BaseOffset < next || o.Dense && !h.gaps && next >= 0 && hd.BaseOffset != next {
				t.Fatalf("batch at %d behind %d", hd.BaseOffset, next-1)
			}
			if hd.LeaderEpoch != 3 {
				t.Fatalf("epoch %d", hd.LeaderEpoch)
			}
			if plain := plainSize(recs); len(recs) > 1 && plain > o.Target+record.HeaderSize+25*len(recs) && !h.pass[hd.BaseOffset] {
				t.Fatalf("%d bytes in a batch, target %d", plain, o.Target)
			}
			next = hd.NextOffset()
			got = append(got, recs...)
		}
		if !sameRecords(got, want) {
			t.Fatalf("got %v\nwant %v", got, want)
		}
		if stats != ws {
			t.Fatalf("stats %+v, want %+v", stats, ws)
		}
		if first, last := h.seq[0].base, h.seq[len(h.seq)-1].base; o.Dense && !h.gaps {
			if hd, _ := decode(t, out[0]); hd.BaseOffset != first || next != last {
				t.Fatalf("covers %d to %d, want %d to %d", hd.BaseOffset, next, first, last)
			}
		}
	}
}

func plainSize(recs []record.Record) (n int) {
	for i := range recs {
		n += recs[i].Size()
	}
	return n
}

// passing are the offsets in batches that go through as they are.
func (h history) passing(t testing.TB) map[int64]bool {
	m := map[int64]bool{}
	for _, s := range h.seq {
		if h.pass[s.base] && s.batch != nil {
			hd, recs := decode(t, s.batch)
			for _, r := range recs {
				m[r.Offset-hd.BaseOffset+s.base] = true
			}
		}
	}
	return m
}

func sameRecords(a, b []record.Record) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if len(a[i].Headers) == 0 && len(b[i].Headers) == 0 {
			a[i].Headers, b[i].Headers = nil, nil
		}
		if !reflect.DeepEqual(a[i], b[i]) {
			return false
		}
	}
	return true
}

func TestCodecs(t *testing.T) {
	big := func(c record.Codec, base int64) in {
		r := rec(base, "k")
		r.Value = make([]byte, 1000)
		return in{encode(t, record.BatchOptions{BaseOffset: base, LastOffset: -1, Codec: c}, r), base}
	}
	for _, c := range codecs {
		out, _ := run(t, rewrite.Options{Codec: c, Target: 5000}, big(record.None, 0), big(record.Gzip, 1), in{nil, 2})
		if hd, _ := decode(t, out[0]); len(out) != 1 || hd.Codec() != c {
			t.Errorf("%d batches, the first is %v, want %v", len(out), hd.Codec(), c)
		}
		out, _ = run(t, rewrite.Options{Codec: record.Zstd, KeepCodec: true, Target: 1200},
			big(c, 0), big(record.LZ4, 1), in{nil, 2})
		for i, want := range []record.Codec{c, record.LZ4} {
			if hd, _ := decode(t, out[i]); hd.Codec() != want {
				t.Errorf("batch %d is %v, want %v", i, hd.Codec(), want)
			}
		}
	}
}

func TestErrors(t *testing.T) {
	good := encode(t, record.BatchOptions{LastOffset: -1}, rec(0, "a"), rec(1, "b"))
	damaged := append([]byte(nil), good...)
	damaged[len(damaged)-1] ^= 1
	nothing := func([]byte, int64) error { return nil }
	mine := errors.New("mine")

	w := rewrite.NewWriter(rewrite.Options{Emit: nothing, Object: "obj"})
	var ce *record.CorruptError
	if err := w.Add(damaged, 0); !errors.As(err, &ce) || ce.Object != "obj" {
		t.Errorf("damaged batch: %v", err)
	}
	w = rewrite.NewWriter(rewrite.Options{Emit: nothing})
	if err := w.Add(good[:5], 0); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("five bytes: %v", err)
	}
	w = rewrite.NewWriter(rewrite.Options{Emit: nothing})
	if err := w.Add(good, -1); !errors.Is(err, record.ErrInvalid) {
		t.Errorf("negative base: %v", err)
	}
	if err := w.Add(good, math.MaxInt64-1); !errors.Is(err, record.ErrInvalid) {
		t.Errorf("base too high: %v", err)
	}
	w = rewrite.NewWriter(rewrite.Options{Emit: nothing, Target: 1000})
	if err := w.Add(good, 5); err != nil {
		t.Fatal(err)
	}
	if err := w.Add(good, 6); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("overlap: %v", err)
	}
	if err := w.Flush(6); !errors.Is(err, record.ErrInvalid) {
		t.Errorf("flush below what was added: %v", err)
	}
	if err := w.Flush(9); err != nil {
		t.Fatal(err)
	}
	if err := w.Add(good, 8); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("run that begins below the end of the one before: %v", err)
	}
	w = rewrite.NewWriter(rewrite.Options{Emit: nothing, Keep: func([]byte, int64, bool) (bool, error) { return false, mine }})
	if err := w.Add(good, 0); err != mine {
		t.Errorf("error of Keep: %v", err)
	}
	w = rewrite.NewWriter(rewrite.Options{Emit: func([]byte, int64) error { return mine }, Target: 1000})
	if err := w.Add(good, 0); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(2); err != mine {
		t.Errorf("error of Emit: %v", err)
	}
}
