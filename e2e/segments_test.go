package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"path"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// batchHead is the size of what stands before the length-counted part of a
// batch: base offset and length.
const batchHead = 12

// sent is a record as it was produced.
type sent struct {
	key, value []byte // value nil: tombstone
	timestamp  int64
	headers    []kmsg.Header
}

// TestRemoteSegments reads the segment objects off the store with another
// implementation of the format: they are plain Kafka log segments with the
// offsets that the producer was told.
func TestRemoteSegments(t *testing.T) {
	const perRequest, requests = 150, 8
	eachBackend(t, func(t *testing.T, s *store) {
		n := startNode(t, s)
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 1))
		for _, c := range []struct{ local, remote string }{
			{"producer", "producer"}, {"gzip", "producer"}, {"snappy", "producer"}, {"lz4", "producer"}, {"zstd", "producer"},
			{"producer", "none"}, {"producer", "gzip"}, {"zstd", "snappy"}, {"snappy", "lz4"}, {"gzip", "zstd"},
		} {
			t.Run(c.local+" "+c.remote, func(t *testing.T) {
				n.in(t)
				topic := "segments-" + c.local + "-" + c.remote
				n.indexed(topic, 2, map[string]string{"segment.bytes": "2048", "compression.type": c.local,
					"keyhole.remote.compression.type": c.remote, "min.compaction.lag.ms": "3600000"})
				want := map[place]sent{}
				for range requests {
					records := make([]object, perRequest)
					batch := make([]sent, perRequest)
					for i := range records {
						batch[i], records[i] = randomRecord(rng)
					}
					for i, at := range n.produce(topic, records) {
						want[at] = batch[i]
					}
				}
				n.evict(topic, 2)
				for p := range int32(2) {
					checkSegments(t, s, topic, p, want)
				}
				if len(want) > 0 {
					t.Errorf("%d records are in no segment", len(want))
				}
			})
		}
	})
}

func randomRecord(rng *rand.Rand) (sent, object) {
	r := sent{key: fmt.Appendf(nil, "key-%d", rng.IntN(500)), timestamp: 1700000000000 + rng.Int64N(1e6)}
	headers := []object{}
	if rng.IntN(10) > 0 {
		r.value = bytes.Repeat([]byte{byte(rng.IntN(256)), 'v'}, rng.IntN(100))
	}
	for range rng.IntN(3) {
		h := kmsg.Header{Key: "trace", Value: []byte{byte(rng.IntN(256))}}
		r.headers = append(r.headers, h)
		headers = append(headers, object{"name": h.Key, "value": h.Value})
	}
	return r, object{"key": r.key, "value": r.value, "timestamp": r.timestamp, "headers": headers}
}

// checkSegments takes the records of a partition's segments out of want; at the
// end of all partitions nothing may be left.
func checkSegments(t *testing.T, s *store, topic string, partition int32, want map[place]sent) {
	t.Helper()
	next, segments := int64(0), 0
	for _, key := range s.objects(t) { // in lexical order: the base offsets lead
		dir, name := path.Split(key)
		parts := strings.Split(dir, "/") // topic, id, partition, ""
		if len(parts) != 4 || parts[0] != topic || parts[2] != fmt.Sprint(partition) || path.Ext(name) != ".log" {
			continue
		}
		segments++
		if !strings.HasPrefix(name, fmt.Sprintf("%020d-", next)) {
			t.Errorf("%s: its name should begin with the base offset %d", key, next)
		}
		next = decodeSegment(t, key, s.object(t, key), partition, next, want)
	}
	if segments < 3 {
		t.Errorf("partition %d has %d segments, want several", partition, segments)
	}
}

// decodeSegment decodes batch by batch and gives the offset after the last one.
func decodeSegment(t *testing.T, name string, data []byte, partition int32, next int64, want map[place]sent) int64 {
	t.Helper()
	for pos := 0; pos < len(data); {
		if len(data)-pos < batchHead {
			t.Fatalf("%s: %d bytes behind the last batch", name, len(data)-pos)
		}
		size := batchHead + int(binary.BigEndian.Uint32(data[pos+8:]))
		if size > len(data)-pos {
			t.Fatalf("%s: the batch at %d is longer than the object", name, pos)
		}
		raw := data[pos : pos+size]
		var b kmsg.RecordBatch
		if err := b.ReadFrom(raw); err != nil {
			t.Fatalf("%s: batch at %d: %v", name, pos, err)
		}
		const afterCRC = 21
		if sum := crc32.Checksum(raw[afterCRC:], crc32.MakeTable(crc32.Castagnoli)); int32(sum) != b.CRC {
			t.Fatalf("%s: batch at %d has CRC %x, its bytes have %x", name, pos, uint32(b.CRC), sum)
		}
		if b.Magic != 2 || b.Attributes&0x20 != 0 {
			t.Fatalf("%s: batch at %d: magic %d, attributes %x; data batches of version 2 only", name, pos, b.Magic, b.Attributes)
		}
		if b.FirstOffset != next {
			t.Fatalf("%s: batch at %d begins at offset %d, want %d", name, pos, b.FirstOffset, next)
		}
		takeRecords(t, name, partition, &b, want)
		next = b.FirstOffset + int64(b.LastOffsetDelta) + 1
		pos += size
	}
	return next
}

func takeRecords(t *testing.T, name string, partition int32, b *kmsg.RecordBatch, want map[place]sent) {
	t.Helper()
	codec := kgo.CompressionCodecType(b.Attributes & 7)
	raw, err := kgo.DefaultDecompressor().Decompress(b.Records, codec)
	if err != nil {
		t.Fatalf("%s: batch %d: %v", name, b.FirstOffset, err)
	}
	for range b.NumRecords {
		length, n := binary.Varint(raw)
		if n <= 0 || length < 0 || int(length) > len(raw)-n {
			t.Fatalf("%s: batch %d: length of a record: %d", name, b.FirstOffset, length)
		}
		var r kmsg.Record
		if err := r.ReadFrom(raw[:n+int(length)]); err != nil {
			t.Fatalf("%s: batch %d: %v", name, b.FirstOffset, err)
		}
		raw = raw[n+int(length):]
		at := place{partition, b.FirstOffset + int64(r.OffsetDelta)}
		w, ok := want[at]
		delete(want, at)
		got := sent{r.Key, r.Value, b.FirstTimestamp + r.TimestampDelta64, r.Headers}
		if !ok || !same(got, w) {
			t.Fatalf("%s: offset %d holds %+v, want %+v", name, at.offset, got, w)
		}
	}
	if len(raw) > 0 {
		t.Fatalf("%s: batch %d: %d bytes behind the last record", name, b.FirstOffset, len(raw))
	}
}

// same compares records; empty and null are different things.
func same(a, b sent) bool {
	if !bytes.Equal(a.key, b.key) || !bytes.Equal(a.value, b.value) || (a.value == nil) != (b.value == nil) ||
		a.timestamp != b.timestamp || len(a.headers) != len(b.headers) {
		return false
	}
	for i := range a.headers {
		if a.headers[i].Key != b.headers[i].Key || !bytes.Equal(a.headers[i].Value, b.headers[i].Value) {
			return false
		}
	}
	return true
}
