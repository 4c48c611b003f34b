package locallog

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Roll seals the active segment, synced and with its sparse index written, and
// begins a new one. It does nothing if the active segment holds no data.
func (l *Log) Roll(ctx context.Context) error {
	return l.exclusively(ctx, func() error {
		if !l.view.Load().hasData() {
			return nil
		}
		return l.rollLocked()
	})
}

// rollLocked begins a new segment. The old one is sealed, or removed if it holds
// no data: the new checkpoint says everything that it said.
//
//	sync old ─► write its index ─► write and sync the new file ─► sync directory ─► publish
func (l *Log) rollLocked() error {
	if err := l.syncLocked(); err != nil {
		return err
	}
	if err := l.unstopLocked(); err != nil {
		return err
	}
	v := l.view.Load()
	old := v.active
	n := v.notice(kindCheckpoint)
	n.prevLog = old.prevLog
	var done *sealed
	if v.hasData() {
		n.prevLog = v.NextLog
		done = old.seal(v, time.Now().UnixMilli())
		done.writeIndex(old.t)
	}
	next, err := l.d.createSegment(n)
	if err != nil {
		return l.failLocked(err)
	}
	l.switchTo(next, n, done)
	if done == nil {
		old.remove.Store(true)
		old.release()
	}
	return nil
}

// seal turns the active segment into a sealed one; both are the same segment.
func (a active) seal(v *view, now int64) *sealed {
	a.whole.Store(a.size)
	return &sealed{
		segment: a.segment, size: a.size, nextLog: v.NextLog, nextKafka: v.HighWatermark,
		maxTimestamp: a.maxTimestamp, firstAppend: a.firstAppend, sealedAt: now,
	}
}

// createSegment makes the file of a new segment, durable with its checkpoint. The
// name appears only when the checkpoint is whole.
func (d *directory) createSegment(n notice) (*segment, error) {
	s := newSegment(d, n)
	b, err := n.appendTo(nil)
	if err == nil {
		err = noSpace(d.write(s.name+logSuffix, b))
	}
	if err == nil {
		err = d.sync()
	}
	if err != nil {
		return nil, fmt.Errorf("begin segment: %w", err)
	}
	return s, nil
}

// switchTo makes next, which holds only the checkpoint n, the active segment.
func (l *Log) switchTo(next *segment, n notice, done *sealed) {
	if l.w.file != nil {
		if err := l.w.file.Close(); err != nil { // all of it is synced
			l.d.logger.Warn("closing a sealed segment", "err", err)
		}
		l.w.file = nil
	}
	l.w.x = indexer{}
	l.w.x.add(n.log, n.nextKafka, 0, noticeSize, true)
	l.publish(func(v *view) {
		if done != nil {
			v.sealed = withSealed(v.sealed, done)
		}
		v.NextLog = n.log + 1
		v.active = active{segment: next, size: noticeSize, t: l.w.x.t}
	})
}

// TrimPrefix removes the sealed segments that lie wholly below a Kafka offset.
// First the new local start is noted, synced; then readers see it; the files go
// when the last reader inside has left.
func (l *Log) TrimPrefix(ctx context.Context, beforeKafka int64) error {
	return l.exclusively(ctx, func() error {
		v := l.view.Load()
		n := 0
		for n < len(v.sealed) && v.sealed[n].nextKafka <= beforeKafka {
			n++
		}
		if n == 0 {
			return nil
		}
		gone := v.sealed[:n]
		if err := l.noteLocked(Note{LocalStart: gone[n-1].nextKafka}); err != nil {
			return err
		}
		l.publish(func(v *view) { v.sealed = slices.Clone(v.sealed[n:]) })
		for _, s := range gone {
			s.remove.Store(true)
			s.release()
		}
		return nil
	})
}
