package tiered

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"sort"

	"keyhole/manifest"
	"keyhole/record"
)

// The chunk table is the front part of an index object. All numbers are
// big-endian; docs/format/index-object.md has the byte ruler.
const (
	tableMagic   = "KHIX"
	tableVersion = 1
	tableHead    = 44
	tableEntry   = 32
	tableTail    = 4 // CRC-32C of all before it
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// chunk is one entry of a chunk table: a run of whole batches.
type chunk struct {
	base, last int64 // Kafka offsets, inclusive
	pos, size  int64 // bytes in the .log object
	crc        uint32
}

// check compares a chunk's bytes with its checksum.
func (c chunk) check(data []byte) error {
	if got := crc32.Checksum(data, castagnoli); got != c.crc {
		return fmt.Errorf("chunk of %d bytes has CRC-32C %08x, its table says %08x", c.size, got, c.crc)
	}
	return nil
}

// table is a checked chunk table, kept in its encoded form: that is what the
// table cache charges for, and entries are read in place. The zero table has no
// chunks.
type table struct{ raw []byte }

func (t table) len() int { return max(0, len(t.raw)-tableHead-tableTail) / tableEntry }

func (t table) chunk(i int) chunk {
	b := t.raw[tableHead+i*tableEntry:][:tableEntry]
	be := binary.BigEndian
	return chunk{
		base: int64(be.Uint64(b)),
		last: int64(be.Uint64(b[8:])),
		pos:  int64(be.Uint64(b[16:])),
		size: int64(be.Uint32(b[24:])),
		crc:  be.Uint32(b[28:]),
	}
}

// find returns the index of the chunk whose range holds offset.
func (t table) find(offset int64) (int, bool) {
	i := sort.Search(t.len(), func(i int) bool { return t.chunk(i).last >= offset })
	return i, i < t.len() && t.chunk(i).base <= offset
}

// tableInfo is what a table says of its segment.
type tableInfo struct {
	base, last int64 // the range the segment answers for
	size       int64 // of the .log object
	records    int64
}

func encodeTable(info tableInfo, chunks []chunk) []byte {
	be := binary.BigEndian
	b := make([]byte, 0, tableHead+len(chunks)*tableEntry+tableTail)
	b = append(b, tableMagic...)
	b = append(b, tableVersion, 0, 0, 0)
	b = be.AppendUint64(b, uint64(info.base))
	b = be.AppendUint64(b, uint64(info.last))
	b = be.AppendUint64(b, uint64(info.size))
	b = be.AppendUint64(b, uint64(info.records))
	b = be.AppendUint32(b, uint32(len(chunks)))
	for _, c := range chunks {
		b = be.AppendUint64(b, uint64(c.base))
		b = be.AppendUint64(b, uint64(c.last))
		b = be.AppendUint64(b, uint64(c.pos))
		b = be.AppendUint32(b, uint32(c.size))
		b = be.AppendUint32(b, c.crc)
	}
	return be.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeTable checks raw and wraps it; the table keeps raw. The chunks of a
// table that passes follow each other without a gap in bytes and in ascending
// order of offsets, within the range and the size the table declares.
func decodeTable(raw []byte) (table, tableInfo, error) {
	be := binary.BigEndian
	if len(raw) < tableHead+tableTail || (len(raw)-tableHead-tableTail)%tableEntry != 0 {
		return table{}, tableInfo{}, fmt.Errorf("chunk table of %d bytes", len(raw))
	}
	body := raw[:len(raw)-tableTail]
	if got, want := crc32.Checksum(body, castagnoli), be.Uint32(raw[len(body):]); got != want {
		return table{}, tableInfo{}, fmt.Errorf("chunk table has CRC-32C %08x, says %08x", got, want)
	}
	if string(raw[:4]) != tableMagic || be.Uint32(raw[4:]) != tableVersion<<24 {
		return table{}, tableInfo{}, fmt.Errorf("not a chunk table of version %d", tableVersion)
	}
	info := tableInfo{
		base:    int64(be.Uint64(raw[8:])),
		last:    int64(be.Uint64(raw[16:])),
		size:    int64(be.Uint64(raw[24:])),
		records: int64(be.Uint64(raw[32:])),
	}
	t := table{raw}
	if n := be.Uint32(raw[40:]); uint64(n) != uint64(t.len()) || n == 0 || n > math.MaxInt32 {
		return table{}, tableInfo{}, fmt.Errorf("chunk table of %d bytes declares %d chunks", len(raw), n)
	}
	if info.base < 0 || info.last < info.base || info.records < 0 {
		return table{}, tableInfo{}, fmt.Errorf("chunk table of %d records in offsets %d to %d", info.records, info.base, info.last)
	}
	pos, next := int64(0), info.base
	for i := range t.len() {
		c := t.chunk(i)
		if c.pos != pos || c.size < record.HeaderSize || c.base < next || c.last < c.base || c.last > info.last {
			return table{}, tableInfo{}, fmt.Errorf("chunk %d has offsets %d to %d and %d bytes at %d", i, c.base, c.last, c.size, c.pos)
		}
		pos, next = pos+c.size, c.last+1
	}
	if pos != info.size {
		return table{}, tableInfo{}, fmt.Errorf("chunks have %d bytes, segment has %d", pos, info.size)
	}
	return t, info, nil
}

// tableOf is decodeTable for the table of one segment.
func tableOf(raw []byte, seg *manifest.Segment) (table, error) {
	if int64(len(raw)) != seg.TableBytes {
		return table{}, fmt.Errorf("chunk table of %d bytes, the manifest says %d", len(raw), seg.TableBytes)
	}
	t, info, err := decodeTable(raw)
	if err != nil {
		return table{}, err
	}
	if info != (tableInfo{base: seg.BaseOffset, last: seg.LastOffset, size: seg.Size, records: seg.Records}) {
		return table{}, errors.New("chunk table of another segment")
	}
	return t, nil
}
