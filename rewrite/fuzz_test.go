package rewrite_test

import (
	"bytes"
	"testing"

	"keyhole/record"
	"keyhole/rewrite"
)

// FuzzAdd feeds arbitrary bytes, and the same with a checksum that is right. What
// the Writer takes it must give back: no record more, none less, none moved.
func FuzzAdd(f *testing.F) {
	for _, c := range codecs {
		f.Add(encode(f, record.BatchOptions{LastOffset: 9, Codec: c}, rec(0, "a"), rec(5, "b")), int64(7), 300, true)
	}
	f.Add(encode(f, record.BatchOptions{LastOffset: -1, Control: true}, rec(0, "c")), int64(1), 0, false)
	f.Add(setAttributes(encode(f, record.BatchOptions{LastOffset: -1}, rec(0, "t")), transactional), int64(1), 0, true)
	f.Fuzz(func(t *testing.T, data []byte, base int64, target int, dense bool) {
		sealed := bytes.Clone(data)
		if h, err := record.ParseHeader(sealed); err == nil && h.Size() == int64(len(sealed)) {
			reseal(sealed)
		}
		for _, b := range [][]byte{data, sealed} {
			var got []record.Record
			var size int
			w := rewrite.NewWriter(rewrite.Options{Target: target, Dense: dense, KeepCodec: true, Emit: func(out []byte, at int64) error {
				h, recs := decode(t, out)
				if h.BaseOffset != at || at < base {
					t.Fatalf("batch of offset %d emitted as %d", h.BaseOffset, at)
				}
				size += len(out)
				got = append(got, recs...)
				return nil
			}})
			if err := w.Add(b, base); err != nil {
				continue
			}
			h, want := decode(t, b) // it was taken, so it can be read
			if err := w.Flush(base + int64(h.LastOffsetDelta) + 1); err != nil {
				t.Fatal(err)
			}
			for i := range want {
				want[i].Offset += base - h.BaseOffset
			}
			if !sameRecords(got, want) {
				t.Fatalf("got %v\nwant %v", got, want)
			}
			if s := w.Stats(); s.BytesOut != int64(size) || !h.IsControl() && s.RecordsOut != int64(len(want)) {
				t.Fatalf("stats %+v, for %d bytes and %d records", s, size, len(want))
			}
		}
	})
}
