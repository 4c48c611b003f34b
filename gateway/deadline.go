package gateway

import (
	"context"
	"sync"
	"time"
)

// deadlineContext ends at a deadline, like context.WithDeadline, but starts its
// timer only when somebody asks for Done. A lookup of a hot key never does, and
// the timer and its bookkeeping would be among the dearest parts of it.
type deadlineContext struct {
	parent   context.Context
	deadline time.Time

	mu struct {
		sync.Mutex
		armed    context.Context // nil until Done is called
		cancel   context.CancelFunc
		released bool
	}
}

func withDeadline(parent context.Context, deadline time.Time) *deadlineContext {
	return &deadlineContext{parent: parent, deadline: deadline}
}

// release ends the context; the request is over.
func (c *deadlineContext) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.released = true
	if c.mu.cancel != nil {
		c.mu.cancel()
	}
}

// Deadline implements context.Context.
func (c *deadlineContext) Deadline() (time.Time, bool) {
	if d, ok := c.parent.Deadline(); ok && d.Before(c.deadline) {
		return d, true
	}
	return c.deadline, true
}

// Done implements context.Context; the first call starts the timer.
func (c *deadlineContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.armed == nil {
		c.mu.armed, c.mu.cancel = context.WithDeadline(c.parent, c.deadline)
		if c.mu.released {
			c.mu.cancel()
		}
	}
	return c.mu.armed.Done()
}

// Err implements context.Context. Without a timer the clock decides.
func (c *deadlineContext) Err() error {
	c.mu.Lock()
	armed, released := c.mu.armed, c.mu.released
	c.mu.Unlock()
	switch {
	case armed != nil:
		return armed.Err()
	case released:
		return context.Canceled
	case c.parent.Err() != nil:
		return c.parent.Err()
	case !time.Now().Before(c.deadline):
		return context.DeadlineExceeded
	}
	return nil
}

// Value implements context.Context. Once the timer runs, the inner context
// answers, so that contexts derived from this one hang on it without a
// goroutine of their own.
func (c *deadlineContext) Value(key any) any {
	c.mu.Lock()
	armed := c.mu.armed
	c.mu.Unlock()
	if armed != nil {
		return armed.Value(key)
	}
	return c.parent.Value(key)
}
