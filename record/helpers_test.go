package record_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"keyhole/record"
)

var allCodecs = []record.Codec{record.None, record.Gzip, record.Snappy, record.LZ4, record.Zstd}

// newRand returns a source whose seed is printed when the test fails.
func newRand(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// seal makes length and checksum of a batch that a test put together right.
func seal(batch []byte) []byte {
	binary.BigEndian.PutUint32(batch[8:], uint32(len(batch)-12))
	binary.BigEndian.PutUint32(batch[17:], crc32.Checksum(batch[21:], crc32.MakeTable(crc32.Castagnoli)))
	return batch
}

// packed is a batch of numRecords whose record section is payload, declared to
// be compressed with c.
func packed(c record.Codec, numRecords int32, payload []byte) []byte {
	b := make([]byte, record.HeaderSize, record.HeaderSize+len(payload))
	b[16] = 2
	binary.BigEndian.PutUint64(b[27:], 1700000000000) // the first time of numbered
	binary.BigEndian.PutUint16(b[21:], uint16(c))
	binary.BigEndian.PutUint32(b[23:], uint32(max(numRecords-1, 0)))
	binary.BigEndian.PutUint32(b[57:], uint32(numRecords))
	return seal(append(b, payload...))
}

// section is the plain record section of recs in a batch that begins at 0.
func section(t testing.TB, recs []record.Record) []byte {
	t.Helper()
	b, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: -1}, recs)
	if err != nil {
		t.Fatal(err)
	}
	return b[record.HeaderSize:]
}

// numbered is n records with ascending offsets from 0, each with one header,
// and values that compress about as well as JSON does.
func numbered(n, valueSize int) []record.Record {
	recs := make([]record.Record, n)
	for i := range recs {
		value := make([]byte, 0, valueSize+32)
		for j := 0; len(value) < valueSize; j++ {
			value = fmt.Appendf(value, `{"id":%d,"field":%d},`, i, j*i)
		}
		recs[i] = record.Record{
			Offset: int64(i), Timestamp: 1700000000000 + int64(i), Key: fmt.Appendf(nil, "key-%06d", i),
			Value: value[:valueSize], Headers: []record.Header{{Name: "n", Value: []byte{byte(i)}}},
		}
	}
	return recs
}

func randomBytes(rnd *rand.Rand, maxLen int) []byte {
	if rnd.IntN(4) == 0 {
		return nil
	}
	b := make([]byte, rnd.IntN(maxLen+1))
	for i := range b {
		b[i] = byte('a' + rnd.IntN(6))
	}
	return b
}

// randomRecords has gaps in its offsets and times that go back.
func randomRecords(rnd *rand.Rand, base int64) []record.Record {
	recs := make([]record.Record, 1+rnd.IntN(40))
	off := base
	for i := range recs {
		off += rnd.Int64N(3)
		r := record.Record{Offset: off, Timestamp: rnd.Int64N(2e12), Key: randomBytes(rnd, 40), Value: randomBytes(rnd, 300)}
		off++
		for range rnd.IntN(4) {
			r.Headers = append(r.Headers, record.Header{Name: string(randomBytes(rnd, 5)), Value: randomBytes(rnd, 200)})
		}
		recs[i] = r
	}
	return recs
}

// compress packs plain by franz-go's compressor.
func compress(t testing.TB, c record.Codec, plain []byte) []byte {
	t.Helper()
	codec := map[record.Codec]kgo.CompressionCodec{
		record.Gzip: kgo.GzipCompression(), record.Snappy: kgo.SnappyCompression(),
		record.LZ4: kgo.Lz4Compression(), record.Zstd: kgo.ZstdCompression(),
	}[c]
	comp, err := kgo.DefaultCompressor(codec)
	if err != nil {
		t.Fatal(err)
	}
	if comp == nil {
		return plain
	}
	var buf bytes.Buffer
	out, used := comp.Compress(&buf, plain)
	if used != kgo.CompressionCodecType(c) {
		t.Fatalf("compressed with %d, want %v", used, c)
	}
	return append([]byte(nil), out...)
}

// xerial packs plain in the framing of Java's snappy stream, in blocks of
// blockSize plain bytes.
func xerial(t testing.TB, plain []byte, blockSize int) []byte {
	t.Helper()
	out := []byte("\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
	for len(plain) > 0 {
		n := min(blockSize, len(plain))
		block := compress(t, record.Snappy, plain[:n])
		out = binary.BigEndian.AppendUint32(out, uint32(len(block)))
		out = append(out, block...)
		plain = plain[n:]
	}
	return out
}
