package locallog

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/record"
)

// splitBytes bounds what is decompressed to cut a batch in two.
const splitBytes = 256 << 20

// TruncateSuffix takes back all records from a Kafka offset on, durably; the next
// append gets that offset. It is for offsets that were never promised to anyone
// who still counts on them: the index must have forgotten them before, or it will
// take their log offsets, which are given again, for applied. What the bucket
// has, as noted, cannot be taken back (ErrInvalid); neither can what lies below
// the local start (ErrBelowStart).
//
// The intent is written down first, so that a crash in between is carried on by
// the next Open. If the offset lies inside a batch, the batch is written anew with
// the records that stay.
func (l *Log) TruncateSuffix(ctx context.Context, kafkaOffset int64) error {
	return l.exclusively(ctx, func() error {
		v := l.view.Load()
		switch {
		case kafkaOffset < v.LocalStart:
			return ErrBelowStart
		case kafkaOffset > v.HighWatermark:
			return fmt.Errorf("%w: truncate to offset %d, log ends at %d", ErrInvalid, kafkaOffset, v.HighWatermark)
		case kafkaOffset < v.RemoteNext:
			return fmt.Errorf("%w: truncate to offset %d, the bucket has all below %d", ErrInvalid, kafkaOffset, v.RemoteNext)
		case kafkaOffset == v.HighWatermark:
			return nil
		}
		c, err := l.planCut(kafkaOffset)
		if err != nil {
			return err
		}
		n := v.notice(kindTruncate)
		n.nextKafka = kafkaOffset
		b, err := n.appendTo(nil)
		if err != nil {
			return err
		}
		if err := l.unstopLocked(); err != nil {
			return err
		}
		if err := l.d.write(truncateFile, b); err != nil {
			return l.failLocked(err)
		}
		if err := l.d.sync(); err != nil {
			return l.failLocked(err)
		}
		l.publish(func(v *view) { v.truncations++ })
		return l.cutLocked(c)
	})
}

// redoTruncate carries a truncation on that a crash broke off.
func (l *Log) redoTruncate(kafkaOffset int64) error {
	c, err := l.planCut(kafkaOffset)
	if err != nil {
		return err
	}
	return l.cutLocked(c)
}

// cut says how the log is to be truncated.
type cut struct {
	kafka  int64
	keep   int // sealed segments that stay as they are
	target *segment
	active bool   // target is the active segment
	first  int64  // target's firstAppend
	pos    int64  // target's bytes below stay
	log    int64  // log offset at pos
	part   []byte // what stays of the batch at pos, encoded anew
}

// planCut finds the segment in which the truncated log ends, and the place.
func (l *Log) planCut(kafkaOffset int64) (c cut, err error) {
	v := l.view.Load()
	c = cut{kafka: kafkaOffset, target: v.active.segment, active: true, first: v.active.firstAppend, keep: len(v.sealed)}
	e := v.tail()
	for i, s := range v.sealed {
		if s.nextKafka >= kafkaOffset {
			c.keep, c.target, c.active, c.first = i, s.segment, false, s.firstAppend
			if e, err = s.guardedExtent(); err != nil {
				return c, err
			}
			break
		}
	}
	return c, c.place(&e)
}

func (c *cut) place(e *extent) (err error) {
	defer func() { e.caught(recover(), &err) }()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	c.pos, c.log = e.size, e.nextLog
	found := errors.New("found")
	err = e.each(max(0, e.t.byKafka(c.kafka-1)), func(pos int64, h record.BatchHeader, batch []byte, base int64) error {
		if base+int64(h.LastOffsetDelta) < c.kafka {
			return nil
		}
		c.pos, c.log = pos, h.BaseOffset
		if base < c.kafka {
			part, err := firstPart(batch, h, c.kafka-base)
			if err != nil {
				return err
			}
			c.part, c.log = part, h.BaseOffset+c.kafka-base
		}
		return found
	})
	if err == found {
		return nil
	}
	return err
}

// firstPart encodes the records of the first n offsets of a batch as a batch.
func firstPart(batch []byte, h record.BatchHeader, n int64) ([]byte, error) {
	if h.IsTransactional() || h.IsControl() || h.ProducerID >= 0 {
		return nil, fmt.Errorf("%w: a batch of a transaction or of an idempotent producer cannot be split", ErrInvalid)
	}
	var r record.Reader
	if err := r.Reset(batch, splitBytes); err != nil {
		return nil, err
	}
	var recs []record.Record
	for r.Next() {
		rec := r.Record()
		if rec.Offset >= h.BaseOffset+n {
			break
		}
		headers, err := rec.Headers()
		if err != nil {
			return nil, err
		}
		recs = append(recs, record.Record{
			Offset: rec.Offset, Timestamp: rec.Timestamp, Key: rec.Key, Value: rec.Value, Headers: headers,
		})
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	return record.AppendBatch(nil, record.BatchOptions{
		BaseOffset: h.BaseOffset, LastOffset: h.BaseOffset + n - 1, LeaderEpoch: h.LeaderEpoch, Codec: h.Codec(),
	}, recs)
}

// cutLocked does what c says, each step durable before the next: newer segments
// go, newest first; the target is replaced by its front with a note behind it,
// which keeps the state that later segments carried; the intent goes.
func (l *Log) cutLocked(c cut) error {
	v := l.view.Load()
	if c.active && c.kafka >= v.HighWatermark {
		return l.endCut() // done before the crash
	}
	for _, name := range v.newerThan(c) {
		if err := l.d.removeDurably(name+indexSuffix, name+logSuffix); err != nil {
			return l.failLocked(err)
		}
	}
	n := v.notice(kindNote)
	n.log, n.nextKafka = c.log, c.kafka
	tail, err := n.appendTo(c.part)
	if err != nil {
		return err
	}
	if err := l.rewrite(c, tail); err != nil {
		return l.failLocked(err)
	}
	if err := l.reopen(c, n); err != nil {
		return l.failLocked(err)
	}
	return l.endCut()
}

func (l *Log) endCut() error {
	if err := l.d.removeDurably(truncateFile); err != nil {
		return l.failLocked(err)
	}
	return nil
}

// newerThan names the segments behind the target of c, newest first.
func (v *view) newerThan(c cut) []string {
	if c.active {
		return nil
	}
	names := []string{v.active.name}
	for i := len(v.sealed) - 1; i > c.keep; i-- {
		names = append(names, v.sealed[i].name)
	}
	return names
}

// rewrite replaces the target's file. Readers keep the old one.
func (l *Log) rewrite(c cut, tail []byte) error {
	if err := l.d.remove(c.target.name + indexSuffix); err != nil {
		return err
	}
	name := c.target.name + logSuffix
	in, err := l.d.fs.Open(l.d.join(name))
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	defer in.Close()
	err = l.d.writeFrom(name, func(out vfs.File) error {
		if err := copyExactly(out, in, c.pos); err != nil {
			return err
		}
		_, err := out.Write(tail)
		return err
	})
	if err != nil {
		return err
	}
	return l.d.sync()
}

// reopen makes the rewritten target the active segment.
func (l *Log) reopen(c cut, n notice) error {
	f, err := l.d.fs.Open(l.d.join(c.target.name + logSuffix))
	if err != nil {
		return fmt.Errorf("open truncated segment: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("open truncated segment: %w", err)
	}
	sc := scanner{f: f, size: info.Size()}
	res, err := sc.segment(c.target.baseLog, c.target.baseKafka, anchor{})
	if err != nil {
		return err
	}
	if res.end != info.Size() || res.nextKafka != c.kafka || res.nextLog != n.log+1 {
		return record.Corrupt(c.target.name+logSuffix, res.end, errors.New("truncated segment does not end where it should"))
	}
	if l.w.file != nil {
		err = l.w.file.Close()
		l.w.file = nil
	}
	l.w.dirty, l.w.x = false, res.indexer
	old := l.view.Load()
	target := newSegment(l.d, notice{
		log: c.target.baseLog, nextKafka: c.target.baseKafka, prevLog: c.target.prevLog,
		epoch: c.target.epoch, time: c.target.created,
	})
	a := active{segment: target, size: res.end, t: res.t, maxTimestamp: res.maxTimestamp}
	if res.data {
		a.firstAppend = c.first
	}
	l.publish(func(v *view) {
		v.HighWatermark, v.NextLog = c.kafka, res.nextLog
		v.sealed, v.active = v.sealed[:c.keep:c.keep], a
	})
	for _, s := range old.sealed[c.keep:] {
		s.release()
	}
	old.active.release()
	return err
}
