package tiered

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"keyhole/manifest"
	"keyhole/record"
)

// BenchmarkShape measures what the shape of an upload costs: bytes in the bucket
// for a byte of input, and bytes of one cold lookup. The local batches have about
// 4 KiB, as a gateway writes them. The file history is looked for in
// KEYHOLE_TESTDATA.
func BenchmarkShape(b *testing.B) {
	const target = 64 << 10
	for _, input := range []struct {
		name    string
		records func(testing.TB) []record.Record
	}{{"json1k", jsonRecords}, {"history", historyRecords}} {
		for _, recode := range []Recode{{}, {true, record.None}, {true, record.LZ4}, {true, record.Snappy}, {true, record.Gzip}, {true, record.Zstd}} {
			name := "producer"
			if recode.Merge {
				name = recode.Codec.String()
			}
			b.Run(input.name+"/"+name, func(b *testing.B) {
				records := input.records(b)
				src, plain := inBatches(b, records, 4<<10)
				bucket := newBucket()
				var seg manifest.Segment
				var n *node
				b.SetBytes(plain)
				for b.Loop() {
					n = newNode(b, bucket, nodeOptions{chunkBytes: target, recode: recode})
					seg = n.upload(b, src).Segments[0]
					bucket = newBucket()
				}
				tab, err := n.table(b.Context(), &seg)
				if err != nil {
					b.Fatal(err)
				}
				lookup := int64(0)
				for _, r := range records {
					i, ok := tab.find(r.Offset)
					if !ok {
						b.Fatalf("no chunk for offset %d", r.Offset)
					}
					lookup += tab.chunk(i).size
				}
				b.ReportMetric(float64(seg.Size+seg.IndexSize)/float64(plain), "stored/byte")
				b.ReportMetric(float64(lookup)/float64(len(records)), "B/lookup")
			})
		}
	}
}

// inBatches makes a segment of batches of about size bytes, and says how many bytes
// keys, values and headers have.
func inBatches(t testing.TB, records []record.Record, size int) (*memSource, int64) {
	build := newBuilder(t, 0)
	var batch []record.Record
	held, plain := 0, int64(0)
	for _, r := range records {
		plain += int64(r.Size())
		held += r.Size()
		r.Offset = int64(len(batch))
		batch = append(batch, r)
		if held >= size {
			build.add(record.None, batch...)
			batch, held = nil, 0
		}
	}
	if len(batch) > 0 {
		build.add(record.None, batch...)
	}
	return build.done(), plain
}

// jsonRecords are customers of about 1 KiB, as an application would write them.
func jsonRecords(testing.TB) []record.Record {
	rng := rand.New(rand.NewPCG(1, 2))
	word := func() string { return fmt.Sprintf("%s%d", names26[rng.IntN(len(names26))], rng.IntN(1000)) }
	out := make([]record.Record, 20_000)
	for i := range out {
		var tags []string
		for range 30 {
			tags = append(tags, word())
		}
		value, _ := json.Marshal(map[string]any{
			"id": rng.Uint64(), "name": word() + " " + word(), "email": word() + "@" + word() + ".example",
			"address": map[string]any{"street": word(), "number": rng.IntN(300), "city": word(), "code": fmt.Sprintf("%05d", rng.IntN(1e5))},
			"balance": rng.Float64() * 1e4, "active": rng.IntN(2) == 0, "visits": rng.Perm(20), "tags": tags,
			"note": fmt.Sprintf("%064x%064x%064x", rng.Uint64(), rng.Uint64(), rng.Uint64()),
		})
		out[i] = record.Record{Offset: int64(i), Timestamp: 1_700_000_000_000 + int64(i), Key: fmt.Appendf(nil, "customer-%08d", rng.IntN(1e8)), Value: value}
	}
	return out
}

var names26 = []string{"ada", "ben", "cleo", "dora", "emil", "fay", "gus", "hana", "ivo", "jana", "kai", "lena", "max", "nora", "otto", "pia", "quin", "rosa", "sam", "tess", "ugo", "vera", "wim", "xenia", "yan", "zoe"}

// historyRecords are the changes of files in the history of a large repository.
func historyRecords(t testing.TB) (out []record.Record) {
	dir := os.Getenv("KEYHOLE_TESTDATA")
	f, err := os.Open(filepath.Join(dir, "kafka-file-history.ndjson.gz"))
	if dir == "" || err != nil {
		t.Skip("no kafka-file-history.ndjson.gz; set KEYHOLE_TESTDATA to its folder")
	}
	defer f.Close()
	zr, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(zr); lines.Scan(); {
		var line struct {
			Key       string
			Value     *string
			Timestamp int64
			Headers   []struct{ Name, Value string }
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		r := record.Record{Offset: int64(len(out)), Timestamp: line.Timestamp, Key: []byte(line.Key)}
		if line.Value != nil {
			r.Value = []byte(*line.Value)
		}
		for _, h := range line.Headers {
			r.Headers = append(r.Headers, record.Header{Name: h.Name, Value: []byte(h.Value)})
		}
		out = append(out, r)
	}
	return out
}
