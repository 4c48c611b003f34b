package record_test

import (
	"testing"

	"keyhole/record"
)

// batch16K holds about 16 KiB of plain records of 160 bytes.
func batch16K(b *testing.B, c record.Codec) ([]byte, []record.Record) {
	recs := numbered(100, 130)
	batch, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: -1, Codec: c}, recs)
	if err != nil {
		b.Fatal(err)
	}
	return batch, recs
}

func BenchmarkDecode16KiB(b *testing.B) {
	for _, c := range allCodecs {
		b.Run(c.String(), func(b *testing.B) {
			batch, recs := batch16K(b, c)
			var r record.Reader
			b.SetBytes(int64(len(section(b, recs))))
			b.ReportAllocs()
			for b.Loop() {
				if err := r.Reset(batch, 1<<20); err != nil {
					b.Fatal(err)
				}
				n := 0
				for r.Next() {
					n++
				}
				if r.Err() != nil || n != len(recs) {
					b.Fatal(n, r.Err())
				}
			}
		})
	}
}

func BenchmarkEncode16KiB(b *testing.B) {
	for _, c := range allCodecs {
		b.Run(c.String(), func(b *testing.B) {
			_, recs := batch16K(b, c)
			b.SetBytes(int64(len(section(b, recs))))
			b.ReportAllocs()
			var dst []byte
			for b.Loop() {
				var err error
				if dst, err = record.AppendBatch(dst[:0], record.BatchOptions{LastOffset: -1, Codec: c}, recs); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
