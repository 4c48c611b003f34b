package tiered

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"keyhole/record"
)

// maxUncompressed bounds one decompressed batch, in bytes.
const maxUncompressed = 128 << 20

// noTimestamp stands for the largest timestamp of a segment without records, as
// it does in Kafka.
const noTimestamp = -1

// Source is a sealed local segment to upload. It must not change while it is in
// use. ReadAt reads the segment's file; positions are those Batches gives.
type Source interface {
	BaseOffset() int64 // Kafka offset the segment begins at
	NextOffset() int64 // Kafka offset behind the segment, exclusive
	Epoch() int64      // in which its records were written
	io.ReaderAt
	// Batches calls fn for each data batch in order: its byte position, the
	// whole batch with whatever base offset it has in the file, and its Kafka
	// base offset. batch is valid during the call and is not written to.
	Batches(fn func(pos int64, batch []byte, kafkaBase int64) error) error
}

// extent is a run of whole batches that follow each other in the source's file
// and whose base offset is shift above the Kafka offset.
type extent struct {
	pos, size int64
	shift     int64
}

// planned is a chunk and where its bytes come from.
type planned struct {
	chunk
	extents []extent
}

// plan is what the first pass over a source finds out: everything but the bytes
// of the batches. The same source, range and chunk size give the same plan, so
// an upload can be repeated under the same names.
type plan struct {
	src    Source
	info   tableInfo
	maxTS  int64
	chunks []planned
	keys   keySet
}

// newPlan reads the batches of src that lie in from … last and closes a chunk
// once it has chunkBytes bytes. Each batch is verified, so that damage of the
// local disk is not carried to the bucket: the error is record.ErrCorrupt then.
func newPlan(src Source, from, last, chunkBytes int64) (*plan, error) {
	p := &plan{src: src, info: tableInfo{base: from, last: last}, maxTS: math.MinInt64, keys: make(keySet)}
	var r record.Reader
	var base [8]byte
	open := false // the last chunk takes more
	next := from
	err := src.Batches(func(pos int64, batch []byte, kafkaBase int64) error {
		if err := r.Reset(batch, maxUncompressed); err != nil {
			return record.Corrupt(fmt.Sprintf("local segment at offset %d", src.BaseOffset()), pos, err)
		}
		h := r.Header()
		end := kafkaBase + int64(h.LastOffsetDelta)
		switch {
		case end < from:
			return nil
		case kafkaBase < next || end > last:
			return fmt.Errorf("segment at offset %d: batch of offsets %d to %d, expected within %d to %d",
				src.BaseOffset(), kafkaBase, end, next, last)
		}
		next = end + 1
		if !open {
			p.chunks = append(p.chunks, planned{chunk: chunk{base: kafkaBase, pos: p.info.size}})
		}
		c := &p.chunks[len(p.chunks)-1]
		size := int64(len(batch))
		binary.BigEndian.PutUint64(base[:], uint64(kafkaBase))
		c.crc = crc32.Update(crc32.Update(c.crc, castagnoli, base[:]), castagnoli, batch[len(base):])
		c.last = end
		c.size += size
		p.info.size += size
		c.addExtent(pos, size, h.BaseOffset-kafkaBase)
		open = c.size < chunkBytes
		if h.NumRecords > 0 {
			p.maxTS = max(p.maxTS, h.MaxTimestamp)
		}
		n, err := p.keys.note(&r, kafkaBase-h.BaseOffset)
		p.info.records += n
		return err
	})
	if err != nil {
		return nil, err
	}
	if p.maxTS == math.MinInt64 {
		p.maxTS = noTimestamp
	}
	return p, nil
}

func (c *planned) addExtent(pos, size, shift int64) {
	if n := len(c.extents); n > 0 {
		if e := &c.extents[n-1]; e.shift == shift && e.pos+e.size == pos {
			e.size += size
			return
		}
	}
	c.extents = append(c.extents, extent{pos: pos, size: size, shift: shift})
}

// index encodes the index object and says how long its chunk table is.
func (p *plan) index() (object []byte, tableBytes int, err error) {
	chunks := make([]chunk, len(p.chunks))
	for i, c := range p.chunks {
		chunks[i] = c.chunk
	}
	table := encodeTable(p.info, chunks)
	object, err = appendRun(table, p.info.base, p.keys)
	return object, len(table), err
}
