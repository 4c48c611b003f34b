package index

import (
	"sync"
	"sync/atomic"
)

// gate lets callers in until it is closed and then waits for the last one to
// leave. Other than a sync.RWMutex it may be entered again from inside, so that
// a callback of Scan can look a key up while Close waits, and it costs the read
// path two atomic additions.
type gate struct {
	n       atomic.Int64 // callers inside, plus shut once closed
	once    sync.Once
	drained chan struct{}
}

const shut = int64(1) << 62

func (g *gate) init() { g.drained = make(chan struct{}) }

// enter reports whether the caller is in; if so, it must leave.
func (g *gate) enter() bool {
	if g.n.Add(1) < shut {
		return true
	}
	g.leave()
	return false
}

func (g *gate) leave() {
	if g.n.Add(-1) == shut {
		g.once.Do(func() { close(g.drained) })
	}
}

func (g *gate) closing() bool { return g.n.Load() >= shut }

// close lets nobody in any more and waits until nobody is inside. It is called
// once.
func (g *gate) close() {
	if g.n.Add(shut) == shut {
		g.once.Do(func() { close(g.drained) })
	}
	<-g.drained
}
