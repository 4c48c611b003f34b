package tiered

import (
	"errors"
	"fmt"
	"io"
	"sort"

	"keyhole/record"
)

// body is the content of a .log object as an io.ReadSeeker: the source's
// batches with their base offsets turned into Kafka offsets. It holds one chunk
// at a time, and compares each with the checksum that the chunk table has.
type body struct {
	p   *plan
	pos int64  // of the next byte to read
	cur int    // index of the chunk in buf, -1: none
	buf []byte // the chunk's bytes
}

func newBody(p *plan) *body { return &body{p: p, cur: -1} }

func (b *body) Read(dst []byte) (int, error) {
	if b.pos >= b.p.info.size {
		return 0, io.EOF
	}
	if b.cur < 0 || b.pos < b.p.chunks[b.cur].pos || b.pos >= b.p.chunks[b.cur].pos+b.p.chunks[b.cur].size {
		i := sort.Search(len(b.p.chunks), func(i int) bool { return b.p.chunks[i].pos > b.pos }) - 1
		if err := b.load(i); err != nil {
			return 0, err
		}
	}
	n := copy(dst, b.buf[b.pos-b.p.chunks[b.cur].pos:])
	b.pos += int64(n)
	return n, nil
}

// Seek implements io.Seeker.
func (b *body) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += b.pos
	case io.SeekEnd:
		offset += b.p.info.size
	}
	if offset < 0 {
		return 0, errors.New("seek before the start of a segment")
	}
	b.pos = offset
	return offset, nil
}

// load reads chunk i and rewrites its base offsets.
func (b *body) load(i int) error {
	c := &b.p.chunks[i]
	b.cur = -1
	if int64(cap(b.buf)) < c.size {
		b.buf = make([]byte, c.size)
	}
	b.buf = b.buf[:c.size]
	at := int64(0)
	for _, e := range c.extents {
		part := b.buf[at : at+e.size]
		if n, err := b.p.src.ReadAt(part, e.pos); n < len(part) {
			return fmt.Errorf("read local segment at byte %d: %w", e.pos, err)
		}
		if err := shiftBases(part, e.shift); err != nil {
			return b.changed(e.pos, err)
		}
		at += e.size
	}
	if err := c.check(b.buf); err != nil {
		return b.changed(c.extents[0].pos, err)
	}
	b.cur = i
	return nil
}

func (b *body) changed(pos int64, err error) error {
	return record.Corrupt(fmt.Sprintf("local segment at offset %d", b.p.src.BaseOffset()), pos,
		fmt.Errorf("bytes differ from the first reading: %w", err))
}

// shiftBases takes shift off the base offset of each batch in a run of them.
func shiftBases(run []byte, shift int64) error {
	for len(run) > 0 {
		h, err := record.ParseHeader(run)
		if err != nil {
			return err
		}
		if h.Size() > int64(len(run)) {
			return fmt.Errorf("batch of %d bytes in the last %d", h.Size(), len(run))
		}
		record.SetBaseOffset(run, h.BaseOffset-shift)
		run = run[h.Size():]
	}
	return nil
}
