package locallog

import (
	"bytes"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/record"
)

const (
	scanWindow = 128 << 10
	magicAt    = 16 // place of the format version in a batch header
	magicV2    = 2
	pageSize   = 4 << 10
)

// scanner reads a segment file from front to end, for recovery and to rebuild a
// sparse index. It reads instead of mapping, so that a failing disk is an error
// and is never taken for a torn write.
type scanner struct {
	f      vfs.File
	size   int64
	verify bool  // check CRCs; else only that headers follow each other
	limit  int64 // log offset where the segment is known to end; 0: at the file's end

	buf []byte
	at0 int64 // file position of buf[0]
}

// at gives n bytes at pos, valid until the next call. The caller has checked
// that they are within size.
func (sc *scanner) at(pos, n int64) ([]byte, error) {
	if off := pos - sc.at0; off >= 0 && off+n <= int64(len(sc.buf)) {
		return sc.buf[off : off+n], nil
	}
	want := max(n, min(scanWindow, sc.size-pos))
	if int64(cap(sc.buf)) < want {
		sc.buf = make([]byte, want)
	}
	sc.buf, sc.at0 = sc.buf[:want], pos
	if _, err := sc.f.ReadAt(sc.buf, pos); err != nil {
		sc.buf = sc.buf[:0]
		if err == io.EOF {
			err = io.ErrUnexpectedEOF // the file shrank under us
		}
		return nil, fmt.Errorf("read log at byte %d: %w", pos, err)
	}
	return sc.buf[:n], nil
}

// batch reads the batch at pos. ok is false if there is none that is whole, sound
// and begins at log offset log (any from there on if gap is set); err is only for reads that fail.
func (sc *scanner) batch(pos, log int64, gap bool) (h record.BatchHeader, n notice, ok bool, err error) {
	if sc.size-pos < record.HeaderSize {
		return h, n, false, nil
	}
	b, err := sc.at(pos, record.HeaderSize)
	if err != nil {
		return h, n, false, err
	}
	h, perr := record.ParseHeader(b)
	if perr != nil || h.Size() > sc.size-pos || h.BaseOffset < log || !gap && h.BaseOffset > log {
		return h, n, false, nil
	}
	if !sc.verify && !maybeInternal(h) {
		return h, n, true, nil
	}
	if b, err = sc.at(pos, h.Size()); err != nil {
		return h, n, false, err
	}
	if _, verr := record.Verify(b); verr != nil {
		return h, n, false, nil
	}
	if isInternal(h, b) {
		if n, perr = parseNotice(b); perr != nil {
			return h, n, false, nil
		}
	}
	return h, n, true, nil
}

// anchor is a known pair of offsets: where log offset log stands, the next Kafka
// offset is kafka. It helps to count on behind a hole. The zero value is none.
type anchor struct{ log, kafka int64 }

// hole is a stretch of a file that does not hold.
type hole struct {
	log, kafka int64 // the first offsets in it
	pos, end   int64 // bytes; end is where sound batches begin again
}

// scanned is what a scan found.
type scanned struct {
	indexer
	end          int64 // position behind the last sound batch
	nextLog      int64
	nextKafka    int64 // an upper bound if open
	maxTimestamp int64
	data         bool   // there are data batches
	last         notice // the last internal batch; kind 0 if there is none
	holes        []hole
	// open says that behind the last hole no place was found from which Kafka
	// offsets could be counted again, so the hole reaches to the end.
	open bool
}

// segment reads the file of a segment that begins with the given offsets. Bytes
// that are not a sound batch, but are followed by one, become a hole. Bytes at
// the end that no sound batch follows are left out: end is less than the size.
//
// Kafka offsets behind a hole can be counted on from it only if it is known how
// many internal batches it swallowed. They are counted as if it was none, and set
// right at the next internal batch, which names its offset, or at the anchor.
func (sc *scanner) segment(baseLog, baseKafka int64, a anchor) (*scanned, error) {
	res := &scanned{nextLog: baseLog, nextKafka: baseKafka}
	var pos int64
	unsure := -1 // index of the first entry whose Kafka offset is not certain
	settle := func(kafka int64) {
		shift := kafka - res.nextKafka
		if shift > 0 || res.nextKafka+shift < res.t.at(unsure-1).kafka {
			return // contradicts what stands before the hole
		}
		shifted := res.t[: unsure*entrySize : unsure*entrySize]
		for i := unsure; i < res.t.len(); i++ {
			e := res.t.at(i)
			e.kafka += shift
			shifted = shifted.append(e)
		}
		res.t, res.nextKafka, unsure = shifted, kafka, -1
	}
	for pos < sc.size && (sc.limit == 0 || res.nextLog < sc.limit) {
		h, n, ok, err := sc.batch(pos, res.nextLog, false)
		if err != nil {
			return nil, err
		}
		if ok && unsure < 0 && n.kind != 0 && n.nextKafka != res.nextKafka {
			ok = false // a sound batch, but not of this place
		}
		if !ok {
			next, err := sc.resync(pos, res.nextLog)
			if err != nil {
				return nil, err
			}
			if next < 0 {
				break
			}
			res.holes = append(res.holes, hole{log: res.nextLog, kafka: res.nextKafka, pos: pos, end: next})
			h, _, _, err := sc.batch(next, res.nextLog, true)
			if err != nil {
				return nil, err
			}
			switch sure := sc.oneDataBatch(pos, next, res.nextLog, h.BaseOffset); {
			case unsure >= 0 && !sure:
				// What follows will not tell in which of the two holes internal
				// batches are missing, so what is between them is lost too.
				res.drop(unsure)
			default:
				res.indexer.hole(res.nextLog, res.nextKafka, pos)
				if !sure {
					unsure = res.t.len()
				}
			}
			res.nextKafka += h.BaseOffset - res.nextLog
			res.nextLog = h.BaseOffset
			pos = next
			continue
		}
		if unsure >= 0 && n.kind != 0 {
			settle(n.nextKafka)
		}
		if unsure >= 0 && a.log == res.nextLog {
			settle(a.kafka)
		}
		res.add(res.nextLog, res.nextKafka, pos, h.Size(), n.kind != 0)
		res.nextLog = h.NextOffset()
		if n.kind != 0 {
			res.last = n
		} else {
			res.nextKafka += int64(h.LastOffsetDelta) + 1
			res.maxTimestamp = max(res.maxTimestamp, h.MaxTimestamp)
			res.data = true
		}
		pos += h.Size()
	}
	res.end = pos
	if unsure >= 0 && a.log == res.nextLog {
		settle(a.kafka)
	}
	if unsure >= 0 {
		res.t, res.open = res.t[:unsure*entrySize], true
	}
	return res, nil
}

// fill marks what lies between the last sound batch and the known end of the
// segment as a hole, if there is anything.
func (res *scanned) fill(nextLog, nextKafka int64) {
	if res.nextLog < nextLog {
		if !res.open {
			res.indexer.hole(res.nextLog, res.nextKafka, res.end)
		}
		res.holes = append(res.holes, hole{log: res.nextLog, kafka: res.nextKafka, pos: res.end, end: res.end})
	}
	res.nextLog, res.nextKafka = max(res.nextLog, nextLog), nextKafka
}

// resync finds the next sound batch behind the bad bytes at pos, or -1.
func (sc *scanner) resync(pos, log int64) (int64, error) {
	verify := sc.verify
	sc.verify = true
	defer func() { sc.verify = verify }()
	// If only the records are damaged the header leads on. That is tried first:
	// values may hold whole batches, which a search would take for ours.
	if b, err := sc.header(pos); err != nil {
		return 0, err
	} else if h, perr := record.ParseHeader(b); perr == nil && h.Size() < sc.size-pos {
		if ok, err := sc.plausible(pos+h.Size(), log, h.Size()); ok || err != nil {
			return pos + h.Size(), err
		}
	}
	start := pos
	for pos++; sc.size-pos >= record.HeaderSize; pos++ {
		window, err := sc.at(pos, min(scanWindow, sc.size-pos))
		if err != nil {
			return 0, err
		}
		i := bytes.IndexByte(window[magicAt:], magicV2)
		if i < 0 {
			pos += int64(len(window)) - magicAt - 1
			continue
		}
		pos += int64(i)
		if ok, err := sc.plausible(pos, log, pos-start); ok || err != nil {
			return pos, err
		}
	}
	return -1, nil
}

// plausible reports whether there is a batch at pos behind skipped bad bytes. Its
// base offset is not under its CRC, so it must either be no further away than the
// bytes before it can account for, well compressed, or lead on to another batch or
// to the end of the segment. (A compacted batch may cover many offsets in a few bytes.)
func (sc *scanner) plausible(pos, log, skipped int64) (bool, error) {
	const offsetsPerByte = 1 << 10
	h, _, ok, err := sc.batch(pos, log, true)
	if !ok || err != nil || h.BaseOffset-log <= skipped*offsetsPerByte {
		return ok, err
	}
	if sc.limit > 0 && h.NextOffset() == sc.limit {
		return true, nil // it ends where the segment is known to
	}
	_, _, ok, err = sc.batch(pos+h.Size(), h.NextOffset(), false)
	return ok, err
}

// header gives the bytes of a header at pos, fewer at the end of the file.
func (sc *scanner) header(pos int64) ([]byte, error) {
	return sc.at(pos, min(record.HeaderSize, sc.size-pos))
}

// oneDataBatch reports whether the bad bytes from pos to next are plainly a
// single data batch that covers the offsets from log to nextLog. The attribute
// that says so may be what is damaged, so the size must be none of an internal one.
func (sc *scanner) oneDataBatch(pos, next, log, nextLog int64) bool {
	if next-pos == noticeSize {
		return false
	}
	b, err := sc.header(pos)
	if err != nil {
		return false
	}
	h, err := record.ParseHeader(b)
	return err == nil && !h.IsControl() && h.BaseOffset == log && h.NextOffset() == nextLog && pos+h.Size() == next
}

// torn reports whether h looks like pages that never reached the disk: a page of
// the file ends in zeros that cannot have been written. What a crash leaves of
// one write may have such pages in its middle, because pages are written back in
// any order; damage of what was there before looks different.
func (sc *scanner) torn(h hole) (bool, error) {
	const few = 64 // as many zeros may be at a page's end by chance
	for page := h.pos &^ (pageSize - 1); page < h.end; page += pageSize {
		from, to := max(page, h.pos), min(page+pageSize, sc.size)
		b, err := sc.at(from, to-from)
		if err != nil {
			return false, err
		}
		zeros := len(b) - len(bytes.TrimRight(b, "\x00"))
		if zeros >= few || zeros == len(b) && from == h.pos && startsNonZero(h.log, zeros) {
			return true, nil
		}
	}
	return false, nil
}

// startsNonZero reports whether the first n bytes of a batch with this base
// offset have a bit set.
func startsNonZero(base int64, n int) bool {
	return n >= 8 && base != 0 || n > 0 && n < 8 && base>>(8*(8-n)) != 0
}
