package index

import (
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// limiter bounds how many compactions run at once over all indexes of a Shared.
// Pebble's own scheduler bounds them per database and wakes up ten times a second
// for each of them, which a thousand idle partitions on two cores would feel.
// This one works only when a compaction is wanted or ends.
//
// Pebble asks TrySchedule once. If that is refused, the database waits to be
// offered a slot through Schedule, for as long as it accepts the offers; so a
// scheduler stays in the queue until its database declines.
type limiter struct {
	mu struct {
		sync.Mutex
		free  int
		queue []*scheduler // those whose database waits, the longest waiting first
	}
}

func newLimiter(slots int) *limiter {
	l := &limiter{}
	l.mu.free = slots
	return l
}

// scheduler is one database's view of the limiter. It is also the grant handle of
// each compaction it lets run. Its fields are guarded by limiter.mu.
//
// Lock order: a database's mutex before limiter.mu. Hence Schedule, which takes
// the former, is called without the latter.
type scheduler struct {
	limiter  *limiter
	offered  *sync.Cond // offering has become false
	opened   func()
	db       pebble.DBForCompaction
	running  int
	offering bool // inside db.Schedule
	started  bool // the database is open
	stopped  bool // no more compactions: closing or failed
}

var (
	_ pebble.CompactionScheduler   = (*scheduler)(nil)
	_ pebble.CompactionGrantHandle = (*scheduler)(nil)
)

// newScheduler returns a scheduler that calls opened when its database is open.
func (l *limiter) newScheduler(opened func()) *scheduler {
	return &scheduler{limiter: l, offered: sync.NewCond(&l.mu.Mutex), opened: opened}
}

// Register implements pebble.CompactionScheduler. Pebble calls it as the last step
// of opening a database before it starts anything in the background.
func (s *scheduler) Register(_ int, db pebble.DBForCompaction) {
	s.db = db
	s.opened()
}

// Unregister implements pebble.CompactionScheduler.
func (s *scheduler) Unregister() {
	s.stop()
	s.limiter.mu.Lock()
	defer s.limiter.mu.Unlock()
	for s.offering {
		s.offered.Wait()
	}
}

// stop refuses further compactions. It does not wait for running ones.
func (s *scheduler) stop() {
	l := s.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	s.stopped = true
	l.mu.queue = slices.DeleteFunc(l.mu.queue, func(q *scheduler) bool { return q == s })
}

// TrySchedule implements pebble.CompactionScheduler.
func (s *scheduler) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	l := s.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.stopped {
		return false, nil
	}
	if l.mu.free == 0 || !s.started || !s.mayRunLocked() {
		l.mu.queue = append(l.mu.queue, s)
		return false, nil
	}
	l.mu.free--
	s.running++
	return true, s
}

// mayRunLocked says whether the database itself allows one more compaction.
func (s *scheduler) mayRunLocked() bool {
	return s.running < s.db.GetAllowedWithoutPermission()
}

// UpdateGetAllowedWithoutPermission implements pebble.CompactionScheduler. What a
// database allows is fixed here, so there is nothing to look at again.
func (s *scheduler) UpdateGetAllowedWithoutPermission() {}

// Started implements pebble.CompactionGrantHandle.
func (s *scheduler) Started() {}

// MeasureCPU implements pebble.CompactionGrantHandle.
func (s *scheduler) MeasureCPU(pebble.CompactionGoroutineKind) {}

// CumulativeStats implements pebble.CompactionGrantHandle.
func (s *scheduler) CumulativeStats(pebble.CompactionGrantHandleStats) {}

// Done implements pebble.CompactionGrantHandle: the slot goes to whoever waits.
func (s *scheduler) Done() {
	l := s.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.free++
	s.running--
	l.offerLocked()
}

// start lets compactions begin. Pebble wants some before a database is open, and
// does not wait for them if the opening then fails.
func (s *scheduler) start() {
	l := s.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	s.started = true
	l.offerLocked()
}

// offerLocked offers free slots to those who wait. It releases the mutex in between.
func (l *limiter) offerLocked() {
	for l.mu.free > 0 {
		next := l.popLocked()
		if next == nil {
			return
		}
		// The slot is taken before the offer, so that nobody else gets it.
		l.mu.free--
		next.running++
		next.offering = true
		l.mu.Unlock()
		accepted := next.db.Schedule(next)
		l.mu.Lock()
		next.offering = false
		next.offered.Broadcast()
		if !accepted {
			l.mu.free++
			next.running--
		} else if !next.stopped {
			l.mu.queue = append(l.mu.queue, next) // it may have more to do
		}
	}
}

// popLocked takes the longest waiting scheduler that may run off the queue.
func (l *limiter) popLocked() *scheduler {
	for i, s := range l.mu.queue {
		if s.started && !s.offering && s.mayRunLocked() {
			l.mu.queue = slices.Delete(l.mu.queue, i, i+1)
			return s
		}
	}
	return nil
}
