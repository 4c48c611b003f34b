package index

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// fakeDB behaves as Pebble does towards its scheduler: it asks once, and when
// refused waits for offers until it has nothing left to do.
type fakeDB struct {
	load    *load
	sched   *scheduler
	mu      sync.Mutex // plays the part of the database's mutex
	todo    int
	waiting bool
}

// load counts compactions over all databases.
type load struct {
	mu           sync.Mutex
	changed      *sync.Cond
	now, highest int
	ended, want  int
}

func newLoad() *load {
	l := &load{}
	l.changed = sync.NewCond(&l.mu)
	return l
}

func (l *load) add(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now += n
	l.highest = max(l.highest, l.now)
}

// wanted announces n compactions; end says that one of them is over.
func (l *load) wanted(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.want += n
}

func (l *load) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended++
	l.changed.Broadcast()
}

// wait returns when all that was wanted has run.
func (l *load) wait() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.ended < l.want {
		l.changed.Wait()
	}
}

func (d *fakeDB) GetAllowedWithoutPermission() int { return 1 }

func (d *fakeDB) GetWaitingCompaction() (bool, pebble.WaitingCompaction) {
	panic("not asked: the queue knows")
}

func (d *fakeDB) Schedule(h pebble.CompactionGrantHandle) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.todo == 0 {
		d.waiting = false
		return false
	}
	d.startLocked(h)
	return true
}

func (d *fakeDB) startLocked(h pebble.CompactionGrantHandle) {
	d.todo--
	d.load.add(1)
	go func() {
		defer d.load.end()
		d.load.add(-1)
		h.Done()
		d.want(0)
	}()
}

// want adds compactions and starts what may start.
func (d *fakeDB) want(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.load.wanted(n)
	d.todo += n
	for !d.waiting && d.todo > 0 {
		ok, h := d.sched.TrySchedule()
		if !ok {
			d.waiting = true
			return
		}
		d.startLocked(h)
	}
}

// Every compaction that is wanted runs, and never more at once than there are slots.
func TestLimiter(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for _, slots := range []int{1, 3} {
		l := newLimiter(slots)
		total := newLoad()
		dbs := make([]*fakeDB, 20)
		for i := range dbs {
			dbs[i] = &fakeDB{load: total, sched: l.newScheduler(func() {})}
			dbs[i].sched.Register(2, dbs[i])
			if i%2 == 0 {
				dbs[i].sched.start() // the others wait until they are open
			}
		}
		var wg sync.WaitGroup
		for i := range dbs {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(seed, uint64(i)))
				for range 50 {
					dbs[i].want(rng.IntN(4))
				}
			})
		}
		for i := range dbs {
			wg.Go(func() {
				if i%2 == 1 {
					dbs[i].sched.start()
				}
			})
		}
		wg.Wait()
		total.wait()
		for _, d := range dbs {
			d.sched.Unregister()
		}
		if total.highest > slots || total.highest == 0 {
			t.Errorf("%d compactions at once, %d slots", total.highest, slots)
		}
		if l.mu.free != slots || len(l.mu.queue) != 0 {
			t.Errorf("%d slots free of %d, %d waiting", l.mu.free, slots, len(l.mu.queue))
		}
	}
}

// A database that has stopped gets no slot and holds none back from others.
func TestLimiterStop(t *testing.T) {
	l := newLimiter(1)
	total := newLoad()
	a := &fakeDB{load: total, sched: l.newScheduler(func() {})}
	b := &fakeDB{load: total, sched: l.newScheduler(func() {})}
	for _, d := range []*fakeDB{a, b} {
		d.sched.Register(2, d)
		if ok, _ := d.sched.TrySchedule(); ok {
			t.Fatal("a compaction before the database is open")
		}
		l.mu.queue = nil // asked for by hand: nobody waits
		d.sched.start()
	}
	ok, h := a.sched.TrySchedule()
	if !ok {
		t.Fatal("refused though all is free")
	}
	b.want(1)
	if !b.waiting {
		t.Fatal("two compactions in one slot")
	}
	b.sched.stop()
	h.Done()
	if b.todo != 1 || l.mu.free != 1 || len(l.mu.queue) != 0 {
		t.Errorf("todo %d, free %d, waiting %d", b.todo, l.mu.free, len(l.mu.queue))
	}
	if ok, _ := b.sched.TrySchedule(); ok {
		t.Error("a stopped database got a slot")
	}
	b.sched.Unregister()
	a.sched.Unregister()
}
