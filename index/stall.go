package index

import (
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"keyhole/record"
)

// How much may be on its way to the disk before commits wait.
const (
	// maxBacklog bounds the bytes of batches whose flush has not ended.
	maxBacklog = 2 * memTableSize
	// maxSublevels bounds the tables at level 0 that one lookup may have to ask.
	maxSublevels = 20
)

// stall makes commits wait for flushes and compactions. Pebble can do so itself,
// but then waits for good when writing fails for good, with locks that Close
// needs; therefore its own limits are out of reach (see options).
type stall struct {
	changed chan struct{} // capacity 1: a flush or compaction has ended

	total   atomic.Int64 // bytes committed
	begun   atomic.Int64 // total when the running flush began
	flushed atomic.Int64 // total when the last successful flush began
	// crowded says that level 0, or the memtables, have changed since Pebble was
	// asked about them.
	crowded atomic.Bool
}

func (s *stall) init() {
	s.changed = make(chan struct{}, 1)
	s.crowded.Store(true) // by an earlier process
}

func (s *stall) committed(size int64) { s.total.Add(size) }

// Pebble calls the next two, and compactionEnd, with its mutex held.

func (s *stall) flushBegin() { s.begun.Store(s.total.Load()) }

// flushEnd also counts what has been committed since the memtable was closed as
// flushed, which is less than one memtable and evens out at the next flush.
func (s *stall) flushEnd(err error) {
	if err == nil {
		s.flushed.Store(s.begun.Load())
	}
	s.crowded.Store(true)
	s.signal()
}

func (s *stall) compactionEnd() {
	s.crowded.Store(true)
	s.signal()
}

func (s *stall) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// waitForRoom returns once a commit may go on. The caller holds x.commit, so only
// one waits at a time.
func (x *Index) waitForRoom() error {
	for {
		if err := x.failure.err(); err != nil {
			return err
		}
		if !x.full() {
			return nil
		}
		if x.gate.closing() {
			return ErrClosed
		}
		// Close does not signal; it may take a moment to be noticed.
		again := time.NewTimer(100 * time.Millisecond)
		select {
		case <-x.stall.changed:
		case <-x.failure.failed:
		case <-again.C:
		}
		again.Stop()
	}
}

// full reports whether a commit has to wait. The caller holds x.commit.
func (x *Index) full() bool {
	s := &x.stall
	if s.total.Load()-s.flushed.Load() > maxBacklog {
		return true
	}
	// Asking Pebble is dear, so it is done once after a change.
	if !s.crowded.Swap(false) {
		return false
	}
	if x.measure() < maxSublevels {
		return false
	}
	s.crowded.Store(true)
	return true
}

// measure tells the Shared about the memtables and returns how many tables of
// level 0 a lookup may have to ask. The caller holds x.commit.
func (x *Index) measure() (sublevels int32) {
	metrics := x.db.Metrics()
	x.setMemTables(int64(metrics.MemTable.Size + metrics.MemTable.ZombieSize))
	return metrics.Levels[0].Sublevels
}

// events returns what Pebble tells the index. The callbacks run with Pebble's
// locks held and must not call it.
func (x *Index) events() *pebble.EventListener {
	return &pebble.EventListener{
		FlushBegin: func(pebble.FlushInfo) {
			x.stall.flushBegin()
			x.tables.flushBegin()
		},
		FlushEnd: func(info pebble.FlushInfo) {
			x.stall.flushEnd(info.Err)
			x.tables.flushEnd(info.Err)
		},
		CompactionEnd: func(pebble.CompactionInfo) {
			x.stall.compactionEnd()
			x.tables.changed.Store(true)
		},
		BackgroundError: func(err error) {
			x.failure.set(x.classify(err))
		},
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			x.failure.set(record.Corrupt(info.Path, 0, info.Details))
		},
	}
}
