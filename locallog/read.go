package locallog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync/atomic"

	"keyhole/record"
)

// ReadBatch calls fn with the batch that holds a Kafka offset and with the Kafka
// offset of the batch's base; the batch's header has its log offset there.
//
// On a real file system batch is a window into the mapped file, valid until fn
// returns, which must not write to it, nor hand it to another goroutine. The
// segment stays while fn runs. The header was checked, the CRC was not: fn does
// that, with record.Reader.Reset or record.Verify, before it believes a byte, so
// that it is done once.
//
// The error is fn's, or ErrBelowStart, ErrNotFound, ErrClosed or, if the bytes do
// not hold, record.ErrCorrupt. Nothing is allocated unless it fails.
func (l *Log) ReadBatch(offset int64, fn func(batch []byte, kafkaBase int64) error) error {
	for {
		v := l.view.Load()
		switch {
		case v.closed:
			return ErrClosed
		case offset < v.LocalStart:
			return ErrBelowStart
		case offset >= v.HighWatermark:
			return ErrNotFound
		}
		var s *sealed
		seg := v.active.segment
		if offset < v.active.baseKafka {
			if s = v.holding(offset); s == nil {
				return ErrNotFound
			}
			seg = s.segment
		}
		if seg.acquire() {
			return v.readBatch(seg, s, offset, fn)
		}
		// It went away between the look at the view and the count. Then there is
		// a newer view, which was published first.
	}
}

// holding is the sealed segment whose range of Kafka offsets holds one, or nil.
func (v *view) holding(offset int64) *sealed {
	lo, hi := 0, len(v.sealed)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if v.sealed[mid].nextKafka <= offset {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == len(v.sealed) || v.sealed[lo].baseKafka > offset {
		return nil
	}
	return v.sealed[lo]
}

// readBatch reads from a segment that the caller has acquired; it releases it. s
// is nil for the active segment.
func (v *view) readBatch(seg *segment, s *sealed, offset int64, fn func([]byte, int64) error) (err error) {
	defer seg.release()
	defer func() { seg.caught(recover(), &err) }()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	e := v.tail()
	if s != nil {
		if e, err = s.extent(); err != nil {
			return err
		}
	}
	var lent *[]byte
	defer func() { e.d.giveBack(lent) }()
	batch, base, err := e.locate(offset, &lent)
	if s != nil && errors.Is(err, record.ErrCorrupt) && s.narrow() {
		if e, err = s.extent(); err == nil {
			batch, base, err = e.locate(offset, &lent)
		}
	}
	if err != nil {
		return err
	}
	return fn(batch, base)
}

// locate gives the batch that holds offset.
func (e *extent) locate(offset int64, lent **[]byte) (batch []byte, kafkaBase int64, err error) {
	i := e.t.byKafka(offset)
	if i < 0 {
		return nil, 0, ErrNotFound
	}
	at := e.t.at(i)
	if at.damaged {
		return nil, 0, e.unreadable(at)
	}
	b, err := e.bytes(at.pos, e.t.end(i, e.size), lent)
	if err != nil {
		return nil, 0, err
	}
	return e.find(b, at, offset)
}

// find walks over the batches of one stretch to the one that holds offset.
func (e *extent) find(b []byte, at entry, offset int64) (batch []byte, kafkaBase int64, err error) {
	log, pos := at.log, 0
	for pos < len(b) {
		h, err := e.next(b, at, pos, log)
		if err != nil {
			return nil, 0, err
		}
		end := pos + int(h.Size())
		if h.IsControl() && isInternal(h, b[pos:end]) {
			break // no data follows in this stretch
		}
		base := at.kafka + h.BaseOffset - at.log
		if offset < base {
			break
		}
		if offset <= base+int64(h.LastOffsetDelta) {
			return b[pos:end:end], base, nil
		}
		log, pos = h.NextOffset(), end
	}
	return nil, 0, ErrNotFound
}

// next decodes the header at pos of a stretch and checks that it belongs there.
func (e *extent) next(b []byte, at entry, pos int, log int64) (record.BatchHeader, error) {
	h, err := record.ParseHeader(b[pos:])
	switch {
	case err != nil:
	case h.Size() > int64(len(b)-pos):
		err = fmt.Errorf("batch of %d bytes where %d are left", h.Size(), len(b)-pos)
	case h.BaseOffset != log:
		err = fmt.Errorf("log offset %d, want %d", h.BaseOffset, log)
	default:
		return h, nil
	}
	return h, record.Corrupt(e.name+logSuffix, at.pos+int64(pos), err)
}

var errHole = errors.New("offsets cannot be read back")

func (e *extent) unreadable(at entry) error {
	return record.Corrupt(e.name+logSuffix, at.pos, fmt.Errorf("%w: Kafka offset %d and on", errHole, at.kafka))
}

// each calls fn with the data batches from entry i on, in order.
func (e *extent) each(i int, fn func(pos int64, h record.BatchHeader, batch []byte, kafkaBase int64) error) error {
	return e.all(i, func(pos int64, h record.BatchHeader, batch []byte, kafkaBase int64) error {
		if isInternal(h, batch) {
			return nil
		}
		return fn(pos, h, batch, kafkaBase)
	})
}

// all is each with the internal batches, whose Kafka offset means nothing.
func (e *extent) all(i int, fn func(pos int64, h record.BatchHeader, batch []byte, kafkaBase int64) error) error {
	var lent *[]byte
	defer func() { e.d.giveBack(lent) }()
	for ; i < e.t.len(); i++ {
		at, end := e.t.at(i), e.t.end(i, e.size)
		if at.damaged {
			if i+1 < e.t.len() && e.t.at(i+1).kafka == at.kafka {
				continue // only internal batches are lost, which is proven
			}
			return e.unreadable(at)
		}
		b, err := e.bytes(at.pos, end, &lent)
		if err != nil {
			return err
		}
		log, pos := at.log, 0
		for pos < len(b) {
			h, err := e.next(b, at, pos, log)
			if err != nil {
				return err
			}
			batch := b[pos : pos+int(h.Size()) : pos+int(h.Size())]
			if err := fn(at.pos+int64(pos), h, batch, at.kafka+h.BaseOffset-at.log); err != nil {
				return err
			}
			log, pos = h.NextOffset(), pos+int(h.Size())
		}
	}
	return nil
}

// Scan calls fn with every data batch that reaches beyond log offset fromLog, in
// order, up to the high watermark at the time of the call. What ReadBatch says
// about the bytes holds for Appended.Batch. Scan ends at the first error: of fn
// or ctx, ErrBelowStart if batches from fromLog on are no longer here, ErrClosed,
// or record.ErrCorrupt at the first stretch that cannot be read.
func (l *Log) Scan(ctx context.Context, fromLog int64, fn func(a Appended) error) error {
	v := l.view.Load()
	first := v.active.segment
	if len(v.sealed) > 0 {
		first = v.sealed[0].segment
	}
	if fromLog < first.prevLog {
		return fmt.Errorf("scan from log offset %d, log begins at %d: %w", fromLog, first.prevLog, ErrBelowStart)
	}
	visit := func(seg *segment, s *sealed) error {
		if !seg.acquire() {
			if l.view.Load().closed {
				return ErrClosed
			}
			return fmt.Errorf("segment %s was trimmed: %w", seg.name, ErrBelowStart)
		}
		return v.scan(ctx, seg, s, fromLog, fn)
	}
	for _, s := range v.sealed {
		if s.nextLog > fromLog {
			if err := visit(s.segment, s); err != nil {
				return err
			}
		}
	}
	if v.NextLog <= fromLog {
		return nil
	}
	return visit(v.active.segment, nil)
}

func (v *view) scan(ctx context.Context, seg *segment, s *sealed, fromLog int64, fn func(Appended) error) (err error) {
	defer seg.release()
	defer func() { seg.caught(recover(), &err) }()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	e := v.tail()
	if s != nil {
		if e, err = s.extent(); err != nil {
			return err
		}
	}
	return e.each(max(0, e.t.byLog(fromLog)), func(_ int64, h record.BatchHeader, batch []byte, base int64) error {
		if h.NextOffset() <= fromLog {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		return fn(Appended{Batch: batch, LogBase: h.BaseOffset, KafkaBase: base})
	})
}

// SegmentReader reads one segment as it was when it was opened, and keeps it from
// going away. Its methods may be called in parallel, but not after Close.
type SegmentReader struct {
	e      extent
	closed atomic.Bool
}

// OpenSegment opens the segment that begins at a log offset: ErrNoSegment if
// there is none (any more).
func (l *Log) OpenSegment(baseLog int64) (*SegmentReader, error) {
	for {
		v := l.view.Load()
		if v.closed {
			return nil, ErrClosed
		}
		var s *sealed
		seg := v.active.segment
		for _, c := range v.sealed {
			if c.baseLog == baseLog {
				s, seg = c, c.segment
			}
		}
		if seg.baseLog != baseLog {
			return nil, fmt.Errorf("%w: base log offset %d", ErrNoSegment, baseLog)
		}
		if !seg.acquire() {
			continue
		}
		r := &SegmentReader{e: v.tail()}
		if s == nil {
			return r, nil
		}
		var err error
		if r.e, err = s.guardedExtent(); err != nil {
			seg.release()
			return nil, err
		}
		return r, nil
	}
}

func (s *sealed) guardedExtent() (e extent, err error) {
	defer func() { s.caught(recover(), &err) }()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	return s.extent()
}

// BaseOffset is the Kafka offset with which the segment begins.
func (r *SegmentReader) BaseOffset() int64 { return r.e.baseKafka }

// NextOffset is the Kafka offset behind the segment.
func (r *SegmentReader) NextOffset() int64 { return r.e.nextKafka }

// Epoch is the one in which the segment's records were written.
func (r *SegmentReader) Epoch() int64 { return int64(r.e.epoch) }

// Size is the number of bytes that can be read, internal batches included.
func (r *SegmentReader) Size() int64 { return r.e.size }

// ReadAt reads the file, as io.ReaderAt. Base offsets in it are log offsets.
func (r *SegmentReader) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, fmt.Errorf("read segment %s at %d: negative position", r.e.name, off)
	}
	n = int(min(int64(len(p)), max(0, r.e.size-off)))
	if n > 0 {
		if err := r.copyAt(p[:n], off); err != nil {
			return 0, err
		}
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (r *SegmentReader) copyAt(p []byte, off int64) (err error) {
	defer func() { r.e.caught(recover(), &err) }()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	buf := p[:0]
	lent := &buf // without a mapping the bytes are read straight into p
	b, err := r.e.bytes(off, off+int64(len(p)), &lent)
	copy(p, b)
	return err
}

// Batches calls fn with every data batch in order: its position in the file, its
// bytes and its Kafka base offset. What ReadBatch says about the bytes holds here.
func (r *SegmentReader) Batches(fn func(pos int64, batch []byte, kafkaBase int64) error) (err error) {
	defer func() { r.e.caught(recover(), &err) }()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	return r.e.each(0, func(pos int64, _ record.BatchHeader, batch []byte, base int64) error {
		return fn(pos, batch, base)
	})
}

// Close lets the segment go. It is idempotent.
func (r *SegmentReader) Close() error {
	if r.closed.CompareAndSwap(false, true) {
		r.e.release()
	}
	return nil
}
