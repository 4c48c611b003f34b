package catalog

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"keyhole/objstore"
)

// gatePatience bounds how long a write waits for the gate. It is shorter than
// what an administrator waits for an answer about a store that is away.
const gatePatience = 5 * time.Second

// gate stands between the partitions of a topic and the bucket.
//
// Reads wait until the bucket has proved to be ours: in a stranger's bucket, or
// under a wrong URL, a missing object would be taken for a lost one. Writes wait
// until the bucket has the topic's description as well: otherwise an empty disk
// could find segments whose topic nobody can name.
type gate struct {
	remote  *remote
	trouble func() error // why the gate is shut, if that is known
	once    sync.Once
	ready   chan struct{} // closed: writes pass
	gone    atomic.Bool   // writes never pass again: see vanish
}

func newGate(r *remote, trouble func() error) *gate {
	return &gate{remote: r, trouble: trouble, ready: make(chan struct{})}
}

// open lets writes pass.
func (g *gate) open() { g.once.Do(func() { close(g.ready) }) }

// isOpen reports whether writes have been let pass.
func (g *gate) isOpen() bool {
	select {
	case <-g.ready:
		return true
	default:
		return false
	}
}

// passWrite is pass for what changes the bucket.
func (g *gate) passWrite(ctx context.Context) error {
	if g.gone.Load() {
		return fmt.Errorf("%w: %w", objstore.ErrUnavailable, ErrTopicGone)
	}
	return g.pass(ctx, g.ready)
}

// pass waits for one side of the gate, but not while the bucket is known to be
// in trouble: a thousand partitions that start would all wait. The error is what
// keeps it shut, and always an objstore.ErrUnavailable, because opening it is
// this process's own business.
func (g *gate) pass(ctx context.Context, side <-chan struct{}) error {
	select {
	case <-side:
		return nil
	default:
	}
	timer := time.NewTimer(gatePatience)
	defer timer.Stop()
	for waiting := true; waiting; {
		news := g.remote.news()
		if err := g.trouble(); err != nil {
			return fmt.Errorf("%w: %w", objstore.ErrUnavailable, err)
		}
		select {
		case <-side:
			return nil
		case <-news:
		case <-timer.C:
			waiting = false
		case <-ctx.Done():
			waiting = false
		}
	}
	return fmt.Errorf("%w: it has not been checked yet whether the bucket belongs to this node and has the topic's description", objstore.ErrUnavailable)
}

// gatedBucket is the bucket as partitions of one topic get it.
type gatedBucket struct {
	objstore.Bucket
	gate *gate
}

func (b *gatedBucket) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond objstore.Condition) (string, error) {
	if err := b.gate.passWrite(ctx); err != nil {
		return "", err
	}
	return b.Bucket.Put(ctx, key, body, size, cond)
}

func (b *gatedBucket) Delete(ctx context.Context, key string) error {
	if err := b.gate.passWrite(ctx); err != nil {
		return err
	}
	return b.Bucket.Delete(ctx, key)
}

func (b *gatedBucket) ReadRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	if err := b.gate.pass(ctx, b.gate.remote.verified); err != nil {
		return nil, err
	}
	return b.Bucket.ReadRange(ctx, key, off, n)
}

func (b *gatedBucket) Get(ctx context.Context, key string, maxBytes int64) ([]byte, string, error) {
	if err := b.gate.pass(ctx, b.gate.remote.verified); err != nil {
		return nil, "", err
	}
	return b.Bucket.Get(ctx, key, maxBytes)
}

func (b *gatedBucket) GetIfChanged(ctx context.Context, key, etag string, maxBytes int64) ([]byte, string, error) {
	if err := b.gate.pass(ctx, b.gate.remote.verified); err != nil {
		return nil, "", err
	}
	return b.Bucket.GetIfChanged(ctx, key, etag, maxBytes)
}

func (b *gatedBucket) List(ctx context.Context, prefix string, fn func(objstore.Object) error) error {
	if err := b.gate.pass(ctx, b.gate.remote.verified); err != nil {
		return err
	}
	return b.Bucket.List(ctx, prefix, fn)
}

func (b *gatedBucket) ListPrefixes(ctx context.Context, prefix string, fn func(prefix string) error) error {
	if err := b.gate.pass(ctx, b.gate.remote.verified); err != nil {
		return err
	}
	return b.Bucket.ListPrefixes(ctx, prefix, fn)
}
