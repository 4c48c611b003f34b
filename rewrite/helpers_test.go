package rewrite_test

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"keyhole/record"
	"keyhole/rewrite"
)

var codecs = []record.Codec{record.None, record.Gzip, record.Snappy, record.LZ4, record.Zstd}

// anyCodec is a random codec, none more often than the others: compressors are
// slow to make, and pools of them keep little under the race detector.
func anyCodec(rnd *rand.Rand) record.Codec {
	if rnd.IntN(4) > 0 {
		return record.None
	}
	return codecs[rnd.IntN(len(codecs))]
}

// newRand returns a source whose seed is printed when the test fails.
func newRand(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// encode makes a batch.
func encode(t testing.TB, o record.BatchOptions, recs ...record.Record) []byte {
	t.Helper()
	b, err := record.AppendBatch(nil, o, recs)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// rec is a record whose value is its key doubled.
func rec(offset int64, key string) record.Record {
	return record.Record{Offset: offset, Timestamp: 1000 + offset, Key: []byte(key), Value: []byte(key + key)}
}

// shared keeps its decompressors, which are slow to make.
var shared struct {
	sync.Mutex
	record.Reader
}

// decode reads a batch.
func decode(t testing.TB, batch []byte) (record.BatchHeader, []record.Record) {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	r := &shared.Reader
	if err := r.Reset(batch, 1<<28); err != nil {
		t.Fatal(err)
	}
	var recs []record.Record
	for r.Next() {
		v := r.Record()
		hs, err := v.Headers()
		if err != nil {
			t.Fatal(err)
		}
		for i := range hs {
			hs[i].Value = bytes.Clone(hs[i].Value)
		}
		recs = append(recs, record.Record{
			Offset: v.Offset, Timestamp: v.Timestamp, Key: bytes.Clone(v.Key), Value: bytes.Clone(v.Value), Headers: hs,
		})
	}
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	return r.Header(), recs
}

// in is one call of Add, or of Flush if batch is nil.
type in struct {
	batch []byte
	base  int64
}

// run rewrites a sequence and gives the batches that come out.
func run(t testing.TB, o rewrite.Options, seq ...in) ([][]byte, rewrite.Stats) {
	t.Helper()
	var out [][]byte
	o.Emit = func(b []byte, base int64) error {
		if h, err := record.Verify(b); err != nil || h.BaseOffset != base {
			t.Fatalf("batch at %d emitted as %d: %v", h.BaseOffset, base, err)
		}
		out = append(out, bytes.Clone(b))
		clear(b) // the writer must not count on it
		return nil
	}
	w := rewrite.NewWriter(o)
	for _, s := range seq {
		var err error
		if given := bytes.Clone(s.batch); s.batch == nil {
			err = w.Flush(s.base)
		} else if err = w.Add(s.batch, s.base); !bytes.Equal(given, s.batch) {
			t.Fatal("Add changed its input")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return out, w.Stats()
}
