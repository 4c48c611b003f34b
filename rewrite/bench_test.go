package rewrite_test

import (
	"fmt"
	"testing"

	"keyhole/record"
	"keyhole/rewrite"
)

// small is a sequence of batches of about 4 KiB, as appending makes them: 4000
// records of 160 bytes over 1000 keys.
func small(tb testing.TB, c record.Codec) (seq []in, size int64) {
	const perBatch = 25
	for base := int64(0); base < 4000; base += perBatch {
		recs := make([]record.Record, perBatch)
		for i := range recs {
			n := base + int64(i)
			recs[i] = record.Record{
				Offset: n, Timestamp: 1e12 + n, Key: fmt.Appendf(nil, "key-%06d", n%1000),
				Value:   fmt.Appendf(nil, `{"id":%d,"name":"a name of number %d","field":%d,"other":%d,"third":%d,"text":"some more"}`, n, n*7, n*n, n^99, n*31),
				Headers: []record.Header{{Name: "n", Value: []byte{byte(n)}}},
			}
		}
		b := encode(tb, record.BatchOptions{BaseOffset: base, LastOffset: -1, Codec: c}, recs...)
		seq = append(seq, in{b, base})
		size += int64(len(b))
	}
	return seq, size
}

func discard([]byte, int64) error { return nil }

// BenchmarkRewrite merges 640 KiB of small batches into ones of 64 KiB; bytes are
// those of the plain input.
func BenchmarkRewrite(b *testing.B) {
	latest := func(_ []byte, offset int64, _ bool) (bool, error) { return offset >= 3000, nil }
	for _, c := range []struct {
		name    string
		in, out record.Codec
		keep    func([]byte, int64, bool) (bool, error)
	}{
		{"none-none-all", record.None, record.None, nil},
		{"none-none-quarter", record.None, record.None, latest},
		{"none-zstd-all", record.None, record.Zstd, nil},
		{"zstd-zstd-quarter", record.Zstd, record.Zstd, latest},
	} {
		b.Run(c.name, func(b *testing.B) {
			_, size := small(b, record.None)
			seq, _ := small(b, c.in)
			b.SetBytes(size)
			b.ReportAllocs()
			w := rewrite.NewWriter(rewrite.Options{Codec: c.out, Target: 64 << 10, Keep: c.keep, Emit: discard})
			var at int64
			for b.Loop() {
				for _, s := range seq {
					if err := w.Add(s.batch, at+s.base); err != nil {
						b.Fatal(err)
					}
				}
				at += 4000
				if err := w.Flush(at); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestAllocations wants a Writer that has seen its largest batches to allocate
// nothing for plain ones.
func TestAllocations(t *testing.T) {
	seq, _ := small(t, record.None)
	w := rewrite.NewWriter(rewrite.Options{Target: 64 << 10, Dense: true, Emit: discard})
	var at int64
	pass := func() {
		for _, s := range seq {
			if err := w.Add(s.batch, at+s.base); err != nil {
				t.Fatal(err)
			}
		}
		at += 4000
		if err := w.Flush(at); err != nil {
			t.Fatal(err)
		}
	}
	pass()
	if n := testing.AllocsPerRun(5, pass); n != 0 {
		t.Errorf("%v allocations for 4000 records", n)
	}
}
