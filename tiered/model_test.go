package tiered

import (
	"slices"
	"testing"

	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/record"
)

// stored are the records that the bucket holds by its manifest, in order.
func stored(t testing.TB, b objstore.Bucket) (out []record.Record) {
	t.Helper()
	m, err := manifest.Decode("bucket", content(t, b, ManifestKey(prefix)))
	if err != nil {
		t.Fatal(err)
	}
	var r record.Reader
	for i := range m.Segments {
		err := eachBatch(content(t, b, LogKey(prefix, &m.Segments[i])), func(batch []byte, h record.BatchHeader) error {
			if err := r.Reset(batch, maxUncompressed); err != nil || h.IsControl() {
				return err
			}
			for r.Next() {
				v := r.Record()
				out = append(out, record.Record{Offset: v.Offset, Timestamp: v.Timestamp, Key: slices.Clone(v.Key), Value: slices.Clone(v.Value)})
			}
			return r.Err()
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func wantStored(t testing.TB, b objstore.Bucket, want []record.Record) {
	t.Helper()
	if got := stored(t, b); !slices.EqualFunc(got, want, sameRecord) {
		t.Fatalf("%d records are stored, want %d", len(got), len(want))
	}
}

// keepLatest keeps the latest record of each key, as compaction does.
func keepLatest(records []record.Record) func(key []byte, offset int64, tombstone bool) (bool, error) {
	last := make(map[string]int64)
	for _, r := range records {
		if r.Key != nil {
			last[string(r.Key)] = r.Offset
		}
	}
	return func(key []byte, offset int64, _ bool) (bool, error) { return last[string(key)] == offset, nil }
}

func keepNone([]byte, int64, bool) (bool, error) { return false, nil }

// kept are the records that stay: those that keep wants, those without a key, and
// those of transactions, whose offsets are given.
func kept(records []record.Record, fixed map[int64]bool, keep func(key []byte, offset int64, tombstone bool) (bool, error)) (out []record.Record) {
	for _, r := range records {
		ok := true
		if r.Key != nil && !fixed[r.Offset] {
			ok, _ = keep(r.Key, r.Offset, r.Value == nil)
		}
		if ok {
			out = append(out, r)
		}
	}
	return out
}

// transactionOffsets are the offsets that batches of transactions cover.
func transactionOffsets(sources ...*memSource) map[int64]bool {
	out := make(map[int64]bool)
	for _, s := range sources {
		for _, mb := range s.batches {
			if h, _ := record.ParseHeader(s.file[mb.pos:]); h.IsTransactional() {
				for i := range int64(h.LastOffsetDelta) + 1 {
					out[mb.kafkaBase+i] = true
				}
			}
		}
	}
	return out
}

func allRecords(sources ...*memSource) (out []record.Record) {
	for _, s := range sources {
		out = append(out, s.records...)
	}
	return out
}
