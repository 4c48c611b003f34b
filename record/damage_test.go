package record_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"keyhole/record"
)

func TestEveryFlippedBitIsFound(t *testing.T) { // case 3-25
	batch, err := record.AppendBatch(nil, record.BatchOptions{BaseOffset: 10, LastOffset: -1}, sample())
	if err != nil {
		t.Fatal(err)
	}
	for i := range batch {
		for bit := range 8 {
			bad := append([]byte(nil), batch...)
			bad[i] ^= 1 << bit
			_, err := record.Verify(bad)
			// The checksum leaves out the base offset and the leader epoch.
			free := i < 8 || i >= 12 && i < 16
			negative := i == 0 && bit == 7
			switch {
			case free && !negative && err != nil:
				t.Errorf("byte %d bit %d: %v", i, bit, err)
			case (!free || negative) && !errors.Is(err, record.ErrCorrupt):
				t.Errorf("byte %d bit %d: got %v, want damage", i, bit, err)
			}
		}
	}
}

func TestCutAtEveryByte(t *testing.T) {
	for _, c := range allCodecs {
		batch, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: -1, Codec: c}, numbered(20, 50))
		if err != nil {
			t.Fatal(err)
		}
		var r record.Reader
		for i := range batch {
			_, err := record.Verify(batch[:i:i])
			if i < record.HeaderSize && !errors.Is(err, record.ErrShort) || i >= record.HeaderSize && !errors.Is(err, record.ErrCorrupt) {
				t.Fatalf("%v cut at %d: Verify: %v", c, i, err)
			}
			if err := r.Reset(batch[:i:i], 1<<20); err == nil || r.Next() || !errors.Is(r.Err(), err) {
				t.Fatalf("%v cut at %d: Reset %v, then Err %v", c, i, err, r.Err())
			}
		}
		// The same cuts with a length and a checksum that agree with them: only
		// the records themselves can tell. (A cut lz4 frame loses its decoder a
		// block of 4 MiB; some of the cuts will do.)
		step := 1
		if c == record.LZ4 {
			step = 17
		}
		for i := record.HeaderSize; i < len(batch); i += step {
			cut := seal(append([]byte(nil), batch[:i]...))
			err := r.Reset(cut, 1<<20)
			if err == nil {
				for r.Next() {
				}
				err = r.Err()
			}
			if !errors.Is(err, record.ErrCorrupt) {
				t.Fatalf("%v sealed and cut at %d: %v", c, i, err)
			}
		}
	}
}

func TestDamagedRecordEndsIterationLoudly(t *testing.T) { // case 3-26
	recs := numbered(10, 20)
	starts := []int{record.HeaderSize}
	for i := range recs {
		starts = append(starts, record.HeaderSize+len(section(t, recs[:i+1])))
	}
	batch, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: -1}, recs)
	if err != nil {
		t.Fatal(err)
	}
	for field, damage := range map[string]struct {
		at    int // behind the start of the third record
		value byte
	}{
		"record length shorter": {0, batch[starts[2]] - 2},
		"record length longer":  {0, batch[starts[2]] + 2},
		"record length -1":      {0, 1},
		"offset goes back":      {3, 2}, // delta 1, which record 2 has
		"offset beyond batch":   {3, 20},
		"offset negative":       {3, 1},
		"key length too long":   {4, 0x7e},
		"key length -2":         {4, 3},
		"header count":          {4 + 1 + 10 + 1 + 20, 4},
		"header count huge":     {4 + 1 + 10 + 1 + 20, 0x7e},
		"header name null":      {4 + 1 + 10 + 1 + 20 + 1, 1},
	} {
		bad := append([]byte(nil), batch...)
		if bad[starts[2]+damage.at] == damage.value {
			t.Fatalf("%s: nothing to damage", field)
		}
		bad[starts[2]+damage.at] = damage.value
		var r record.Reader
		if err := r.Reset(seal(bad), 0); err != nil {
			t.Fatalf("%s: Reset: %v", field, err)
		}
		n := 0
		for r.Next() {
			n++
		}
		var ce *record.CorruptError
		if n != 2 || !errors.As(r.Err(), &ce) || ce.Position != int64(starts[2]) {
			t.Errorf("%s: %d records, then %v; want 2 and damage at %d", field, n, r.Err(), starts[2])
		}
		if r.Next() {
			t.Errorf("%s: Next goes on behind damage", field)
		}
	}
}

func TestRecordCountMustMatch(t *testing.T) {
	recs := numbered(10, 20)
	batch, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: 20}, recs)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []uint32{9, 11, 21} {
		bad := append([]byte(nil), batch...)
		binary.BigEndian.PutUint32(bad[57:], n)
		var r record.Reader
		err := r.Reset(seal(bad), 0)
		for err == nil && r.Next() {
		}
		if !errors.Is(r.Err(), record.ErrCorrupt) {
			t.Errorf("%d records declared, 10 there: %v", n, r.Err())
		}
	}
}

func TestHeaderFieldsOutOfRange(t *testing.T) {
	base := func() []byte { return packed(record.None, 1, section(t, numbered(1, 5))) }
	for name, set := range map[string]func(b []byte){
		"magic 0":              func(b []byte) { b[16] = 0 },
		"magic 1":              func(b []byte) { b[16] = 1 },
		"length 48":            func(b []byte) { binary.BigEndian.PutUint32(b[8:], 48) },
		"length negative":      func(b []byte) { binary.BigEndian.PutUint32(b[8:], 1<<31) },
		"base offset negative": func(b []byte) { record.SetBaseOffset(b, -1) },
		"last offset overflow": func(b []byte) { record.SetBaseOffset(b, math.MaxInt64) },
		"last delta negative":  func(b []byte) { binary.BigEndian.PutUint32(b[23:], 1<<31) },
		"record count -1":      func(b []byte) { binary.BigEndian.PutUint32(b[57:], math.MaxUint32) },
		"more than offsets":    func(b []byte) { binary.BigEndian.PutUint32(b[57:], 2) },
	} {
		b := base()
		if _, err := record.ParseHeader(b); err != nil {
			t.Fatal(err)
		}
		set(b)
		if _, err := record.ParseHeader(b); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: got %v, want damage", name, err)
		}
	}
	if _, err := record.ParseHeader(base()[:record.HeaderSize-1]); !errors.Is(err, record.ErrShort) || errors.Is(err, record.ErrCorrupt) {
		t.Errorf("short header: got %v, want ErrShort", err)
	}
}

func TestUnknownCodecIsAnError(t *testing.T) { // case 3-04
	for c := record.Codec(5); c < 8; c++ {
		_, err := record.Verify(packed(c, 1, section(t, numbered(1, 5))))
		if !errors.Is(err, record.ErrCorrupt) || !errors.Is(err, record.ErrUnknownCodec) {
			t.Errorf("codec %d: %v", c, err)
		}
	}
}

func TestCorruptNamesThePlace(t *testing.T) {
	inner := errors.New("bad byte")
	err := record.Corrupt("", 7, inner)
	err = record.Corrupt("t/0/1.log", 100, fmt.Errorf("reading: %w", err))
	var ce *record.CorruptError
	if !errors.As(err, &ce) || ce.Object != "t/0/1.log" || ce.Position != 107 || ce.Err != inner {
		t.Fatalf("got %#v", err)
	}
	if !errors.Is(err, record.ErrCorrupt) || !errors.Is(err, inner) || errors.Is(err, record.ErrShort) {
		t.Fatalf("%v matches the wrong sentinels", err)
	}
	if text := err.Error(); !strings.Contains(text, "t/0/1.log") || !strings.Contains(text, "107") {
		t.Fatalf("text %q lacks the place", text)
	}
	// A place that is known already stays the innermost one.
	outer := record.Corrupt("other", 1, err)
	if !errors.As(outer, &ce) || ce.Object != "other" || !strings.Contains(outer.Error(), "t/0/1.log") {
		t.Fatalf("got %v", outer)
	}
}
