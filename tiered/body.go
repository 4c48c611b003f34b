package tiered

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"

	"keyhole/record"
)

// body is the content of a .log object as an io.ReadSeeker: the source's
// batches with their base offsets turned into Kafka offsets, merged if the plan
// says so. It holds the chunks of one group at a time, and compares each with the
// checksum that the chunk table has.
type body struct {
	p     *plan
	pos   int64  // of the next byte to read
	cur   int    // index of the chunk in buf, -1: none
	buf   []byte // the chunk's bytes, part of group's
	group int    // whose bytes are in out, -1: none
	out   []byte
	in    []byte   // a run of the source's batches that are being merged
	rc    *recoder // nil: made when needed
}

func newBody(p *plan) *body { return &body{p: p, cur: -1, group: -1} }

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

// load makes chunk i.
func (b *body) load(i int) error {
	c := &b.p.chunks[i]
	b.cur = -1
	if b.group != c.group {
		load := b.copyGroup
		if b.p.recode.Merge {
			load = b.mergeGroup
		}
		if err := load(c.group); err != nil {
			b.group, b.rc = -1, nil
			return err
		}
		b.group = c.group
	}
	if c.at+c.size > int64(len(b.out)) {
		return b.changed(b.p.groups[c.group].extents[0].pos, fmt.Errorf("%d bytes instead of %d or more", len(b.out), c.at+c.size))
	}
	b.buf = b.out[c.at : c.at+c.size]
	if err := c.check(b.buf); err != nil {
		return b.changed(b.p.groups[c.group].extents[0].pos, err)
	}
	b.cur = i
	return nil
}

// copyGroup reads a group and rewrites its base offsets.
func (b *body) copyGroup(g int) error {
	b.out = b.out[:0]
	for _, e := range b.p.groups[g].extents {
		at := len(b.out)
		var err error
		if b.out, err = b.read(b.out, e); err != nil {
			return err
		}
		err = eachBatch(b.out[at:], func(batch []byte, h record.BatchHeader) error {
			record.SetBaseOffset(batch, h.BaseOffset-e.shift)
			return nil
		})
		if err != nil {
			return b.changed(e.pos, err)
		}
	}
	return nil
}

// mergeGroup reads a group and makes of it what the first pass did.
func (b *body) mergeGroup(g int) error {
	if b.rc == nil || g < b.group {
		b.rc = newRecoder(b.p) // one goes forward only
	}
	b.rc.begin()
	for _, e := range b.p.groups[g].extents {
		var err error
		if b.in, err = b.read(b.in[:0], e); err != nil {
			return err
		}
		err = eachBatch(b.in, func(batch []byte, h record.BatchHeader) error {
			return b.rc.add(batch, h.BaseOffset-e.shift)
		})
		if err != nil {
			return b.changed(e.pos, err)
		}
	}
	if err := b.rc.end(); err != nil {
		return b.changed(b.p.groups[g].extents[0].pos, err)
	}
	b.out = b.rc.out
	return nil
}

// read appends an extent's bytes to dst.
func (b *body) read(dst []byte, e extent) ([]byte, error) {
	at := len(dst)
	dst = slices.Grow(dst, int(e.size))[:at+int(e.size)]
	if n, err := b.p.src.ReadAt(dst[at:], e.pos); n < int(e.size) {
		return dst, fmt.Errorf("read %s at byte %d: %w", b.p.name, e.pos, err)
	}
	return dst, nil
}

func (b *body) changed(pos int64, err error) error {
	return record.Corrupt(b.p.name, pos, fmt.Errorf("bytes differ from the first reading: %w", err))
}

// eachBatch calls fn for each batch of a run of them.
func eachBatch(run []byte, fn func(batch []byte, h record.BatchHeader) error) error {
	for len(run) > 0 {
		h, err := record.ParseHeader(run)
		if err != nil {
			return err
		}
		if h.Size() > int64(len(run)) {
			return fmt.Errorf("batch of %d bytes in the last %d", h.Size(), len(run))
		}
		if err := fn(run[:h.Size():h.Size()], h); err != nil {
			return err
		}
		run = run[h.Size():]
	}
	return nil
}

const (
	// movedAfter is how much of a body must have been asked for before that shows
	// that the bucket takes it: less may only fill the buffers on the way. movedEach
	// is how much more shows it again.
	movedAfter = 8 << 20
	movedEach  = 4 << 20
)

// moving is a body whose reading counts as progress of uploads in general. What is
// read again for a repetition does not count.
type moving struct {
	*body
	shared *Shared
	next   int64 // the position that counts next
}

func newMoving(p *plan, s *Shared) *moving { return &moving{newBody(p), s, movedAfter} }

func (m *moving) Read(dst []byte) (int, error) {
	n, err := m.body.Read(dst)
	if m.pos >= m.next {
		m.next = m.pos + movedEach
		m.shared.noteMoved()
	}
	return n, err
}
