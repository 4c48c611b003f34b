package locallog

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// noSpace adds ErrNoSpace to the error of a write that found no room. It is not
// for errors of syncs: what a failed sync left on the disk nobody knows.
func noSpace(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}

// Resume makes a log that is read-only for ErrNoSpace writable, if there is room
// again: a note is written to see whether there is. What the failed write left
// behind the committed end is cut off first, durably, so that a batch whose append
// failed never comes back behind others that were appended later. Readers are not
// disturbed.
//
// It does nothing to a log that is well, and gives the reason of one that stays
// read-only, which lasts until it is opened again unless it is ErrNoSpace.
func (l *Log) Resume(ctx context.Context) error {
	if l.Err() == nil {
		return nil
	}
	if err := l.lock(ctx); err != nil {
		return err
	}
	defer l.unlock()
	if l.w.closed {
		return ErrClosed
	}
	if err := l.Err(); !errors.Is(err, ErrNoSpace) {
		return err
	}
	v := l.view.Load()
	err := l.d.cut(v.active.name+logSuffix, v.active.size)
	if errors.Is(err, errUnsynced) {
		return l.failLocked(err)
	}
	if err == nil {
		// The file may be another one now, and a failed roll has left its marks in
		// the segment.
		err = l.reopen(cut{
			kafka: v.HighWatermark, keep: len(v.sealed), target: v.active.segment, active: true, first: v.active.firstAppend,
		}, notice{log: v.NextLog - 1})
	}
	if err != nil {
		return fmt.Errorf("%w: %w", l.Err(), err)
	}
	l.failure.Store(nil)
	if err := l.noteLocked(Note{}); err != nil {
		return err
	}
	l.d.logger.Info("log takes writes again", "dir", l.d.path)
	return nil
}
