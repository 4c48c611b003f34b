package locallog

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/fsync"
	"keyhole/record"
)

// chain checks that no segment is missing. Where one is, a stand-in of which
// nothing can be read keeps its offsets from being taken for a gap.
func (r *recovery) chain() error {
	log, kafka := int64(0), r.state.LocalStart
	var whole []*sealed
	join := func(s *segment) error {
		missing := kafka < s.baseKafka // else no data was between, whatever was
		switch {
		case len(whole) > 0 && log > s.prevLog:
			return record.Corrupt(s.name+logSuffix, 0, fmt.Errorf("log offset %d, but the segment before it ends at %d", s.baseLog, log))
		case missing:
			r.d.logger.Error("segment is missing or unreadable", "log_offset", log, "kafka_offset", kafka, "next_kafka_offset", s.baseKafka)
			whole = append(whole, r.standIn(anchor{log, kafka}, anchor{s.prevLog, s.baseKafka}))
		}
		return nil
	}
	for _, s := range r.sealed {
		if err := join(s.segment); err != nil {
			return err
		}
		whole = append(whole, s)
		log, kafka = s.nextLog, s.nextKafka
	}
	if r.active.segment != nil {
		if err := join(r.active.segment); err != nil {
			return err
		}
	} else if r.stop != nil && kafka < r.stop.nextKafka {
		// Cleanly stopped, and now no file is left of what was there.
		whole = append(whole, r.standIn(anchor{log, kafka}, anchor{r.stop.log, r.stop.nextKafka}))
	}
	r.sealed = whole
	return nil
}

// standIn is a sealed segment of which nothing can be read.
func (r *recovery) standIn(from, to anchor) *sealed {
	s := &sealed{nextLog: to.log, nextKafka: to.kafka}
	n := notice{log: from.log, nextKafka: from.kafka, prevLog: from.log}
	for _, f := range r.files {
		if f.baseLog >= from.log && f.baseLog < to.log {
			n.log, n.epoch = f.baseLog, f.epoch // so that errors and a later trim name it
			break
		}
	}
	s.segment = newSegment(r.d, n)
	s.damaged.Store(true)
	t := table{}.append(entry{log: n.log, kafka: from.kafka, damaged: true})
	s.loaded.Store(&t)
	return s
}

// begin makes an active segment if none of the files can be it.
func (r *recovery) begin() error {
	if r.stopFile && r.stop == nil {
		if err := r.d.removeDurably(stopFile); err != nil {
			return err
		}
		r.stopFile = false
	}
	if r.active.segment != nil {
		return nil
	}
	v := view{State: r.state}
	n := v.notice(kindCheckpoint)
	n.prevLog = n.log
	s, err := r.d.createSegment(n)
	if err != nil {
		return err
	}
	// The folder itself may be new.
	if err := fsync.Dir(r.d.fs, r.d.fs.PathDir(r.d.path)); err != nil {
		return err
	}
	r.x.add(n.log, n.nextKafka, 0, noticeSize, true)
	r.active = active{segment: s, size: noticeSize, t: r.x.t}
	r.state.NextLog++
	return nil
}

// settle makes durable what was found. A process that was killed leaves writes, and
// the name of a new segment, that were never synced but can be read all the same;
// what is shown and built upon from now on must not vanish in a power failure.
func (r *recovery) settle(f *logFile) error {
	if r.stop != nil && r.stop.segment == f.baseLog && r.stop.segmentBytes == f.size {
		return nil // Close has done it
	}
	out, err := r.d.fs.OpenReadWrite(r.d.join(f.name+logSuffix), vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("open last segment to sync it: %w", err)
	}
	if err := errors.Join(out.Sync(), out.Close()); err != nil {
		return fmt.Errorf("sync last segment: %w", err)
	}
	return r.d.sync()
}
