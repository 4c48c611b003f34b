// Package objstoretest holds what tests need around objstore: the contract that
// every store must meet as a suite (Run), a bucket in memory (Memory), and a
// wrapper that counts calls and makes them slow or fail (Faulty).
//
//	b := objstoretest.NewFaulty(nil)               // over a fresh Memory
//	b.Before(func(ctx context.Context, c objstoretest.Call) error { … })
//	b.Count(objstoretest.OpReadRange)
package objstoretest

import (
	"context"
	"io"
	"sync"

	"keyhole/objstore"
)

// Op names a method of objstore.Bucket.
type Op string

// The operations that Faulty counts.
const (
	OpReadRange    Op = "ReadRange"
	OpGet          Op = "Get"
	OpGetIfChanged Op = "GetIfChanged"
	OpPut          Op = "Put"
	OpDelete       Op = "Delete"
	OpList         Op = "List"
	OpListPrefixes Op = "ListPrefixes"
)

// Call is one call that reached the store. Key is the prefix for listings;
// Off and N are set for ReadRange, N also for Put (the size).
type Call struct {
	Op     Op
	Key    string
	Off, N int64
}

// Hook may delay a call (it should honour ctx) or fail it.
type Hook func(ctx context.Context, c Call) error

// Faulty wraps a bucket, remembers all calls and injects faults. It is safe for
// parallel use. A hook runs outside all locks.
type Faulty struct {
	inner objstore.Bucket
	mu    struct {
		sync.Mutex
		calls  []Call
		before Hook
		after  Hook
		filter func(c Call, data []byte) []byte
	}
}

// NewFaulty wraps inner, or a fresh Memory if inner is nil.
func NewFaulty(inner objstore.Bucket) *Faulty {
	if inner == nil {
		inner = NewMemory()
	}
	return &Faulty{inner: inner}
}

// Inner is the wrapped bucket: calls made on it are neither counted nor failed.
func (f *Faulty) Inner() objstore.Bucket { return f.inner }

// Before installs a hook that runs ahead of each call; if it fails, the call
// never reaches the store. nil removes it.
func (f *Faulty) Before(h Hook) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.before = h
}

// After installs a hook that runs behind each call that succeeded; if it fails,
// the call took effect, yet its reply is lost. nil removes it.
func (f *Faulty) After(h Hook) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.after = h
}

// FilterRead installs a function that may damage what reads give back; it owns
// the slice. nil removes it.
func (f *Faulty) FilterRead(filter func(c Call, data []byte) []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.filter = filter
}

// FailNext makes the next n calls of op fail with err, then removes itself. It
// takes the place of the Before hook.
func (f *Faulty) FailNext(op Op, n int, err error) {
	var mu sync.Mutex
	f.Before(func(_ context.Context, c Call) error {
		mu.Lock()
		defer mu.Unlock()
		if c.Op != op || n == 0 {
			return nil
		}
		n--
		return err
	})
}

// Calls is a copy of all calls so far, in the order in which they arrived.
func (f *Faulty) Calls() []Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]Call(nil), f.mu.calls...)
}

// Count says how many calls of the given kinds arrived; all kinds if none is
// given.
func (f *Faulty) Count(ops ...Op) int {
	return f.count(func(Call) bool { return true }, ops)
}

// CountKey is Count for one key.
func (f *Faulty) CountKey(key string, ops ...Op) int {
	return f.count(func(c Call) bool { return c.Key == key }, ops)
}

func (f *Faulty) count(match func(Call) bool, ops []Op) int {
	n := 0
	for _, c := range f.Calls() {
		wanted := len(ops) == 0
		for _, op := range ops {
			wanted = wanted || c.Op == op
		}
		if wanted && match(c) {
			n++
		}
	}
	return n
}

// ResetCalls forgets all calls so far. Hooks stay.
func (f *Faulty) ResetCalls() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.calls = nil
}

// begin records the call and runs the hook; end runs the other one.
func (f *Faulty) begin(ctx context.Context, c Call) error {
	f.mu.Lock()
	f.mu.calls = append(f.mu.calls, c)
	hook := f.mu.before
	f.mu.Unlock()
	if hook == nil {
		return nil
	}
	return hook(ctx, c)
}

func (f *Faulty) end(ctx context.Context, c Call, err error) error {
	f.mu.Lock()
	hook := f.mu.after
	f.mu.Unlock()
	if err != nil || hook == nil {
		return err
	}
	return hook(ctx, c)
}

func (f *Faulty) filtered(c Call, data []byte) []byte {
	f.mu.Lock()
	filter := f.mu.filter
	f.mu.Unlock()
	if filter == nil {
		return data
	}
	return filter(c, data)
}

// ReadRange implements objstore.Bucket.
func (f *Faulty) ReadRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	c := Call{Op: OpReadRange, Key: key, Off: off, N: n}
	if err := f.begin(ctx, c); err != nil {
		return nil, err
	}
	data, err := f.inner.ReadRange(ctx, key, off, n)
	if err := f.end(ctx, c, err); err != nil {
		return nil, err
	}
	return f.filtered(c, data), nil
}

// Get implements objstore.Bucket.
func (f *Faulty) Get(ctx context.Context, key string, maxBytes int64) ([]byte, string, error) {
	c := Call{Op: OpGet, Key: key}
	if err := f.begin(ctx, c); err != nil {
		return nil, "", err
	}
	data, etag, err := f.inner.Get(ctx, key, maxBytes)
	if err := f.end(ctx, c, err); err != nil {
		return nil, "", err
	}
	return f.filtered(c, data), etag, nil
}

// GetIfChanged implements objstore.Bucket.
func (f *Faulty) GetIfChanged(ctx context.Context, key, etag string, maxBytes int64) ([]byte, string, error) {
	c := Call{Op: OpGetIfChanged, Key: key}
	if err := f.begin(ctx, c); err != nil {
		return nil, "", err
	}
	data, newETag, err := f.inner.GetIfChanged(ctx, key, etag, maxBytes)
	if err := f.end(ctx, c, err); err != nil {
		return nil, "", err
	}
	return f.filtered(c, data), newETag, nil
}

// Put implements objstore.Bucket.
func (f *Faulty) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond objstore.Condition) (string, error) {
	c := Call{Op: OpPut, Key: key, N: size}
	if err := f.begin(ctx, c); err != nil {
		return "", err
	}
	etag, err := f.inner.Put(ctx, key, body, size, cond)
	if err := f.end(ctx, c, err); err != nil {
		return "", err
	}
	return etag, nil
}

// Delete implements objstore.Bucket.
func (f *Faulty) Delete(ctx context.Context, key string) error {
	c := Call{Op: OpDelete, Key: key}
	if err := f.begin(ctx, c); err != nil {
		return err
	}
	return f.end(ctx, c, f.inner.Delete(ctx, key))
}

// List implements objstore.Bucket.
func (f *Faulty) List(ctx context.Context, prefix string, fn func(objstore.Object) error) error {
	c := Call{Op: OpList, Key: prefix}
	if err := f.begin(ctx, c); err != nil {
		return err
	}
	return f.end(ctx, c, f.inner.List(ctx, prefix, fn))
}

// ListPrefixes implements objstore.Bucket.
func (f *Faulty) ListPrefixes(ctx context.Context, prefix string, fn func(string) error) error {
	c := Call{Op: OpListPrefixes, Key: prefix}
	if err := f.begin(ctx, c); err != nil {
		return err
	}
	return f.end(ctx, c, f.inner.ListPrefixes(ctx, prefix, fn))
}

// Close closes the wrapped bucket. It is not counted.
func (f *Faulty) Close() error { return f.inner.Close() }
