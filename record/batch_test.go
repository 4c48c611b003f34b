package record_test

import (
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"testing"

	"keyhole/record"
)

func TestAppendTimeHoldsForEveryRecord(t *testing.T) { // case 3-22
	batch, err := record.AppendBatch(nil, record.BatchOptions{BaseOffset: 10, LastOffset: -1}, sample())
	if err != nil {
		t.Fatal(err)
	}
	batch[22] |= 1 << 3
	binary.BigEndian.PutUint64(batch[27:], math.MaxUint64) // base timestamp -1
	binary.BigEndian.PutUint64(batch[35:], 1711111111111)
	h, err := record.Verify(seal(batch))
	if err != nil || !h.LogAppendTime() || h.BaseTimestamp != -1 {
		t.Fatalf("header %+v, %v", h, err)
	}
	got := readAll(t, batch)
	if len(got) != len(sample()) {
		t.Fatalf("%d records", len(got))
	}
	for _, r := range got {
		if r.Timestamp != 1711111111111 {
			t.Errorf("offset %d has time %d", r.Offset, r.Timestamp)
		}
	}
}

func TestGapsAndEmptyBatches(t *testing.T) { // cases 3-10, 3-11
	recs := []record.Record{{Offset: 8740, Key: []byte("k")}}
	for _, rs := range [][]record.Record{recs, nil} {
		batch, err := record.AppendBatch(nil, record.BatchOptions{BaseOffset: 8737, LastOffset: 8747}, rs)
		if err != nil {
			t.Fatal(err)
		}
		h, err := record.Verify(batch)
		if err != nil || h.NextOffset() != 8748 || h.LastOffset() != 8747 || h.Size() != int64(len(batch)) {
			t.Fatalf("header %+v, %v", h, err)
		}
		if got := readAll(t, batch); !reflect.DeepEqual(got, rs) {
			t.Errorf("got %v, want %v", got, rs)
		}
	}
}

func TestAttributesAndRewrites(t *testing.T) {
	batch, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: -1, LeaderEpoch: 4, Codec: record.Zstd, Control: true}, numbered(9, 300))
	if err != nil {
		t.Fatal(err)
	}
	record.SetBaseOffset(batch, 1<<40)
	record.SetLeaderEpoch(batch, 9)
	h, err := record.Verify(batch) // the checksum survived
	if err != nil {
		t.Fatal(err)
	}
	if !h.IsControl() || h.IsTransactional() || h.LogAppendTime() || h.Codec() != record.Zstd || h.LeaderEpoch != 9 ||
		h.ProducerID != -1 || h.ProducerEpoch != -1 || h.BaseSequence != -1 || h.MaxTimestamp != 1700000000008 {
		t.Errorf("header %+v", h)
	}
	if got := readAll(t, batch); got[0].Offset != 1<<40 || got[8].Offset != 1<<40+8 {
		t.Errorf("offsets %d to %d", got[0].Offset, got[8].Offset)
	}
	binary.BigEndian.PutUint16(batch[21:], 1<<4)
	if h, err := record.ParseHeader(batch); err != nil || !h.IsTransactional() || h.IsControl() {
		t.Errorf("header %+v, %v", h, err)
	}
}

func TestCompressesOnlyWhenSmaller(t *testing.T) {
	rnd := newRand(t)
	noise := make([]byte, 4096)
	for i := range noise {
		noise[i] = byte(rnd.Uint32())
	}
	recs := []record.Record{{Key: []byte("k"), Value: noise}}
	for _, c := range allCodecs {
		batch, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: -1, Codec: c}, recs)
		if err != nil {
			t.Fatal(err)
		}
		h, err := record.Verify(batch)
		if err != nil || h.Codec() != record.None {
			t.Errorf("%v: noise is stored with %v (%v)", c, h.Codec(), err)
		}
		if batch, err = record.AppendBatch(nil, record.BatchOptions{LastOffset: -1, Codec: c}, numbered(100, 100)); err != nil {
			t.Fatal(err)
		}
		if h, err = record.Verify(batch); err != nil || h.Codec() != c {
			t.Errorf("%v: text is stored with %v (%v)", c, h.Codec(), err)
		}
	}
}

func TestAppendBatchRefuses(t *testing.T) {
	recs := func(offs ...int64) []record.Record {
		out := make([]record.Record, len(offs))
		for i, o := range offs {
			out[i].Offset = o
		}
		return out
	}
	for name, c := range map[string]struct {
		o    record.BatchOptions
		recs []record.Record
		want error
	}{
		"no records, no last offset": {record.BatchOptions{LastOffset: -1}, nil, record.ErrInvalid},
		"offsets repeat":             {record.BatchOptions{LastOffset: -1}, recs(1, 1), record.ErrInvalid},
		"offsets descend":            {record.BatchOptions{LastOffset: -1}, recs(2, 1), record.ErrInvalid},
		"offset below base":          {record.BatchOptions{BaseOffset: 5, LastOffset: -1}, recs(4, 6), record.ErrInvalid},
		"offset beyond last":         {record.BatchOptions{LastOffset: 3}, recs(1, 4), record.ErrInvalid},
		"base negative":              {record.BatchOptions{BaseOffset: -1, LastOffset: 3}, recs(1), record.ErrInvalid},
		"offset at the end of time":  {record.BatchOptions{BaseOffset: math.MaxInt64 - 1, LastOffset: -1}, recs(math.MaxInt64), record.ErrInvalid},
		"delta over 32 bit":          {record.BatchOptions{LastOffset: -1}, recs(0, math.MaxInt32+1), record.ErrInvalid},
		"last before base":           {record.BatchOptions{BaseOffset: 5, LastOffset: 4}, nil, record.ErrInvalid},
		"codec":                      {record.BatchOptions{LastOffset: -1, Codec: 5}, recs(0), record.ErrUnknownCodec},
		"codec negative":             {record.BatchOptions{LastOffset: -1, Codec: -1}, recs(0), record.ErrUnknownCodec},
	} {
		dst := []byte("kept")
		got, err := record.AppendBatch(dst, c.o, c.recs)
		if !errors.Is(err, c.want) || string(got) != "kept" {
			t.Errorf("%s: got %q, %v, want %v", name, got, err, c.want)
		}
	}
}

func TestBatchOver2GiBIsRefusedBeforeItIsBuilt(t *testing.T) {
	big := make([]byte, 64<<20) // shared by all records, so the test needs no more
	recs := make([]record.Record, 33)
	for i := range recs {
		recs[i] = record.Record{Offset: int64(i), Value: big}
	}
	var err error
	n := allocated(func() { _, err = record.AppendBatch(nil, record.BatchOptions{LastOffset: -1}, recs) })
	if !errors.Is(err, record.ErrTooLarge) || n > 1<<20 {
		t.Fatalf("got %v after allocating %d bytes", err, n)
	}
}

func TestTimestampsOfAnyDistance(t *testing.T) {
	recs := []record.Record{
		{Offset: 0, Timestamp: math.MaxInt64}, {Offset: 1, Timestamp: math.MinInt64}, {Offset: 2, Timestamp: -1}, {Offset: 3},
	}
	batch, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: -1}, recs)
	if err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, batch); !reflect.DeepEqual(got, recs) {
		t.Errorf("got %v", got)
	}
}

func TestCodecNames(t *testing.T) {
	for _, c := range allCodecs {
		if got, err := record.ParseCodec(c.String()); err != nil || got != c {
			t.Errorf("%v: got %v, %v", c, got, err)
		}
	}
	for _, name := range []string{"", "ZSTD", "producer", "codec(5)"} {
		if _, err := record.ParseCodec(name); !errors.Is(err, record.ErrUnknownCodec) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if got := record.Codec(5).String(); got != "codec(5)" {
		t.Errorf("got %q", got)
	}
}

func TestSizeCountsWhatTheUserGave(t *testing.T) {
	r := sample()[3]
	if got, want := r.Size(), len("no key")+len("trace")+3+len("empty")+len("null")+len("trace")+3+1; got != want {
		t.Errorf("got %d, want %d", got, want)
	}
}
