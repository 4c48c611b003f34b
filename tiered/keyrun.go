package tiered

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"

	"github.com/klauspost/compress/zstd"

	"keyhole/record"
)

// The key run is the rear part of an index object: for every distinct key of
// the segment, in order of the key bytes, where its latest record is. Blocks
// hold their fields column by column, which is what makes them compress.
// docs/format/index-object.md has the byte ruler.
const (
	runBlockHead = 16
	runBlockMax  = 64 << 10 // bytes of a block before compression, unless it has one entry only
	runTrailer   = 20
	runMagic     = "KHIE"
)

// keyState is the latest record of one key within a segment.
type keyState struct {
	offset    int64 // Kafka offset
	tombstone bool
}

// keySet collects the keys of a segment.
type keySet map[string]*keyState

// counts are those of a batch.
type counts struct {
	records    int64 // of data
	tombstones int64 // those among them without a value
	plain      int64 // bytes that all records take uncompressed, about
}

// recordOverhead is what a record usually takes besides its PlainSize.
const recordOverhead = 8

// note takes down the records of the batch that r was reset to and counts them.
// Transaction markers have an offset but are no data. shift is added to the
// offsets.
func (ks keySet) note(r *record.Reader, shift int64) (n counts, err error) {
	h := r.Header()
	for !h.IsControl() && r.Next() {
		v := r.Record()
		n.records++
		n.plain += v.PlainSize() + recordOverhead
		if v.Value == nil {
			n.tombstones++
		}
		if v.Key == nil {
			continue
		}
		s := ks[string(v.Key)]
		if s == nil {
			s = new(keyState)
			ks[string(v.Key)] = s
		}
		*s = keyState{offset: v.Offset + shift, tombstone: v.Value == nil}
	}
	return n, r.Err()
}

// runWriter encodes a key run. Keys come in ascending order.
type runWriter struct {
	out    []byte
	start  int // of the run in out
	zip    *zstd.Encoder
	blocks uint32
	keys   uint64
	base   int64 // of the segment; offsets of a block begin from it

	// The block being filled.
	n          int
	prevKey    []byte
	prevOffset int64
	shared     []byte
	lengths    []byte
	offsets    []byte
	tombstones []byte
	suffixes   []byte
	raw        []byte
}

// newRunEncoder makes a compressor for key runs. It has some megabytes of tables,
// so it is worth being used again.
func newRunEncoder() (*zstd.Encoder, error) {
	zip, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedBetterCompression),
		zstd.WithWindowSize(runBlockMax), zstd.WithEncoderCRC(false), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, fmt.Errorf("compressor for a key run: %w", err)
	}
	return zip, nil
}

// appendRun appends the key run of a segment with the given base offset to dst.
func appendRun(dst []byte, base int64, keys keySet, zip *zstd.Encoder) []byte {
	w := &runWriter{out: dst, start: len(dst), zip: zip, base: base, prevOffset: base}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		w.add(k, *keys[k])
	}
	return w.finish()
}

func (w *runWriter) add(key string, s keyState) {
	// Five varints at most, one bit, and the key without what it shares.
	if w.n > 0 && w.size()+len(key)+5*binary.MaxVarintLen64 > runBlockMax {
		w.flush()
	}
	n := commonPrefix(w.prevKey, key)
	w.shared = binary.AppendUvarint(w.shared, uint64(n))
	w.lengths = binary.AppendUvarint(w.lengths, uint64(len(key)-n))
	w.suffixes = append(w.suffixes, key[n:]...)
	w.offsets = binary.AppendVarint(w.offsets, s.offset-w.prevOffset)
	if w.n%8 == 0 {
		w.tombstones = append(w.tombstones, 0)
	}
	if s.tombstone {
		w.tombstones[w.n/8] |= 1 << (w.n % 8)
	}
	w.prevKey, w.prevOffset = append(w.prevKey[:n], key[n:]...), s.offset
	w.n++
	w.keys++
}

func (w *runWriter) size() int {
	return len(w.shared) + len(w.lengths) + len(w.offsets) + len(w.tombstones) + len(w.suffixes)
}

func commonPrefix(a []byte, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// flush writes the block out. A block that compression does not make smaller,
// or that is over the limit because its one key is, is stored as it is.
func (w *runWriter) flush() {
	raw := w.raw[:0]
	for _, column := range [][]byte{w.shared, w.lengths, w.offsets} {
		raw = binary.AppendUvarint(raw, uint64(len(column)))
	}
	for _, column := range [][]byte{w.shared, w.lengths, w.offsets, w.tombstones, w.suffixes} {
		raw = append(raw, column...)
	}
	at := len(w.out)
	w.out = append(w.out, make([]byte, runBlockHead)...)
	if len(raw) <= runBlockMax {
		w.out = w.zip.EncodeAll(raw, w.out)
	}
	if packed := len(w.out) - at - runBlockHead; packed == 0 || packed >= len(raw) {
		w.out = append(w.out[:at+runBlockHead], raw...)
	}
	be, block := binary.BigEndian, w.out[at:]
	be.PutUint32(block, uint32(len(block)-runBlockHead))
	be.PutUint32(block[4:], uint32(len(raw)))
	be.PutUint32(block[8:], uint32(w.n))
	be.PutUint32(block[12:], blockCRC(block))
	w.blocks++
	w.n, w.prevKey, w.prevOffset = 0, w.prevKey[:0], w.base
	w.shared, w.lengths, w.offsets = w.shared[:0], w.lengths[:0], w.offsets[:0]
	w.tombstones, w.suffixes, w.raw = w.tombstones[:0], w.suffixes[:0], raw
}

// blockCRC covers the head up to the checksum and the payload.
func blockCRC(block []byte) uint32 {
	return crc32.Update(crc32.Checksum(block[:12], castagnoli), castagnoli, block[runBlockHead:])
}

func (w *runWriter) finish() []byte {
	if w.n > 0 {
		w.flush()
	}
	be := binary.BigEndian
	w.out = be.AppendUint64(w.out, w.keys)
	w.out = be.AppendUint32(w.out, w.blocks)
	w.out = be.AppendUint32(w.out, crc32.Checksum(w.out[w.start:], castagnoli))
	return append(w.out, runMagic...)
}

// errRun marks damage of a key run, as opposed to an error of the source of its
// bytes or of the function it is given to.
var errRun = errors.New("key run is damaged")

func runDamage(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errRun, fmt.Errorf(format, args...))
}

// readRun decodes a run of size bytes, trailer included, that next hands out
// piece by piece, and calls fn for every key. Offsets are checked to lie in
// base … last and keys to ascend. Memory is bounded by the size of a block as
// it is stored, or 64 KiB. Damage is errRun; it may show only after fn was
// called for the blocks before it.
func readRun(next func(n int64) ([]byte, error), size, base, last int64, fn func(key []byte, s keyState) error) error {
	unzip, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true),
		zstd.WithDecoderMaxMemory(runBlockMax), zstd.WithDecoderMaxWindow(runBlockMax))
	if err != nil {
		return fmt.Errorf("decompressor for a key run: %w", err)
	}
	defer unzip.Close()
	r := runReader{unzip: unzip, base: base, last: last, fn: fn}
	crc, keys, blocks, left := uint32(0), uint64(0), uint32(0), size
	be := binary.BigEndian
	for left > runTrailer {
		if left < runTrailer+runBlockHead {
			return runDamage("%d bytes before the trailer", left-runTrailer)
		}
		head, err := next(runBlockHead)
		if err != nil {
			return err
		}
		packed, rawSize, n, want := be.Uint32(head), be.Uint32(head[4:]), be.Uint32(head[8:]), be.Uint32(head[12:])
		left -= runBlockHead
		if int64(packed) > left-runTrailer || packed == 0 || packed > rawSize || packed < rawSize && rawSize > runBlockMax {
			return runDamage("block of %d bytes, %d packed, with %d bytes left", rawSize, packed, left)
		}
		crc = crc32.Update(crc, castagnoli, head)
		sum := crc32.Checksum(head[:12], castagnoli) // head is gone after the next call of next
		payload, err := next(int64(packed))
		if err != nil {
			return err
		}
		if sum = crc32.Update(sum, castagnoli, payload); sum != want {
			return runDamage("block %d has CRC-32C %08x, says %08x", blocks, sum, want)
		}
		crc = crc32.Update(crc, castagnoli, payload)
		if err := r.block(payload, rawSize, n); err != nil {
			return err
		}
		left -= int64(packed)
		keys += uint64(n)
		blocks++
	}
	if left < runTrailer {
		return runDamage("%d bytes cannot hold its trailer", size)
	}
	tail, err := next(runTrailer)
	if err != nil {
		return err
	}
	crc = crc32.Update(crc, castagnoli, tail[:12])
	if be.Uint64(tail) != keys || be.Uint32(tail[8:]) != blocks || be.Uint32(tail[12:]) != crc || string(tail[16:]) != runMagic {
		return runDamage("trailer %x behind %d keys in %d blocks", tail, keys, blocks)
	}
	return nil
}

// runReader decodes blocks; keys must ascend over all of them.
type runReader struct {
	unzip      *zstd.Decoder
	base, last int64
	fn         func(key []byte, s keyState) error
	raw        []byte
	prev, key  []byte // the entry before and this one, also over blocks
	any        bool   // there was an entry before
}

func (r *runReader) block(payload []byte, rawSize, n uint32) error {
	raw := payload
	if int(rawSize) != len(payload) {
		if cap(r.raw) < int(rawSize) {
			r.raw = make([]byte, 0, runBlockMax)
		}
		var err error
		if raw, err = r.unzip.DecodeAll(payload, r.raw[:0:rawSize]); err != nil {
			return runDamage("%w", err)
		}
		if len(raw) != int(rawSize) {
			return runDamage("block of %d bytes says %d", len(raw), rawSize)
		}
	}
	c := cursor{b: raw}
	var sizes [3]uint64
	for i := range sizes {
		sizes[i] = c.uvarint()
	}
	shared, lengths, offsets := c.take(sizes[0]), c.take(sizes[1]), c.take(sizes[2])
	tombstones := c.take((uint64(n) + 7) / 8)
	// An entry takes a byte in each of the first three columns, which bounds n.
	if c.bad || n == 0 || uint64(n) > min(sizes[0], sizes[1], sizes[2]) {
		return runDamage("%d entries in columns of %d bytes", n, sizes)
	}
	sh, le, of := cursor{b: shared}, cursor{b: lengths}, cursor{b: offsets}
	offset, reach := r.base, uint64(0) // reach: how much of prev an entry may share
	for i := range int(n) {
		keep, add := sh.uvarint(), le.uvarint()
		suffix := c.take(add)
		offset += of.varint()
		if sh.bad || le.bad || of.bad || c.bad || keep > reach || offset < r.base || offset > r.last {
			return runDamage("entry %d of %d", i, n)
		}
		r.key = append(append(r.key[:0], r.prev[:keep]...), suffix...)
		if r.any && bytes.Compare(r.prev, r.key) >= 0 {
			return runDamage("keys do not ascend at entry %d", i)
		}
		r.any = true
		if err := r.fn(r.key, keyState{offset: offset, tombstone: tombstones[i/8]&(1<<(i%8)) != 0}); err != nil {
			return err
		}
		r.prev, r.key = r.key, r.prev
		reach = uint64(len(r.prev))
	}
	if len(sh.b)+len(le.b)+len(of.b)+len(c.b) != 0 {
		return runDamage("bytes behind the last of %d entries", n)
	}
	return nil
}

// cursor takes fields off a slice and remembers whether one was missing.
type cursor struct {
	b   []byte
	bad bool
}

func (c *cursor) uvarint() uint64 {
	v, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.bad = true
		return 0
	}
	c.b = c.b[n:]
	return v
}

func (c *cursor) varint() int64 {
	v, n := binary.Varint(c.b)
	if n <= 0 {
		c.bad = true
		return 0
	}
	c.b = c.b[n:]
	return v
}

func (c *cursor) take(n uint64) []byte {
	if n > uint64(len(c.b)) {
		c.bad = true
		return nil
	}
	out := c.b[:n]
	c.b = c.b[n:]
	return out
}
