// Package cache keeps chunks of remote segments in memory, bounded by bytes.
//
// It promises:
//
//   - one running fetch per key, however many callers wait for it;
//   - a fetch belongs to all its waiters: it lives as long as the most patient
//     of them and is cancelled when the last one leaves, so a client that goes
//     away never fails the others and never leaves work behind;
//   - a failure goes to those who wait for it and is never kept;
//   - the bytes charged are the bytes held (the capacity of a slice, not its
//     length), and their sum never passes the limit.
//
// The picture:
//
//	Get ──▶ LRU order (bytes ≤ limit) ──hit──▶ shared, immutable bytes
//	  │ miss
//	  └──▶ call for the key ──▶ one goroutine runs the fetch
//	         ▲ ▲ ▲                 │ success: into the order, to all waiters
//	         waiters               └ failure: to the waiters only
//
// The order is hashicorp/golang-lru's simplelru. It is not safe for parallel
// use, and even a hit changes it, so one mutex guards it together with the
// running calls and the accounting. Nothing foreign runs under that mutex: no
// fetch and no callback.
package cache

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// ErrClosed is the answer of every method that needs an open cache after Close.
var ErrClosed = errors.New("cache: closed")

// A Key names one chunk of one remote segment object. Upload must be unique for
// every object ever written (a re-upload or a re-created topic has a new one):
// an object's bytes never change, therefore a cached chunk never goes stale.
type Key struct {
	Upload string
	Chunk  int32
}

// A Fetch reads a chunk's bytes from the store and checks them. It must return
// soon after ctx ends. The slice it returns belongs to the cache from then on;
// nobody may change it again. It should own exactly the memory it shows, as the
// whole capacity is charged.
type Fetch func(ctx context.Context) ([]byte, error)

// Stats is a consistent view of the cache's counters and contents.
type Stats struct {
	Hits      uint64 // answered from memory
	Misses    uint64 // not in memory: started a fetch or joined one
	Fetches   uint64 // fetches started
	Failures  uint64 // fetches that ended with an error
	Evictions uint64 // entries that made room for others
	Entries   int    // entries held
	Bytes     int64  // bytes held
	MaxBytes  int64  // limit of Bytes
	Running   int    // fetches that have not returned yet
}

// Cache is a byte-bounded LRU of chunks. It is safe for parallel use.
type Cache struct {
	closed chan struct{} // closed when Close begins
	idle   chan struct{} // closed when Close has begun and no fetch runs

	mu struct {
		sync.Mutex
		order *simplelru.LRU[Key, []byte]
		calls map[Key]*call // running fetches that somebody waits for
		stats Stats         // Entries is filled in by Stats
		shut  bool
	}
}

// New returns a cache that holds at most maxBytes bytes. With a limit of zero or
// below it keeps nothing, and still gives all waiters of a key one fetch.
func New(maxBytes int64) *Cache {
	c := &Cache{closed: make(chan struct{}), idle: make(chan struct{})}
	// The order's own limit counts entries. It is out of the way here, because
	// only bytes bound this cache.
	order, err := simplelru.NewLRU[Key, []byte](math.MaxInt, nil)
	if err != nil {
		panic(err) // only a limit below one is refused
	}
	c.mu.order = order
	c.mu.calls = make(map[Key]*call)
	c.mu.stats.MaxBytes = max(maxBytes, 0)
	return c
}

// Lookup returns the bytes of k if they are in memory, and marks them as used.
// It allocates nothing, starts nothing and counts only hits: a caller that goes
// on to Get counts its miss there. The bytes are shared and must not be changed.
func (c *Cache) Lookup(k Key) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	data, ok := c.mu.order.Get(k)
	if ok {
		c.mu.stats.Hits++
	}
	return data, ok
}

// Get returns the bytes of k, from memory (hit) or through fetch. The bytes are
// shared and must not be changed.
//
// If a fetch of k is running already, Get waits for that one, and the deadline
// of its context moves out to ctx's if that is later. When ctx ends, Get returns
// at once with ctx's error, with two exceptions at a deadline: an error given to
// Report is returned instead, and the last waiter gives the fetch a moment to say
// why it had not finished. A fetch that gave up by a context's error, having
// planned for the deadline of whoever started it, is tried again by those who
// joined it and have time left. ErrClosed after Close.
func (c *Cache) Get(ctx context.Context, k Key, fetch Fetch) (data []byte, hit bool, err error) {
	// Each round has one starter, for whom the outcome is final. The bound keeps
	// a broken fetch from being run once for each of many waiters.
	const rounds = 3
	for round := 1; ; round++ {
		cl, started, data, err := c.join(ctx, k, fetch)
		if err != nil || cl == nil {
			return data, err == nil, err
		}
		data, err = c.wait(ctx, cl)
		victim := err != nil && !started && isContextError(err) && ctx.Err() == nil
		if !victim || round == rounds {
			return data, false, err
		}
	}
}

// join answers from memory (a nil call) or makes the caller a waiter of k's call,
// which it starts where there is none.
func (c *Cache) join(ctx context.Context, k Key, fetch Fetch) (cl *call, started bool, data []byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.shut {
		return nil, false, nil, ErrClosed
	}
	if data, ok := c.mu.order.Get(k); ok {
		c.mu.stats.Hits++
		return nil, false, data, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, false, nil, err
	}
	c.mu.stats.Misses++
	cl = c.mu.calls[k]
	started = cl == nil
	if started {
		cl = &call{key: k, ctx: newFetchContext(), done: make(chan struct{})}
		c.mu.calls[k] = cl
		c.mu.stats.Fetches++
		c.mu.stats.Running++
	}
	cl.waiters++
	cl.ctx.extend(ctx)
	if started {
		go c.run(cl, fetch) // only now, so that it sees its first deadline
	}
	return cl, started, nil, nil
}

// wait returns the call's result, or leaves the call when ctx ends first.
func (c *Cache) wait(ctx context.Context, cl *call) ([]byte, error) {
	select {
	case <-cl.done:
		return cl.data, cl.err
	case <-c.closed:
		return nil, ErrClosed
	case <-ctx.Done():
	}
	err := ctx.Err()
	last := c.leave(cl, err)
	if !errors.Is(err, context.DeadlineExceeded) {
		return nil, err
	}
	if last {
		// The fetch has just been told of the deadline. What it knows (the store
		// answered "slow down" all the time, say) is a better answer than "no
		// answer", and a fetch that heeds its context gives it promptly.
		grace := time.NewTimer(deadlineGrace)
		defer grace.Stop()
		select {
		case <-cl.done:
			if cl.err == nil || !isContextError(cl.err) {
				return cl.data, cl.err
			}
		case <-grace.C:
		}
	}
	if reported := cl.ctx.reported(); reported != nil {
		return nil, reported
	}
	return nil, err
}

// deadlineGrace is how long the last waiter stays beyond its deadline for the
// error of the fetch that the deadline has ended.
const deadlineGrace = 50 * time.Millisecond

// leave takes one waiter off the call and, if it was the last one, cancels the
// fetch with cause. The call is forgotten in the same step, so that whoever comes
// next starts a fresh one instead of joining one that is bound to fail.
func (c *Cache) leave(cl *call, cause error) (last bool) {
	c.mu.Lock()
	cl.waiters--
	last = cl.waiters == 0
	if last && c.mu.calls[cl.key] == cl {
		delete(c.mu.calls, cl.key)
	}
	c.mu.Unlock()
	if last {
		cl.ctx.cancel(cause)
	}
	return last
}

// run is the goroutine of one call.
func (c *Cache) run(cl *call, fetch Fetch) {
	// The outcome that stands if fetch neither returns nor panics, but ends its
	// goroutine: waiters must hear of that, too.
	err := errors.New("cache: fetch ended its goroutine")
	var data []byte
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("cache: fetch panicked: %v", p)
		}
		if err != nil {
			data = nil
		}
		c.finish(cl, data, err)
	}()
	data, err = fetch(cl.ctx)
}

// finish publishes the call's result. A success is kept even if nobody waits for
// it any more: the bytes are right and have been paid for.
func (c *Cache) finish(cl *call, data []byte, err error) {
	cl.data, cl.err = data, err
	c.mu.Lock()
	if c.mu.calls[cl.key] == cl {
		delete(c.mu.calls, cl.key)
	}
	c.mu.stats.Running--
	if err != nil {
		c.mu.stats.Failures++
	} else if !c.mu.shut {
		c.addLocked(cl.key, data)
	}
	if c.mu.shut && c.mu.stats.Running == 0 {
		close(c.idle)
	}
	c.mu.Unlock()
	close(cl.done)
	cl.ctx.cancel(context.Canceled) // releases what was derived from it
}

// addLocked keeps data under k, unless it alone is larger than the cache. Empty
// data is not kept either: it would cost an entry that no limit counts.
func (c *Cache) addLocked(k Key, data []byte) {
	size := int64(cap(data))
	if size == 0 || size > c.mu.stats.MaxBytes {
		return
	}
	if old, ok := c.mu.order.Peek(k); ok {
		// A cancelled fetch and its successor may both succeed.
		c.mu.stats.Bytes -= int64(cap(old))
	}
	c.mu.order.Add(k, data)
	c.mu.stats.Bytes += size
	c.shrinkLocked()
}

// shrinkLocked drops the longest unused entries until the limit holds.
func (c *Cache) shrinkLocked() {
	for c.mu.stats.Bytes > c.mu.stats.MaxBytes {
		_, old, ok := c.mu.order.RemoveOldest()
		if !ok {
			return
		}
		c.mu.stats.Bytes -= int64(cap(old))
		c.mu.stats.Evictions++
	}
}

// Trim drops all entries. Running fetches go on, and their results are kept.
func (c *Cache) Trim() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.purgeLocked()
}

func (c *Cache) purgeLocked() {
	c.mu.order.Purge()
	c.mu.stats.Bytes = 0
}

// Resize sets the limit in bytes and drops entries until it holds.
func (c *Cache) Resize(maxBytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.stats.MaxBytes = max(maxBytes, 0)
	c.shrinkLocked()
}

// Stats returns the counters and the contents as of one moment.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.mu.stats
	s.Entries = c.mu.order.Len()
	return s
}

// Close cancels all fetches and waits until they have returned or ctx ends, whose
// error it then returns. Waiters get ErrClosed at once. It may be called again,
// to wait again.
func (c *Cache) Close(ctx context.Context) error {
	c.mu.Lock()
	var cancelled []*call
	if !c.mu.shut {
		c.mu.shut = true
		close(c.closed)
		for _, cl := range c.mu.calls {
			cancelled = append(cancelled, cl)
		}
		clear(c.mu.calls)
		c.purgeLocked()
		if c.mu.stats.Running == 0 {
			close(c.idle)
		}
	}
	c.mu.Unlock()
	for _, cl := range cancelled {
		cl.ctx.cancel(context.Canceled)
	}
	select {
	case <-c.idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func isContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
