package tiered

import (
	"context"
	"fmt"
	"time"

	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/record"
)

// pieceBytes is how much of an object a sequential reader asks for at once.
const pieceBytes = 4 << 20

// stream reads an object front to back by ranged GETs of pieceBytes, or of more
// where one field is larger.
type stream struct {
	ctx    context.Context
	bucket objstore.Bucket
	key    string
	pos    int64 // of the next byte to hand out
	end    int64 // the object's size by the manifest
	buf    []byte
	ahead  [][]byte // pieces behind buf that were read already

	// pace, unless nil, is called behind each read with the time it took.
	pace func(ctx context.Context, took time.Duration) error
}

// next hands out exactly n bytes, valid until the next call. Asking past the
// end is damage.
func (s *stream) next(n int64) ([]byte, error) {
	b, err := s.peek(n)
	if err != nil {
		return nil, err
	}
	s.pos += n
	s.buf = s.buf[n:]
	return b, nil
}

// peek is next without moving on.
func (s *stream) peek(n int64) ([]byte, error) {
	if n > s.end-s.pos {
		return nil, record.Corrupt(s.key, s.pos, fmt.Errorf("%d bytes expected, %d left", n, s.end-s.pos))
	}
	for have := int64(len(s.buf)); have < n; have = int64(len(s.buf)) {
		piece, err := s.piece(s.pos+have, n-have)
		if err != nil {
			return nil, err
		}
		if have > 0 {
			piece = append(append(make([]byte, 0, have+int64(len(piece))), s.buf...), piece...)
		}
		s.buf = piece
	}
	return s.buf[:n], nil
}

// piece returns the bytes from a position on: what was read ahead, or else at
// least n of them.
func (s *stream) piece(from, n int64) ([]byte, error) {
	if len(s.ahead) > 0 {
		piece := s.ahead[0]
		s.ahead = s.ahead[1:]
		return piece, nil
	}
	n = min(max(pieceBytes, n), s.end-from)
	began := time.Now()
	piece, err := s.bucket.ReadRange(s.ctx, s.key, from, n)
	if err != nil {
		return nil, damaged(s.key, from, s.end, err)
	}
	if s.pace != nil {
		err = s.pace(s.ctx, time.Since(began))
	}
	return piece, err
}

// readAhead reads all that is left, piece by piece.
func (s *stream) readAhead() error {
	var pieces [][]byte
	for at := s.pos + int64(len(s.buf)); at < s.end; {
		piece, err := s.piece(at, 1)
		if err != nil {
			return err
		}
		pieces = append(pieces, piece)
		at += int64(len(piece))
	}
	s.ahead = pieces
	return nil
}

// batches reads a .log object front to back and calls fn with each batch, whose
// offsets lie in the segment's range and ascend; batch is valid during the call
// and its CRC is for fn to check. Chunks that tab lists are checked before
// anything in them is given out, which covers the base offsets too: they stand
// outside of the batches' CRC.
func (s *stream) batches(seg *manifest.Segment, tab table, fn func(pos int64, batch []byte, h record.BatchHeader) error) error {
	next := seg.BaseOffset
	for i := 0; s.pos < s.end; {
		pos := s.pos
		if i < tab.len() && tab.chunk(i).pos == pos {
			c := tab.chunk(i)
			raw, err := s.peek(c.size)
			if err != nil {
				return err
			}
			if err := c.check(raw); err != nil {
				return record.Corrupt(s.key, pos, err)
			}
			i++
		}
		head, err := s.peek(record.HeaderSize)
		if err != nil {
			return err
		}
		h, err := record.ParseHeader(head)
		if err != nil {
			return record.Corrupt(s.key, pos, err)
		}
		if h.BaseOffset < next || h.LastOffset() > seg.LastOffset {
			return record.Corrupt(s.key, pos, fmt.Errorf("batch of offsets %d to %d, expected within %d to %d", h.BaseOffset, h.LastOffset(), next, seg.LastOffset))
		}
		next = h.NextOffset()
		batch, err := s.next(h.Size())
		if err != nil {
			return err
		}
		if err := fn(pos, batch, h); err != nil {
			return err
		}
	}
	return nil
}
