package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"keyhole/objstore"
)

const (
	// sweepLook is how often the marks are looked at while there are any: the
	// clock may have been set, and the grace period is a live property.
	sweepLook = time.Minute
	// sweepBatch bounds the keys in memory, and so how long a topic may be.
	sweepBatch = 1000
	// sweepDeletes bounds the deletions under way at once over all topics: a
	// clean-up must not take the store from those who read.
	sweepDeletes = 4
	// maxSweepBackoff bounds the pause after a failure. Nothing waits for it.
	maxSweepBackoff = time.Minute
)

// sweeper empties the prefixes of deleted topics in the bucket once their
// deletion is longer ago than cloud_storage_gc_grace_ms, one topic after the
// other:
//
//	mark in the bucket ─► grace ─► objects ─► topic.json ─► mark on this disk
//
// The description goes last, so whatever cuts a sweep short, the bucket still
// says what the rest is, and any node takes it up again: the one that deleted the
// topic, or one that finds the mark when it lists the bucket. Objects are deleted
// by full prefix, id included, so a topic made again under the name keeps its own.
type sweeper struct {
	kick    chan struct{} // wakes the goroutine; holds one wish
	deletes *semaphore.Weighted

	mu    sync.Mutex
	marks map[string]*topicData // topics to be swept, by id
}

func newSweeper() sweeper {
	return sweeper{kick: make(chan struct{}, 1), deletes: semaphore.NewWeighted(sweepDeletes), marks: make(map[string]*topicData)}
}

// add notes a topic that the bucket marks as deleted.
func (s *sweeper) add(mark *topicData) {
	s.mu.Lock()
	s.marks[mark.ID] = mark
	s.mu.Unlock()
	s.wake()
}

func (s *sweeper) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

func (s *sweeper) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.marks, id)
}

// all gives the marks, those of the longest deletion first.
func (s *sweeper) all() []*topicData {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sortedMarks(s.marks)
}

func sortedMarks(marks map[string]*topicData) []*topicData {
	return slices.SortedFunc(maps.Values(marks), func(a, b *topicData) int {
		if a.DeletedMS != b.DeletedMS {
			return int(min(1, max(-1, a.DeletedMS-b.DeletedMS)))
		}
		return strings.Compare(a.ID, b.ID)
	})
}

// sinceDeletion is how long ago the topic was deleted, by the clock of the node
// that did so.
func (c *Catalog) sinceDeletion(mark *topicData) time.Duration {
	return c.now().Sub(time.UnixMilli(mark.DeletedMS))
}

// sweepable reports whether the grace period of a deleted topic is over.
func (c *Catalog) sweepable(mark *topicData) bool {
	return c.sinceDeletion(mark) >= c.switches.Load().grace
}

// sweep is the sweeper's goroutine. It begins once the bucket has proved to be
// ours.
func (c *Catalog) sweep() {
	select {
	case <-c.remote.verified:
	case <-c.ctx.Done():
		return
	}
	var backoff time.Duration
	for c.ctx.Err() == nil {
		next, err := c.sweepDue()
		if err != nil && c.ctx.Err() == nil {
			backoff = min(max(2*backoff, minBackoff), maxSweepBackoff)
			c.o.Logger.Warn("objects of a deleted topic are not all deleted yet; will try again", "err", err, "in", backoff)
			c.pause(jitter(backoff), nil)
			continue
		}
		backoff = 0
		c.pause(next, c.sweeper.kick)
	}
}

// sweepDue sweeps what is due, and gives the time until something may be; 0:
// there is nothing to wait for.
func (c *Catalog) sweepDue() (next time.Duration, err error) {
	var errs []error
	for _, mark := range c.sweeper.all() {
		if !c.sweepable(mark) {
			next = c.untilSweep(mark, next)
			continue
		}
		if err := c.sweepTopic(c.ctx, mark, nil); err != nil {
			errs = append(errs, fmt.Errorf("topic %s with id %s: %w", mark.Name, mark.ID, err))
		}
		if c.ctx.Err() != nil {
			break
		}
	}
	return next, errors.Join(errs...)
}

// untilSweep is the earlier of next (0: none) and the time until mark is due, at
// most sweepLook.
func (c *Catalog) untilSweep(mark *topicData, next time.Duration) time.Duration {
	wait := sweepLook
	if age := c.sinceDeletion(mark); age >= 0 { // the mark may be from the future
		wait = min(wait, max(time.Millisecond, c.switches.Load().grace-age))
	}
	if next == 0 {
		return wait
	}
	return min(next, wait)
}

// sweepTopic deletes all objects of a deleted topic, its description last, and
// then forgets the deletion here. It calls deleted, which may be nil, for each
// object that is gone, one at a time. What it has done by an error stays done.
func (c *Catalog) sweepTopic(ctx context.Context, mark *topicData, deleted func(objstore.Object)) error {
	described, err := c.confirmDeleted(ctx, mark)
	if err != nil {
		return err
	}
	prefix, description := topicPrefix(mark.Name, mark.ID), topicObject(mark.Name, mark.ID)
	count, last := 0, ""
	for {
		batch, err := c.listSome(ctx, prefix, description)
		if err != nil {
			return err
		}
		if len(batch) == 0 {
			break
		}
		if batch[0].Key == last {
			return fmt.Errorf("%w: it lists %s, which it has deleted", objstore.ErrUnusable, last)
		}
		last = batch[0].Key
		if err := c.deleteObjects(ctx, batch, deleted); err != nil {
			return err
		}
		count += len(batch)
	}
	if described {
		if err := c.deleteObjects(ctx, []objstore.Object{{Key: description}}, deleted); err != nil {
			return err
		}
		count++
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.disk.forgetDeleted(mark.ID); err != nil {
		return err
	}
	c.sweeper.forget(mark.ID)
	c.o.Logger.Info("objects of a deleted topic removed", "topic", mark.Name, "id", mark.ID, "objects", count)
	return nil
}

// confirmDeleted looks at the description once more before anything is deleted,
// and gives whether it is there. A deletion is final: if another node has written the description anew
// meanwhile, the mark is set again, and the sweep waits for that.
func (c *Catalog) confirmDeleted(ctx context.Context, mark *topicData) (described bool, err error) {
	f := &foundTopic{name: mark.Name, id: mark.ID}
	if err := c.readTopicObject(ctx, f); err != nil {
		return false, err
	}
	if f.err == nil && (f.data == nil || f.data.DeletedMS != 0) {
		return f.data != nil, nil // without one, an earlier sweep has come to its end
	}
	again := *mark
	if f.data != nil {
		again.Revision = max(again.Revision, f.data.Revision+1)
	}
	c.keeper.add(&again, nil)
	return false, fmt.Errorf("%s does not say any more that the topic was deleted; it is marked again", topicObject(mark.Name, mark.ID))
}

// errEnough ends a listing that has given enough.
var errEnough = errors.New("enough")

// listSome gives the first objects below prefix, without the one to be left out.
func (c *Catalog) listSome(ctx context.Context, prefix, without string) ([]objstore.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	var batch []objstore.Object
	err := c.o.Bucket.List(ctx, prefix, func(o objstore.Object) error {
		if len(batch) == sweepBatch {
			return errEnough
		}
		if o.Key != without {
			batch = append(batch, o)
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, fmt.Errorf("list %s: %w", prefix, err)
	}
	return batch, nil
}

func (c *Catalog) deleteObjects(ctx context.Context, objects []objstore.Object, deleted func(objstore.Object)) error {
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(sweepDeletes)
	for _, o := range objects {
		g.Go(func() error {
			if err := c.deleteObject(ctx, o.Key); err != nil {
				return err
			}
			if deleted != nil {
				mu.Lock()
				defer mu.Unlock()
				deleted(o)
			}
			return nil
		})
	}
	return g.Wait()
}

func (c *Catalog) deleteObject(ctx context.Context, key string) error {
	if err := c.sweeper.deletes.Acquire(ctx, 1); err != nil {
		return err
	}
	defer c.sweeper.deletes.Release(1)
	ctx, cancel := context.WithTimeout(ctx, putPatience)
	defer cancel()
	if err := c.o.Bucket.Delete(ctx, key); err != nil {
		return fmt.Errorf("delete %s: %w", key, err)
	}
	return nil
}
