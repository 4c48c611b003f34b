package tiered

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"github.com/klauspost/compress/zstd"

	"keyhole/record"
)

// Recode says what becomes of a segment's batches on their way to the bucket.
type Recode struct {
	// Merge makes batches of about a chunk, uncompressed, out of smaller and larger
	// ones and compresses them with Codec. Without it all go as they are. Batches
	// of transactions go as they are always.
	Merge bool
	Codec record.Codec
}

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

// group is a run of batches of the source that becomes whole chunks.
type group struct{ extents []extent }

// planned is a chunk and where its bytes come from: out of what group is made
// into, from byte at on.
type planned struct {
	chunk
	group int
	at    int64
}

// shape is what the bytes of an upload depend on besides its source. It is asked
// once per upload, so that a repetition gives the same bytes.
type shape struct {
	chunkBytes int64
	recode     Recode
}

// plan is what the first pass over a source finds out: everything but the bytes
// of the batches. The same source, range and shape give the same plan, so an
// upload can be repeated under the same names.
type plan struct {
	shape
	src        io.ReaderAt
	name       string // of src, in errors
	epoch      int64
	info       tableInfo
	tombstones int64
	maxTS      int64
	alive      bool // some batch has a record or a marker
	groups     []group
	chunks     []planned
	keys       keySet
}

// planner fills a plan. Without merging each group is one chunk.
type planner struct {
	*plan
	recoder *recoder // nil without merging
	open    bool     // the last group takes more
	weight  int64    // of the last group: bytes when merged and plain
	next    int64    // offset behind what was planned
}

// newPlan reads the batches of src that lie in from … last and closes a chunk
// once it has the target size. Each batch is verified, so that damage of the
// local disk is not carried to the bucket: the error is record.ErrCorrupt then.
func newPlan(src Source, from, last int64, s shape) (*plan, error) {
	pl := &planner{next: from, plan: &plan{
		shape: s, src: src, name: fmt.Sprintf("local segment at offset %d", src.BaseOffset()), epoch: src.Epoch(),
		info: tableInfo{base: from, last: last}, maxTS: noTimestamp, keys: make(keySet),
	}}
	if s.recode.Merge {
		pl.recoder = newRecoder(pl.plan)
	}
	var r record.Reader
	err := src.Batches(func(pos int64, batch []byte, kafkaBase int64) error {
		if err := r.Reset(batch, maxUncompressed); err != nil {
			return record.Corrupt(pl.name, pos, err)
		}
		h := r.Header()
		end := kafkaBase + int64(h.LastOffsetDelta)
		switch {
		case end < from:
			return nil
		case kafkaBase < pl.next || end > last:
			return fmt.Errorf("%s: batch of offsets %d to %d, expected within %d to %d", pl.name, kafkaBase, end, pl.next, last)
		}
		n, err := pl.keys.note(&r, kafkaBase-h.BaseOffset)
		if err != nil {
			return record.Corrupt(pl.name, pos, err)
		}
		pl.info.records += n.records
		pl.tombstones += n.tombstones
		e := extent{pos: pos, size: int64(len(batch)), shift: h.BaseOffset - kafkaBase}
		if pl.recoder == nil {
			pl.keep(e, batch, h)
		} else if err := pl.merge(e, batch, h, n.plain); err != nil {
			return located(err, pl.name, pos)
		}
		pl.next = end + 1
		return nil
	})
	if err == nil && pl.recoder != nil {
		err = pl.closeGroup()
	}
	if err != nil {
		return nil, err
	}
	return pl.plan, nil
}

// keep plans a batch that goes as it is.
func (pl *planner) keep(e extent, batch []byte, h record.BatchHeader) {
	var base [8]byte
	kafkaBase := h.BaseOffset - e.shift
	binary.BigEndian.PutUint64(base[:], uint64(kafkaBase))
	if !pl.open {
		pl.groups = append(pl.groups, group{})
		pl.chunks = append(pl.chunks, planned{chunk: chunk{base: kafkaBase, pos: pl.info.size}, group: len(pl.groups) - 1})
	}
	pl.groups[len(pl.groups)-1].add(e)
	c := &pl.chunks[len(pl.chunks)-1]
	c.crc = crc32.Update(crc32.Update(c.crc, castagnoli, base[:]), castagnoli, batch[len(base):])
	c.last = kafkaBase + int64(h.LastOffsetDelta)
	c.size += e.size
	pl.info.size += e.size
	pl.open = c.size < pl.chunkBytes
	pl.note(h)
}

// merge plans a batch that becomes part of another one. A group is closed before
// it would pass the size of a chunk, so that it usually is one batch; only a batch
// that alone is larger makes a group of more than one.
func (pl *planner) merge(e extent, batch []byte, h record.BatchHeader, weight int64) error {
	if h.IsControl() || h.IsTransactional() {
		weight = e.size
	}
	if pl.open && pl.weight+weight > pl.chunkBytes {
		if err := pl.closeGroup(); err != nil {
			return err
		}
	}
	if !pl.open {
		pl.groups = append(pl.groups, group{})
		pl.open, pl.weight = true, record.HeaderSize
	}
	pl.groups[len(pl.groups)-1].add(e)
	pl.weight += weight
	return pl.recoder.add(batch, h.BaseOffset-e.shift)
}

// closeGroup makes chunks of what the last group has become: one, or one for each
// batch if the group is larger than a chunk.
func (pl *planner) closeGroup() error {
	if !pl.open {
		return nil
	}
	pl.open = false
	if err := pl.recoder.end(); err != nil {
		return err
	}
	at, open := int64(0), false
	for _, h := range pl.recoder.batches {
		if !open {
			pl.chunks = append(pl.chunks, planned{chunk: chunk{base: h.BaseOffset, pos: pl.info.size}, group: len(pl.groups) - 1, at: at})
		}
		size := h.Size()
		c := &pl.chunks[len(pl.chunks)-1]
		c.crc = crc32.Update(c.crc, castagnoli, pl.recoder.out[at:at+size])
		c.last = h.LastOffset()
		c.size += size
		at += size
		pl.info.size += size
		pl.note(h)
		open = c.size < pl.chunkBytes && pl.weight <= pl.chunkBytes
	}
	pl.recoder.begin()
	return nil
}

// note takes down what the header of a batch for the bucket says.
func (p *plan) note(h record.BatchHeader) {
	if h.NumRecords > 0 {
		if !p.alive {
			p.maxTS = math.MinInt64
		}
		p.alive = true
		p.maxTS = max(p.maxTS, h.MaxTimestamp)
	}
}

func (g *group) add(next extent) {
	if n := len(g.extents); n > 0 {
		if e := &g.extents[n-1]; e.shift == next.shift && e.pos+e.size == next.pos {
			e.size += next.size
			return
		}
	}
	g.extents = append(g.extents, next)
}

// index encodes the index object and says how long its chunk table is.
func (p *plan) index(zip *zstd.Encoder) (object []byte, tableBytes int) {
	chunks := make([]chunk, len(p.chunks))
	for i, c := range p.chunks {
		chunks[i] = c.chunk
	}
	table := encodeTable(p.info, chunks)
	return appendRun(table, p.info.base, p.keys, zip), len(table)
}
