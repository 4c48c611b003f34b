package tiered

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/record"
)

// flag sets attribute bits of the last batch that was added, under a new checksum.
func (b *sourceBuilder) flag(bits byte) {
	last := b.cur.batches[len(b.cur.batches)-1]
	raw := b.cur.file[last.pos : last.pos+last.size]
	raw[22] |= bits
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], castagnoli))
}

const (
	transactional = 1 << 4
	control       = 1 << 5
)

// marker adds a transaction marker: it has an offset, but is no record.
func (b *sourceBuilder) marker() {
	b.add(record.None, record.Record{Key: []byte("marker"), Value: []byte("commit")})
	b.flag(transactional | control)
	b.cur.records = b.cur.records[:len(b.cur.records)-1]
}

// transaction adds a few batches of a transaction and its marker.
func (b *sourceBuilder) transaction(rng *rand.Rand) {
	for range 1 + rng.IntN(3) {
		b.add(b.codecs[rng.IntN(len(b.codecs))], kv(0, fmt.Sprintf("key-%04d", rng.IntN(500)), "in a transaction"), kv(2, "t", "x"))
		b.flag(transactional)
	}
	b.marker()
}

// hollow adds a batch without records, as local compaction leaves it.
func (b *sourceBuilder) hollow(n int64) {
	pos, size := b.append(record.BatchOptions{BaseOffset: b.log, LastOffset: b.log + n - 1, LeaderEpoch: 5}, nil)
	b.cur.batches = append(b.cur.batches, memBatch{pos: pos, size: size, kafkaBase: b.kafka})
	b.skip(n)
}

// mixed is random with transactions and hollow batches in between.
func (b *sourceBuilder) mixed(rng *rand.Rand, n int) *memSource {
	for range n {
		switch rng.IntN(6) {
		case 0:
			b.transaction(rng)
		case 1:
			b.hollow(1 + rng.Int64N(5))
		default:
			b.random(rng, 1+rng.IntN(10))
		}
	}
	b.random(rng, 1)
	return b.done()
}

// batchesOf are the batches of an object.
func batchesOf(t testing.TB, data []byte) (out []record.BatchHeader) {
	t.Helper()
	if err := eachBatch(data, func(batch []byte, h record.BatchHeader) error { out = append(out, h); return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

var allCodecs = []record.Codec{record.None, record.Gzip, record.Snappy, record.LZ4, record.Zstd}

// Whatever is merged, every record is found as it was, the epoch is the segment's,
// and batches of transactions are byte for byte what they were.
func TestMergedSegmentsHoldTheSameRecords(t *testing.T) {
	rng := newRand(t)
	for _, codec := range allCodecs {
		b := newBucket()
		n := newNode(t, b, nodeOptions{recode: Recode{Merge: true, Codec: codec}, chunkBytes: 2000})
		build := newBuilder(t, 0)
		sources := []*memSource{build.mixed(rng, 30), build.mixed(rng, 30)}
		m := n.upload(t, sources...)
		wantClean(t, b)
		for i, src := range sources {
			for _, r := range src.records {
				n.wantRecord(t, r)
			}
			seg := m.Segments[i]
			tombstones := int64(0)
			for _, r := range src.records {
				if r.Value == nil {
					tombstones++
				}
			}
			if seg.Records != int64(len(src.records)) || seg.Tombstones != tombstones {
				t.Errorf("%d records and %d tombstones, want %d and %d", seg.Records, seg.Tombstones, len(src.records), tombstones)
			}
			var untouched []byte
			merged, plain := 0, 0
			data := content(t, b, LogKey(prefix, &seg))
			for _, h := range batchesOf(t, data) {
				if h.IsTransactional() {
					untouched = append(untouched, data[:h.Size()]...)
				} else {
					merged++
					if h.NumRecords == 0 {
						t.Errorf("batch without records at %d", h.BaseOffset)
					}
					if h.LeaderEpoch != sourceEpoch {
						t.Errorf("batch at %d has epoch %d", h.BaseOffset, h.LeaderEpoch)
					}
				}
				data = data[h.Size():]
			}
			var want []byte
			for _, mb := range src.batches {
				raw := bytes.Clone(src.file[mb.pos : mb.pos+mb.size])
				if h, _ := record.ParseHeader(raw); h.IsTransactional() {
					record.SetBaseOffset(raw, mb.kafkaBase)
					want = append(want, raw...)
				} else {
					plain++
				}
			}
			if !bytes.Equal(untouched, want) {
				t.Error("batches of transactions have changed")
			}
			if merged >= plain {
				t.Errorf("%d batches of %d", merged, plain)
			}
		}
	}
}

// A merged chunk is one batch of at most the target size when it is plain, and not
// much less; a batch that is larger is cut into some.
func TestMergedBatchesAreAboutAChunk(t *testing.T) {
	const target = 16 << 10
	build := newBuilder(t, 0)
	for i := range 400 {
		build.add(record.Codec(i%5), kv(0, fmt.Sprint(i), strings.Repeat("v", 200+i%100)), kv(1, "k", strings.Repeat("w", 300)))
	}
	var large []record.Record
	for i := range int64(200) {
		large = append(large, kv(i, fmt.Sprint(i), strings.Repeat("x", 1000)))
	}
	build.add(record.Zstd, large...)
	src := build.done()
	p, err := newPlan(src, src.base, src.next-1, shape{target, Recode{Merge: true}})
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(newBody(p))
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range p.chunks {
		batches := batchesOf(t, data[c.pos:c.pos+c.size])
		if len(batches) != 1 || c.size > target+target/16 {
			t.Errorf("chunk %d has %d batches and %d bytes", i, len(batches), c.size)
		}
		// Smaller is only the last one before the large batch, and the last one.
		if next := batches[0].NextOffset(); c.size < target-2000 && next != 800 && next != src.next {
			t.Errorf("chunk %d up to offset %d has %d bytes", i, next, c.size)
		}
	}
}

// What is read again at once, to make a chunk the second time, is no more than makes
// one chunk, or one batch of the source.
func TestGroupsAreNoLargerThanAChunk(t *testing.T) {
	const target = 4 << 10
	build := newBuilder(t, 0)
	for i := range 200 {
		build.add(record.None, kv(0, fmt.Sprint(i), strings.Repeat("v", 200+i%100)))
		if i%50 == 0 {
			build.add(record.None, kv(0, fmt.Sprint(i), strings.Repeat("v", 3*target)))
		}
	}
	src := build.done()
	p, err := newPlan(src, src.base, src.next-1, shape{target, Recode{Merge: true}})
	if err != nil {
		t.Fatal(err)
	}
	for i, g := range p.groups {
		size := int64(0)
		for _, e := range g.extents {
			size += e.size
		}
		if size > 2*target && size < 3*target || size > 3*target+200 {
			t.Errorf("group %d reads %d bytes", i, size)
		}
	}
}

func TestMergedBodyReadsAndSeeksLikeAFile(t *testing.T) {
	rng := newRand(t)
	for _, codec := range allCodecs {
		src := newBuilder(t, 7).mixed(rng, 25)
		p, err := newPlan(src, src.base, src.next-1, shape{900, Recode{Merge: true, Codec: codec}})
		if err != nil {
			t.Fatal(err)
		}
		want, err := io.ReadAll(newBody(p))
		if err != nil || int64(len(want)) != p.info.size {
			t.Fatalf("read %d of %d bytes, %v", len(want), p.info.size, err)
		}
		if err := iotest.TestReader(newBody(p), want); err != nil {
			t.Error(err)
		}
		// From anywhere, back and forth.
		body := newBody(p)
		for range 50 {
			at := rng.Int64N(p.info.size)
			if _, err := body.Seek(at, io.SeekStart); err != nil {
				t.Fatal(err)
			}
			part := make([]byte, min(1500, p.info.size-at))
			if _, err := io.ReadFull(body, part); err != nil || !bytes.Equal(part, want[at:at+int64(len(part))]) {
				t.Fatalf("%d bytes at %d differ, %v", len(part), at, err)
			}
		}
	}
}

// One batch that becomes many chunks is decompressed once, not once for each.
func TestLargeBatchIsRecodedOnce(t *testing.T) {
	var large []record.Record
	for i := range int64(3000) {
		large = append(large, kv(i, fmt.Sprint(i), strings.Repeat("x", 300)))
	}
	build := newBuilder(t, 0)
	build.add(record.Zstd, large...)
	src := &countedReads{memSource: build.done()}
	p, err := newPlan(src, 0, 2999, shape{4096, Recode{Merge: true, Codec: record.Zstd}})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.chunks) < 200 {
		t.Fatalf("only %d chunks", len(p.chunks))
	}
	if _, err := io.Copy(io.Discard, newBody(p)); err != nil || src.reads != 1 {
		t.Errorf("source was read %d times, %v", src.reads, err)
	}
}

type countedReads struct {
	*memSource
	reads int
}

func (s *countedReads) ReadAt(p []byte, off int64) (int, error) {
	s.reads++
	return s.memSource.ReadAt(p, off)
}

// An upload that is repeated writes the same bytes, also when the properties have
// changed in between.
func TestRepeatedUploadGivesTheSameBytes(t *testing.T) {
	b := newBucket()
	recode := Recode{Merge: true, Codec: record.Zstd}
	n := newNode(t, b, nodeOptions{})
	n.o.Recode = func() Recode { return recode }
	chunk := int64(1000)
	n.o.ChunkBytes = func() int64 { return chunk }
	now := time.UnixMilli(1_750_000_000_000)
	n.o.Now = func() time.Time { return now }
	src := newBuilder(t, 0).mixed(newRand(t), 30)
	fail := true
	var first []byte
	b.After(func(_ context.Context, c objstoretest.Call) error {
		if c.Op == objstoretest.OpPut && strings.HasSuffix(c.Key, ".index") && fail {
			fail = false
			return errors.New("reply lost")
		}
		return nil
	})
	if _, err := n.Upload(t.Context(), []Source{src}, 0); err == nil {
		t.Fatal("no error")
	}
	err := b.List(t.Context(), prefix+"0", func(o objstore.Object) error {
		first = append(first, content(t, b, o.Key)...)
		return b.Inner().Delete(t.Context(), o.Key)
	})
	if err != nil || len(first) == 0 {
		t.Fatal(err)
	}
	for _, p := range n.pending {
		p.logStored = false // as if that reply had been lost too
	}
	recode, chunk, now = Recode{}, 300, now.Add(time.Hour)
	seg := n.upload(t, src).Segments[0]
	again := append(content(t, b, IndexKey(prefix, &seg)), content(t, b, LogKey(prefix, &seg))...)
	if !bytes.Equal(first, again) {
		t.Error("the repetition gave other bytes")
	}
	if seg.CreatedAt != 1_750_000_000_000 {
		t.Errorf("created at %d", seg.CreatedAt)
	}
	wantClean(t, b)
}

// A source that was compacted between two attempts has other bytes, of which the
// object that the first one stored has none.
func TestSourceCompactedBetweenTwoAttempts(t *testing.T) {
	for _, recode := range []Recode{{}, {Merge: true, Codec: record.Zstd}} {
		b := newBucket()
		n := newNode(t, b, nodeOptions{recode: recode})
		records := func(offsets ...int64) *memSource {
			build := newBuilder(t, 0)
			var batch []record.Record
			for _, off := range offsets {
				batch = append(batch, record.Record{Offset: off, Key: []byte("key"), Value: fmt.Appendf(nil, "%d", off)})
			}
			build.add(record.None, batch...)
			return build.done()
		}
		b.Before(func(_ context.Context, c objstoretest.Call) error {
			if c.Op == objstoretest.OpPut && strings.HasSuffix(c.Key, ".index") {
				return errors.New("away")
			}
			return nil
		})
		if _, err := n.Upload(t.Context(), asSources([]*memSource{records(0, 1, 2)}), 0); err == nil {
			t.Fatal("no error")
		}
		b.Before(nil)
		n.upload(t, records(0, 2))
		if _, orphans := wantClean(t, b); len(orphans) != 1 {
			t.Errorf("orphans %v, want the first .log object", orphans)
		}
	}
}

// A source in which nothing is left does not hold the bucket up: what it covers
// counts as there.
func TestSourceOfDeadRecordsAdvancesTheBucket(t *testing.T) {
	for _, recode := range []Recode{{}, {Merge: true, Codec: record.Zstd}} {
		b := newBucket()
		n := newNode(t, b, nodeOptions{recode: recode})
		build := newBuilder(t, 0)
		build.hollow(5)
		build.hollow(7)
		dead := build.done()
		middle := build.numbered(3)
		build.skip(4) // not even batches
		gone := build.done()
		b.ResetCalls()
		m := n.upload(t, dead)
		if m.Next() != 12 || len(m.Segments) != 0 || b.Count(objstoretest.OpPut) != 1 {
			t.Fatalf("bucket ends at %d with %d segments, calls %v", m.Next(), len(m.Segments), b.Calls())
		}
		m = n.upload(t, dead, middle, gone)
		wantRanges(t, m, "12-14")
		if m.Next() != 19 {
			t.Errorf("bucket ends at %d", m.Next())
		}
		b.ResetCalls()
		if n.upload(t, dead, middle, gone); b.Count() != 0 {
			t.Errorf("a repetition made calls %v", b.Calls())
		}
		if _, orphans := wantClean(t, b); len(orphans) != 0 {
			t.Errorf("orphans %v", orphans)
		}
		// Markers alone are something.
		build.marker()
		wantRanges(t, n.upload(t, build.done()), "12-14 19-19")
		wantClean(t, b)
	}
}
