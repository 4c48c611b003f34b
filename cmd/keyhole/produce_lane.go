package main

import (
	"context"
	"sync"
)

// lane is a queue with one request in flight: while it is, the next batch
// grows; when it is done, what has gathered is sent, however little. So a slow
// input is passed on record by record, and a fast one in full batches.
type lane struct {
	mu      sync.Mutex
	changed *sync.Cond // any field below
	next    *batch
	spare   *batch // nil while it is in flight
	closed  bool   // no more records come
}

func newLane() *lane {
	l := &lane{next: &batch{}, spare: &batch{}}
	l.changed = sync.NewCond(&l.mu)
	return l
}

// waitLocked blocks until ready or the end of ctx, whose cause it gives. The caller
// holds mu.
func (l *lane) waitLocked(ctx context.Context, ready func() bool) error {
	stop := context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.changed.Broadcast()
	})
	defer stop()
	for !ready() {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		l.changed.Wait()
	}
	return nil
}

// put adds a record by calling add; it waits while the batch is full.
func (l *lane) put(ctx context.Context, add func(*batch)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next.full() {
		if err := l.waitLocked(ctx, func() bool { return !l.next.full() }); err != nil {
			return err
		}
	}
	add(l.next)
	if l.next.len() == 1 {
		l.changed.Broadcast()
	}
	return nil
}

// take gives the next batch; nil when no more come.
func (l *lane) take(ctx context.Context) (*batch, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.waitLocked(ctx, func() bool { return l.next.len() > 0 || l.closed }); err != nil {
		return nil, err
	}
	if l.next.len() == 0 {
		return nil, nil
	}
	b := l.next
	l.next, l.spare = l.spare, nil
	l.changed.Broadcast()
	return b, nil
}

// give returns a batch that was taken.
func (l *lane) give(b *batch) {
	b.reset()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spare = b
}

func (l *lane) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.changed.Broadcast()
}
