package locallog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	"keyhole/record"
)

const (
	// indexInterval is the number of bytes that one entry of a sparse index
	// covers at most, unless a single batch is larger.
	indexInterval = 4 << 10

	entrySize       = 24
	indexHeaderSize = 104
	indexMagic      = "KHIX"
	indexVersion    = 1

	// damagedBit marks, in an entry's position, a stretch whose bytes do not
	// hold. Such entries live in memory only.
	damagedBit = 1 << 63
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// entry says that from position pos on there are batches that begin with these
// offsets. It holds up to the next entry's position.
type entry struct {
	log, kafka, pos int64
	damaged         bool // the offsets up to the next entry cannot be read
}

// table is the sparse index of a segment in its stored form: entries in the
// order of the file. Entries are only ever added behind the end, so a reader
// that holds a shorter slice of the same memory is not disturbed.
type table []byte

func (t table) len() int { return len(t) / entrySize }

func (t table) at(i int) entry {
	b := t[i*entrySize : (i+1)*entrySize]
	pos := binary.BigEndian.Uint64(b[16:])
	return entry{
		log:     int64(binary.BigEndian.Uint64(b)),
		kafka:   int64(binary.BigEndian.Uint64(b[8:])),
		pos:     int64(pos &^ damagedBit),
		damaged: pos&damagedBit != 0,
	}
}

func (t table) append(e entry) table {
	pos := uint64(e.pos)
	if e.damaged {
		pos |= damagedBit
	}
	t = binary.BigEndian.AppendUint64(t, uint64(e.log))
	t = binary.BigEndian.AppendUint64(t, uint64(e.kafka))
	return binary.BigEndian.AppendUint64(t, pos)
}

// byKafka is the last entry at or below a Kafka offset, or -1.
func (t table) byKafka(offset int64) int { return t.last(8, offset) }

// byLog is the last entry at or below a log offset, or -1.
func (t table) byLog(offset int64) int { return t.last(0, offset) }

func (t table) last(field int, offset int64) int {
	lo, hi := 0, t.len()
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if int64(binary.BigEndian.Uint64(t[mid*entrySize+field:])) <= offset {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo - 1
}

// end is the position where the stretch of entry i ends, in a file of size bytes.
func (t table) end(i int, size int64) int64 {
	if i+1 < t.len() {
		return t.at(i + 1).pos
	}
	return size
}

// indexer builds a table, batch by batch.
type indexer struct {
	t     table
	last  int64 // position of the last entry
	fresh bool  // the next data batch needs an entry of its own
}

// add notes a batch of size bytes. An internal batch shifts the distance between
// log and Kafka offsets, so the data behind it begins a new entry: within one
// entry the distance is constant.
func (x *indexer) add(log, kafka, pos, size int64, internal bool) {
	if len(x.t) == 0 || x.fresh && !internal || pos+size-x.last > indexInterval {
		x.t = x.t.append(entry{log: log, kafka: kafka, pos: pos})
		x.last = pos
	}
	x.fresh = internal
}

// hole notes that nothing can be said about the bytes from pos on.
func (x *indexer) hole(log, kafka, pos int64) {
	x.t = x.t.append(entry{log: log, kafka: kafka, pos: pos, damaged: true})
	x.last, x.fresh = math.MinInt64, true // the next batch begins an entry
}

// drop takes the entries from the n-th on back. The one before them, a hole,
// reaches further then.
func (x *indexer) drop(n int) {
	x.t = x.t[:n*entrySize]
	x.last, x.fresh = math.MinInt64, true
}

// indexHeader is the head of an .index file: what there is to know about a
// sealed segment without reading it. Times are Unix milliseconds.
type indexHeader struct {
	baseLog, nextLog     int64
	baseKafka, nextKafka int64
	prevLog              int64 // see notice
	logBytes             int64 // size of the .log file that the index describes
	maxTimestamp         int64
	created              int64
	firstAppend          int64
	sealedAt             int64
	entries              int64
	tableCRC             uint32
}

func (h *indexHeader) fields() [11]*int64 {
	return [...]*int64{
		&h.baseLog, &h.nextLog, &h.baseKafka, &h.nextKafka, &h.prevLog,
		&h.logBytes, &h.maxTimestamp, &h.created, &h.firstAppend, &h.sealedAt, &h.entries,
	}
}

// encodeIndex gives the whole file; entries and tableCRC of h are filled in here.
func encodeIndex(h indexHeader, t table) []byte {
	h.entries, h.tableCRC = int64(t.len()), crc32.Checksum(t, castagnoli)
	b := make([]byte, 0, indexHeaderSize+len(t))
	b = append(b, indexMagic...)
	b = binary.BigEndian.AppendUint32(b, indexVersion)
	for _, f := range h.fields() {
		b = binary.BigEndian.AppendUint64(b, uint64(*f))
	}
	b = binary.BigEndian.AppendUint32(b, h.tableCRC)
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return append(b, t...)
}

// decodeIndexHeader decodes the first indexHeaderSize bytes of an .index file
// that is fileSize bytes long. Anything wrong is record.ErrCorrupt.
func decodeIndexHeader(b []byte, fileSize int64) (indexHeader, error) {
	var h indexHeader
	bad := func(pos int64, format string, args ...any) (indexHeader, error) {
		return indexHeader{}, record.Corrupt("", pos, fmt.Errorf(format, args...))
	}
	if len(b) < indexHeaderSize {
		return bad(0, "sparse index of %d bytes", len(b))
	}
	b = b[:indexHeaderSize]
	if string(b[:4]) != indexMagic {
		return bad(0, "not a sparse index")
	}
	const crcAt = indexHeaderSize - 4
	if sum := binary.BigEndian.Uint32(b[crcAt:]); sum != crc32.Checksum(b[:crcAt], castagnoli) {
		return bad(crcAt, "header checksum differs")
	}
	if v := binary.BigEndian.Uint32(b[4:]); v != indexVersion {
		return bad(4, "sparse index version %d, want %d", v, indexVersion)
	}
	for i, f := range h.fields() {
		*f = int64(binary.BigEndian.Uint64(b[8+8*i:]))
	}
	h.tableCRC = binary.BigEndian.Uint32(b[crcAt-4:])
	switch {
	case h.entries <= 0 || h.entries > (fileSize-indexHeaderSize)/entrySize || fileSize != indexHeaderSize+h.entries*entrySize:
		return bad(8, "%d entries in a file of %d bytes", h.entries, fileSize)
	case h.prevLog < 0 || h.baseLog < h.prevLog || h.nextLog <= h.baseLog,
		h.baseKafka < 0 || h.nextKafka < h.baseKafka, h.logBytes <= 0:
		return bad(8, "sparse index header out of order")
	}
	return h, nil
}

var errTableOrder = errors.New("sparse index entries out of order")

// decodeTable checks the bytes behind the header: their CRC and their order.
func decodeTable(h indexHeader, b []byte) (table, error) {
	if int64(len(b)) != h.entries*entrySize || crc32.Checksum(b, castagnoli) != h.tableCRC {
		return nil, record.Corrupt("", indexHeaderSize, errors.New("table checksum differs"))
	}
	t := table(b)
	prev := entry{log: h.baseLog - 1, kafka: h.baseKafka, pos: -1}
	for i := range t.len() {
		e := t.at(i)
		if e.damaged || e.log <= prev.log || e.kafka < prev.kafka || e.pos <= prev.pos ||
			e.log >= h.nextLog || e.kafka > h.nextKafka || e.pos >= h.logBytes || i == 0 && (e.pos != 0 || e.kafka != h.baseKafka) {
			return nil, record.Corrupt("", int64(indexHeaderSize+i*entrySize), errTableOrder)
		}
		prev = e
	}
	return t, nil
}
