package index

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// Batch collects changes that become visible, and durable, together. It belongs
// to one goroutine and must be closed before its index.
type Batch struct {
	x   *Index
	b   *pebble.Batch
	err error // the first invalid Set; Commit returns it

	sets, deletes int64
}

// NewBatch returns an empty batch.
func (x *Index) NewBatch() *Batch {
	return &Batch{x: x, b: x.db.NewBatch()}
}

// Set points key at offset, a Kafka offset. The key is copied. A later change of
// the same key in the batch wins.
func (b *Batch) Set(key []byte, offset int64) {
	if offset < 0 {
		b.err = fmt.Errorf("%w: %d", ErrInvalid, offset)
		return
	}
	op := b.b.SetDeferred(1+len(key), offsetSize(offset))
	op.Key[0] = entryPrefix
	copy(op.Key[1:], key)
	binary.PutUvarint(op.Value, uint64(offset))
	// Finish fails only for a batch with an index of its own, which this is not.
	_ = op.Finish()
	b.sets++
}

// Delete takes key's entry away. The key is copied.
func (b *Batch) Delete(key []byte) {
	op := b.b.DeleteDeferred(1 + len(key))
	op.Key[0] = entryPrefix
	copy(op.Key[1:], key)
	_ = op.Finish() // see Set
	b.deletes++
}

// Len returns the number of changes.
func (b *Batch) Len() int { return int(b.sets + b.deletes) }

// Close gives the batch's memory back. Changes that were not committed are lost.
func (b *Batch) Close() error { return b.b.Close() }

// Commit applies the changes and moves Applied to p in one step, and empties the
// batch for further use. Nothing has happened if it returns an error. It waits
// while too much is on its way to the disk. Commits of several batches are
// applied one after the other. Errors: ErrFailed, ErrClosed, ErrInvalid.
func (b *Batch) Commit(p Position) error {
	x := b.x
	if b.err != nil {
		return b.err
	}
	if p.NextLog < 0 || p.NextKafka < 0 || p.SyncedLog < 0 {
		return fmt.Errorf("%w: position %+v", ErrInvalid, p)
	}
	if !x.gate.enter() {
		return ErrClosed
	}
	defer x.gate.leave()
	x.commit.Lock()
	defer x.commit.Unlock()
	if err := x.waitForRoom(); err != nil {
		return err
	}
	var buf [1 + 3*binary.MaxVarintLen64]byte
	if err := b.b.Set(positionKey, appendPosition(buf[:0], p), nil); err != nil {
		return fmt.Errorf("index: %w", err)
	}
	size := b.b.Len()
	if err := x.db.Apply(b.b, pebble.NoSync); err != nil {
		return fmt.Errorf("index: commit: %w", err)
	}
	x.stall.committed(int64(size))
	x.tables.committed(b.sets - b.deletes)
	x.pos.Lock()
	x.pos.applied = p
	x.pos.commits++
	x.pos.Unlock()

	// A large batch lives on as part of the queue to the disk, so the next changes
	// go into another one.
	err := b.b.Close()
	b.b, b.sets, b.deletes = x.db.NewBatch(), 0, 0
	if err != nil {
		return fmt.Errorf("index: %w", err)
	}
	return nil
}

// Flush makes durable what was applied when it was called. When it returns nil,
// Durable is at least that. If ctx ends first, the flush goes on, but Durable does
// not move. Errors: ErrFailed, ErrClosed, ctx's.
func (x *Index) Flush(ctx context.Context) error {
	if !x.gate.enter() {
		return ErrClosed
	}
	defer x.gate.leave()
	return x.flush(ctx)
}

func (x *Index) flush(ctx context.Context) error {
	x.commit.Lock()
	x.pos.Lock()
	applied, at := x.pos.applied, x.pos.commits
	clean := at == x.pos.durableAt
	x.pos.Unlock()
	if err := x.failure.err(); err != nil || clean {
		x.commit.Unlock()
		return err
	}
	done, err := x.db.AsyncFlush()
	x.commit.Unlock()
	if err != nil {
		return fmt.Errorf("index: flush: %w", err)
	}
	select {
	case <-done: // not after most failures: Pebble would try again for ever
	case <-x.failure.failed:
		return x.failure.err()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := x.failure.err(); err != nil {
		return err // and the flush may have been called done in spite of it
	}
	x.pos.Lock()
	if at > x.pos.durableAt {
		x.pos.durable, x.pos.durableAt = applied, at
	}
	x.pos.Unlock()

	// What has been written is no longer in memory.
	x.commit.Lock()
	defer x.commit.Unlock()
	x.measure()
	return nil
}
