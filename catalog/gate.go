package catalog

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"keyhole/objstore"
)

// gatePatience bounds how long a write waits for the gate. It is shorter than
// what an administrator waits for an answer about a store that is away.
const gatePatience = 5 * time.Second

// gate holds back a topic's writes until the bucket has proved to be ours and
// has the topic's description. Without it an empty disk could find segments
// whose topic nobody can name, or a wrong URL fill a stranger's bucket.
type gate struct {
	trouble func() error // why the gate is not open, if that is known
	once    sync.Once
	ready   chan struct{}
}

func newGate(trouble func() error) *gate { return &gate{trouble: trouble, ready: make(chan struct{})} }

func (g *gate) open() { g.once.Do(func() { close(g.ready) }) }

// pass waits for the gate, but not while the bucket is known to be in trouble: a
// thousand partitions that start would all wait. The error is what keeps it
// shut, and always an objstore.ErrUnavailable, because opening it is this
// process's own business.
func (g *gate) pass(ctx context.Context) error {
	select {
	case <-g.ready:
		return nil
	default:
	}
	if err := g.trouble(); err != nil {
		return fmt.Errorf("%w: %w", objstore.ErrUnavailable, err)
	}
	timer := time.NewTimer(gatePatience)
	defer timer.Stop()
	select {
	case <-g.ready:
		return nil
	case <-timer.C:
	case <-ctx.Done():
	}
	return fmt.Errorf("%w: the topic's description is not in the bucket yet", objstore.ErrUnavailable)
}

// gatedBucket is the bucket as partitions of one topic get it. Reads pass: what
// they name has the topic's id in its key, which no other bucket holds.
type gatedBucket struct {
	objstore.Bucket
	gate *gate
}

// Put is objstore.Bucket's, behind the gate.
func (b *gatedBucket) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond objstore.Condition) (string, error) {
	if err := b.gate.pass(ctx); err != nil {
		return "", err
	}
	return b.Bucket.Put(ctx, key, body, size, cond)
}

// Delete is objstore.Bucket's, behind the gate.
func (b *gatedBucket) Delete(ctx context.Context, key string) error {
	if err := b.gate.pass(ctx); err != nil {
		return err
	}
	return b.Bucket.Delete(ctx, key)
}
