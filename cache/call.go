package cache

import (
	"context"
	"sync"
	"time"
)

// call is one running fetch and those who wait for it.
type call struct {
	key     Key
	ctx     *fetchContext
	waiters int // guarded by Cache.mu

	done chan struct{} // closed when data and err are set
	data []byte
	err  error
}

// fetchContext is the context of a fetch that several callers share. Its deadline
// is the latest of theirs and can move out while the fetch runs, which no context
// of the standard library can do. It needs no timer of its own: each waiter
// watches its own context, and the last one to leave cancels this one.
//
// AfterFunc is the hook by which the context package cancels derived contexts
// with this context's own error and without a goroutine for each.
type fetchContext struct {
	done chan struct{}

	mu struct {
		sync.Mutex
		err      error
		endless  bool      // a waiter has no deadline
		deadline time.Time // the latest of the waiters'
		report   error
		after    map[*func()]struct{}
	}
}

var _ context.Context = (*fetchContext)(nil)

func newFetchContext() *fetchContext {
	return &fetchContext{done: make(chan struct{})}
}

// Deadline implements context.Context. A later call may give a later time. The
// time never moves in when a patient waiter leaves early: it is a hint for
// planning, while Done is what ends the fetch.
func (f *fetchContext) Deadline() (time.Time, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.endless {
		return time.Time{}, false
	}
	return f.mu.deadline, true
}

// Done implements context.Context.
func (f *fetchContext) Done() <-chan struct{} { return f.done }

// Err implements context.Context: DeadlineExceeded if the last waiter left
// because of its deadline, else Canceled.
func (f *fetchContext) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.err
}

// fetchKey finds a fetchContext from the contexts derived from it.
type fetchKey struct{}

// Value implements context.Context. No waiter's values are visible: the fetch is
// not the work of one of them.
func (f *fetchContext) Value(key any) any {
	if key == (fetchKey{}) {
		return f
	}
	return nil
}

// AfterFunc calls fn once after the context has ended, unless stop is called
// before; stop reports whether it came in time. fn must not block.
func (f *fetchContext) AfterFunc(fn func()) (stop func() bool) {
	f.mu.Lock()
	if f.mu.err != nil {
		f.mu.Unlock()
		fn()
		return func() bool { return false }
	}
	defer f.mu.Unlock()
	if f.mu.after == nil {
		f.mu.after = make(map[*func()]struct{})
	}
	f.mu.after[&fn] = struct{}{}
	return func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		_, waiting := f.mu.after[&fn]
		delete(f.mu.after, &fn)
		return waiting
	}
}

// extend moves the deadline out to that of a waiter.
func (f *fetchContext) extend(waiter context.Context) {
	deadline, ok := waiter.Deadline()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !ok {
		f.mu.endless = true
	} else if deadline.After(f.mu.deadline) {
		f.mu.deadline = deadline
	}
}

// cancel ends the context with err; only the first call counts.
func (f *fetchContext) cancel(err error) {
	f.mu.Lock()
	if f.mu.err != nil {
		f.mu.Unlock()
		return
	}
	f.mu.err = err
	after := f.mu.after
	f.mu.after = nil
	close(f.done)
	f.mu.Unlock()
	for fn := range after {
		(*fn)()
	}
}

func (f *fetchContext) reported() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.report
}

// Report tells the waiters of the fetch that ctx belongs to what the store said
// last, while the fetch goes on trying. A waiter whose deadline passes gets this
// error instead of its own DeadlineExceeded: the store did answer. Without such a
// fetch it does nothing.
func Report(ctx context.Context, err error) {
	if f, ok := ctx.Value(fetchKey{}).(*fetchContext); ok {
		f.mu.Lock()
		f.mu.report = err
		f.mu.Unlock()
	}
}
