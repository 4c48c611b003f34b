package record_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"runtime"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"keyhole/record"
)

// allocated is how many bytes f allocated, whether or not they are still held.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// letters writes n bytes of 'a' through w and closes it.
func letters(t testing.TB, w io.WriteCloser, n int) {
	t.Helper()
	block := bytes.Repeat([]byte("a"), 1<<20)
	for ; n > 0; n -= len(block) {
		if _, err := w.Write(block); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestBombsStayBounded(t *testing.T) { // cases 3-07, 3-08
	const size, limit = 200 << 20, 1 << 20

	var zs, zsDeclared, gz, lz bytes.Buffer
	zw, err := zstd.NewWriter(&zs, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	letters(t, zw, size)
	zw.ResetContentSize(&zsDeclared, size)
	letters(t, zw, size)
	gw, err := gzip.NewWriterLevel(&gz, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	letters(t, gw, size/4)
	lw := lz4.NewWriter(&lz)
	letters(t, lw, size/4)

	huge := []byte{0xff, 0xff, 0xff, 0xff, 0x07} // snappy's length of 2 GiB - 1
	hugeXerial := []byte("\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
	for range 8 {
		hugeXerial = binary.BigEndian.AppendUint32(hugeXerial, uint32(len(huge)))
		hugeXerial = append(hugeXerial, huge...)
	}
	zstdFrame := []byte{0x28, 0xb5, 0x2f, 0xfd}
	rawBlock := []byte{0x01 | 1<<3, 0, 0, 'a'} // last block, raw, one byte

	for name, b := range map[string]struct {
		codec    record.Codec
		payload  []byte
		tooLarge bool
	}{
		"zstd, size not declared":      {record.Zstd, zs.Bytes(), true},
		"zstd, size declared":          {record.Zstd, zsDeclared.Bytes(), true},
		"zstd, window of 2 GiB":        {record.Zstd, append(append(zstdFrame, 0x00, 21<<3), rawBlock...), false},
		"zstd, content of 1 TiB":       {record.Zstd, append(append(zstdFrame, 0xe0, 0, 0, 0, 0, 0, 1, 0, 0), rawBlock...), true},
		"gzip":                         {record.Gzip, gz.Bytes(), true},
		"lz4":                          {record.LZ4, lz.Bytes(), true},
		"snappy, declares 2 GiB":       {record.Snappy, huge, true},
		"xerial, declares 16 GiB":      {record.Snappy, hugeXerial, true},
		"snappy, declares over 32 bit": {record.Snappy, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, false},
		"xerial, block beyond the end": {record.Snappy, append(hugeXerial[:16:16], 0xff, 0xff, 0xff, 0xff, 0), false},
		"xerial, half a length":        {record.Snappy, append(hugeXerial[:16:16], 0, 0), false},
		"no bytes, zstd":               {record.Zstd, nil, false},
		"no bytes, gzip":               {record.Gzip, nil, false},
		"no bytes, lz4":                {record.LZ4, nil, false},
		"no bytes, snappy":             {record.Snappy, nil, false},
	} {
		batch := packed(b.codec, 1, b.payload)
		var r record.Reader
		var err error
		n := allocated(func() { err = r.Reset(batch, limit) })
		if !errors.Is(err, record.ErrCorrupt) || errors.Is(err, record.ErrTooLarge) != b.tooLarge {
			t.Errorf("%s: got %v, want damage, too large %v", name, err, b.tooLarge)
		}
		// The sum over all steps of growth is 4/3 of the limit; the rest is the
		// codec's own fixed state, lz4's blocks of 4 MiB most of all.
		if n > 12<<20 {
			t.Errorf("%s: %d bytes allocated for a limit of %d", name, n, limit)
		}
		// The reader is as good as new.
		good, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: -1, Codec: b.codec}, numbered(50, 100))
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Reset(good, limit); err != nil {
			t.Errorf("%s: a sound batch afterwards: %v", name, err)
		} else if got := drain(t, &r); !reflect.DeepEqual(got, numbered(50, 100)) {
			t.Errorf("%s: a sound batch afterwards reads wrong", name)
		}
	}
}

func TestLimitIsExact(t *testing.T) {
	recs := numbered(500, 100)
	plain := section(t, recs)
	for _, c := range allCodecs[1:] {
		batch := packed(c, int32(len(recs)), compress(t, c, plain))
		var r record.Reader
		for _, limit := range []int{-1, 0, 1, len(plain) / 2, len(plain) - 1} {
			if err := r.Reset(batch, limit); !errors.Is(err, record.ErrTooLarge) {
				t.Errorf("%v: limit %d of %d: %v", c, limit, len(plain), err)
			}
		}
		for _, limit := range []int{len(plain), len(plain) + 1, 1 << 30} {
			if err := r.Reset(batch, limit); err != nil {
				t.Errorf("%v: limit %d of %d: %v", c, limit, len(plain), err)
			} else if got := drain(t, &r); !reflect.DeepEqual(got, recs) {
				t.Errorf("%v: limit %d: records differ", c, limit)
			}
		}
		// A large buffer left over from before must not soften a smaller limit.
		if err := r.Reset(batch, len(plain)-1); !errors.Is(err, record.ErrTooLarge) {
			t.Errorf("%v: smaller limit after a larger one: %v", c, err)
		}
	}
}

func TestBufferGrowsForHighRatios(t *testing.T) {
	recs := numbered(1, 0)
	recs[0].Value = bytes.Repeat([]byte("a"), 3<<20)
	for _, c := range allCodecs {
		batch, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: -1, Codec: c}, recs)
		if err != nil {
			t.Fatal(err)
		}
		if got := readAll(t, batch); !reflect.DeepEqual(got, recs) {
			t.Errorf("%v: records differ", c)
		}
	}
}

func TestSnappyFramings(t *testing.T) { // cases 3-01, 3-02
	recs := numbered(800, 100) // more than two blocks of 32 KiB
	plain := section(t, recs)
	var r record.Reader
	for name, payload := range map[string][]byte{
		"raw":               compress(t, record.Snappy, plain),
		"xerial":            xerial(t, plain, 32<<10),
		"xerial, one block": xerial(t, plain, len(plain)),
		"xerial, tiny":      xerial(t, plain, 10),
	} {
		if err := r.Reset(packed(record.Snappy, int32(len(recs)), payload), 1<<20); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := drain(t, &r); !reflect.DeepEqual(got, recs) {
			t.Errorf("%s: records differ", name)
		}
	}
}

func TestNothingIsAllocatedPerRecord(t *testing.T) {
	for _, c := range allCodecs {
		batch, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: -1, Codec: c}, numbered(100, 100))
		if err != nil {
			t.Fatal(err)
		}
		var r record.Reader
		sum := 0
		allocs := testing.AllocsPerRun(50, func() {
			if err := r.Reset(batch, 1<<20); err != nil {
				t.Fatal(err)
			}
			for r.Next() {
				v := r.Record()
				sum += len(v.Key) + len(v.Value) + v.NumHeaders()
			}
			if r.Err() != nil {
				t.Fatal(r.Err())
			}
		})
		// Decompressing may cost a few allocations a batch, records never.
		most := map[record.Codec]float64{record.None: 0}
		limit, ok := most[c]
		if !ok {
			limit = 8
		}
		if allocs > limit || sum == 0 {
			t.Errorf("%v: %v allocations for 100 records, want at most %v", c, allocs, limit)
		}
		if c != record.None && len(batch) > len(section(t, numbered(100, 100))) {
			t.Errorf("%v: batch is not compressed, so the test proves nothing", c)
		}
	}
}
