package tiered

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"keyhole/fsync"
	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const prefix = "orders/id1/3/"

func newRand(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// sourceEpoch is not one that a claim in these tests could have.
const sourceEpoch = 70

// memSource is a segment file in memory: data batches whose base offsets are
// log offsets, and internal batches between them that take a log offset each.
type memSource struct {
	base, next int64
	file       []byte
	batches    []memBatch
	records    []record.Record // of all data batches, with Kafka offsets
}

type memBatch struct {
	pos, size int64
	kafkaBase int64
}

func (s *memSource) BaseOffset() int64 { return s.base }
func (s *memSource) NextOffset() int64 { return s.next }
func (s *memSource) Epoch() int64      { return sourceEpoch }

func (s *memSource) ReadAt(p []byte, off int64) (int, error) {
	return bytes.NewReader(s.file).ReadAt(p, off)
}

func (s *memSource) Batches(fn func(pos int64, batch []byte, kafkaBase int64) error) error {
	for _, b := range s.batches {
		if err := fn(b.pos, s.file[b.pos:b.pos+b.size:b.pos+b.size], b.kafkaBase); err != nil {
			return err
		}
	}
	return nil
}

// sourceBuilder makes sources that follow each other, as a local log would.
type sourceBuilder struct {
	t     testing.TB
	kafka int64 // next Kafka offset
	log   int64 // next log offset
	cur   *memSource

	codecs []record.Codec // of random batches
}

func newBuilder(t testing.TB, start int64) *sourceBuilder {
	b := &sourceBuilder{t: t, kafka: start, log: start + 1000, codecs: allCodecs}
	b.begin()
	return b
}

// begin starts the next source; like a real segment it opens with an internal
// batch.
func (b *sourceBuilder) begin() {
	b.cur = &memSource{base: b.kafka}
	b.internal()
}

func (b *sourceBuilder) done() *memSource {
	s := b.cur
	s.next = b.kafka
	b.begin()
	return s
}

func (b *sourceBuilder) internal() {
	b.append(record.BatchOptions{BaseOffset: b.log, LastOffset: -1, Control: true},
		[]record.Record{{Offset: b.log, Key: []byte("internal"), Value: []byte("not data")}})
	b.log++
}

func (b *sourceBuilder) append(o record.BatchOptions, recs []record.Record) (pos, size int64) {
	b.t.Helper()
	pos = int64(len(b.cur.file))
	var err error
	if b.cur.file, err = record.AppendBatch(b.cur.file, o, recs); err != nil {
		b.t.Fatal(err)
	}
	return pos, int64(len(b.cur.file)) - pos
}

// add appends one data batch. The records' offsets count from 0 within the
// batch and may have gaps.
func (b *sourceBuilder) add(codec record.Codec, recs ...record.Record) {
	b.t.Helper()
	shifted := make([]record.Record, len(recs))
	for i, r := range recs {
		if r.Timestamp == 0 {
			r.Timestamp = 1_700_000_000_000 + b.kafka + r.Offset
		}
		shifted[i] = r
		shifted[i].Offset += b.log
		r.Offset += b.kafka
		b.cur.records = append(b.cur.records, r)
	}
	n := recs[len(recs)-1].Offset + 1
	pos, size := b.append(record.BatchOptions{BaseOffset: b.log, LastOffset: -1, LeaderEpoch: 5, Codec: codec}, shifted)
	b.cur.batches = append(b.cur.batches, memBatch{pos: pos, size: size, kafkaBase: b.kafka})
	b.kafka += n
	b.log += n
}

// skip leaves Kafka offsets out.
func (b *sourceBuilder) skip(n int64) { b.kafka, b.log = b.kafka+n, b.log+n }

func kv(offset int64, key, value string) record.Record {
	return record.Record{Offset: offset, Key: []byte(key), Value: []byte(value)}
}

// random appends n batches of a few records each over a small set of keys.
func (b *sourceBuilder) random(rng *rand.Rand, n int) {
	for range n {
		if rng.IntN(4) == 0 {
			b.internal()
		}
		if rng.IntN(8) == 0 {
			b.skip(rng.Int64N(5))
		}
		var recs []record.Record
		offset := int64(0)
		for range 1 + rng.IntN(5) {
			offset += rng.Int64N(2) * rng.Int64N(3)
			r := record.Record{Offset: offset, Key: fmt.Appendf(nil, "key-%04d", rng.IntN(500)), Value: make([]byte, rng.IntN(300))}
			for i := range r.Value {
				r.Value[i] = byte(rng.IntN(8))
			}
			switch rng.IntN(12) {
			case 0:
				r.Value = nil
			case 1:
				r.Key = nil
			case 2:
				r.Key = []byte{}
			}
			recs = append(recs, r)
			offset++
		}
		b.add(b.codecs[rng.IntN(len(b.codecs))], recs...)
	}
}

// node is a Tier with a disk of its own.
type node struct {
	*Tier
	fs  vfs.FS
	reg *prometheus.Registry
}

type nodeOptions struct {
	writer        string
	fs            vfs.FS
	unconditional bool
	chunkBytes    int64
	cacheBytes    int64
	maxReads      int
	unclaimed     bool
	recode        Recode
}

func newNode(t testing.TB, b objstore.Bucket, o nodeOptions) *node {
	t.Helper()
	if o.writer == "" {
		o.writer = "a"
	}
	if o.fs == nil {
		o.fs = vfs.NewMem()
	}
	if o.chunkBytes == 0 {
		o.chunkBytes = 1024
	}
	if o.cacheBytes == 0 {
		o.cacheBytes = 1 << 20
	}
	if o.maxReads == 0 {
		o.maxReads = 100
	}
	if err := errors.Join(o.fs.MkdirAll("p", 0o755), fsync.Dir(o.fs, "")); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	shared := NewShared(o.cacheBytes, o.maxReads, reg)
	tier, err := Open(Options{
		FS: o.fs, Dir: "p/remote", Bucket: b, Topic: "orders", TopicID: "id1", Partition: 3, Writer: o.writer,
		Conditional: !o.unconditional, ChunkBytes: func() int64 { return o.chunkBytes }, Shared: shared,
		Recode: func() Recode { return o.recode }, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(tier.Close(), shared.Close(context.Background())); err != nil {
			t.Error(err)
		}
	})
	if !o.unclaimed {
		if _, err := tier.Claim(t.Context(), true); err != nil {
			t.Fatal(err)
		}
	}
	return &node{tier, o.fs, reg}
}

func (n *node) upload(t testing.TB, sources ...*memSource) *manifest.Manifest {
	t.Helper()
	m, err := n.Upload(t.Context(), asSources(sources), 0)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func asSources(sources []*memSource) []Source {
	out := make([]Source, len(sources))
	for i, s := range sources {
		out[i] = s
	}
	return out
}

// read looks the record at offset up.
func (n *node) read(ctx context.Context, offset int64) (rec record.Record, hit bool, err error) {
	var r record.Reader
	hit, err = n.ReadBatch(ctx, n.Snapshot(), offset, func(batch []byte, base int64) error {
		if err := r.Reset(batch, maxUncompressed); err != nil {
			return err
		}
		if r.Header().BaseOffset != base {
			return fmt.Errorf("batch has base offset %d, was announced as %d", r.Header().BaseOffset, base)
		}
		for r.Next() {
			if v := r.Record(); v.Offset == offset {
				rec = record.Record{Offset: v.Offset, Timestamp: v.Timestamp, Key: bytes.Clone(v.Key), Value: bytes.Clone(v.Value)}
				return nil
			}
		}
		if err := r.Err(); err != nil {
			return err
		}
		return ErrNotRetained
	})
	return rec, hit, err
}

func (n *node) wantRecord(t testing.TB, want record.Record) (hit bool) {
	t.Helper()
	got, hit, err := n.read(t.Context(), want.Offset)
	if err != nil {
		t.Fatalf("offset %d: %v", want.Offset, err)
	}
	if !sameRecord(got, want) {
		t.Fatalf("offset %d: got %+v, want %+v", want.Offset, got, want)
	}
	return hit
}

func sameRecord(a, b record.Record) bool {
	return a.Offset == b.Offset && a.Timestamp == b.Timestamp && bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value) &&
		(a.Key == nil) == (b.Key == nil) && (a.Value == nil) == (b.Value == nil)
}

// content is an object's bytes.
func content(t testing.TB, b objstore.Bucket, key string) []byte {
	t.Helper()
	data, _, err := b.Get(t.Context(), key, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func put(t testing.TB, b objstore.Bucket, key string, data []byte) {
	t.Helper()
	if _, err := b.Put(t.Context(), key, bytes.NewReader(data), int64(len(data)), objstore.Condition{}); err != nil {
		t.Fatal(err)
	}
}

// wantClean verifies every segment that the manifest in the bucket names, and
// that ranges do not overlap; it returns the names of objects nobody names.
func wantClean(t testing.TB, b objstore.Bucket) (m *manifest.Manifest, orphans []string) {
	t.Helper()
	m, err := manifest.Decode("bucket", content(t, b, ManifestKey(prefix)))
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{ManifestKey(prefix): true}
	for _, seg := range m.Segments {
		named[LogKey(prefix, &seg)], named[IndexKey(prefix, &seg)] = true, true
		err := VerifySegment(t.Context(), b, prefix, seg, func(object string, pos int64, err error) {
			t.Errorf("%s at %d: %v", object, pos, err)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range m.Removed {
		seg := manifest.Segment{BaseOffset: r.BaseOffset, UploadID: r.UploadID}
		named[LogKey(prefix, &seg)], named[IndexKey(prefix, &seg)] = true, true
	}
	err = b.List(t.Context(), "", func(o objstore.Object) error {
		if !named[o.Key] {
			orphans = append(orphans, o.Key)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return m, orphans
}

func wantRanges(t testing.TB, m *manifest.Manifest, want string) {
	t.Helper()
	var parts []string
	for _, s := range m.Segments {
		parts = append(parts, fmt.Sprintf("%d-%d", s.BaseOffset, s.LastOffset))
	}
	if got := strings.Join(parts, " "); got != want {
		t.Fatalf("segments %q, want %q", got, want)
	}
}

// numbered makes a source of n batches with one record each, keys k<offset>.
func (b *sourceBuilder) numbered(n int) *memSource {
	for range n {
		b.add(record.None, kv(0, fmt.Sprintf("k%d", b.kafka), fmt.Sprintf("value %d", b.kafka)))
	}
	return b.done()
}

func testEncoder(t testing.TB) *zstd.Encoder {
	t.Helper()
	zip, err := newRunEncoder()
	if err != nil {
		t.Fatal(err)
	}
	return zip
}

func newBucket() *objstoretest.Faulty { return objstoretest.NewFaulty(nil) }
