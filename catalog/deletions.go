package catalog

import (
	"context"
	"errors"
	"time"

	"keyhole/objstore"
)

// deletionPace is how often the bucket is asked whether another node has deleted a
// topic that is served here: a quarter of the grace period, within these bounds, of
// which the lower one is that of the shortest period there is. Once the period is
// over the topic's objects go, the mark with them, and cold lookups of a node that
// does not know would find them missing. Each node goes by its own period, so those
// of one bucket should have the same.
const (
	maxDeletionPace = 10 * time.Minute
	minDeletionPace = 250 * time.Millisecond
)

func deletionPace(grace time.Duration) time.Duration {
	return min(maxDeletionPace, max(minDeletionPace, grace/4))
}

// watchDeletions is the goroutine that asks. It begins once the bucket has proved
// to be ours.
func (c *Catalog) watchDeletions() {
	select {
	case <-c.remote.verified:
	case <-c.ctx.Done():
		return
	}
	var seen map[string]string
	for {
		c.pause(jitter(deletionPace(c.switches.Load().grace)), c.follow)
		if c.ctx.Err() != nil {
			return
		}
		var err error
		if seen, err = c.lookForDeletions(c.ctx, seen); err != nil && c.ctx.Err() == nil {
			c.o.Logger.Warn("cannot find out whether topics were deleted through another node; will try again", "err", err)
		}
	}
}

// lookForDeletions asks about all topics, one after the other, and deletes those
// that the bucket marks as deleted. One that the bucket has nothing of any more is
// noted as gone. seen has the ETags of descriptions by id, so
// that one which has not changed costs a request without a body; the result has
// them for the next time.
func (c *Catalog) lookForDeletions(ctx context.Context, seen map[string]string) (map[string]string, error) {
	now := make(map[string]string)
	var errs []error
	for _, t := range c.Topics() {
		f := &foundTopic{name: t.name, id: t.id}
		before := c.disk.onceStored(t.config.Load().data)
		etag, changed, err := c.readTopicIfChanged(ctx, f, seen[t.id])
		if err != nil {
			errs = append(errs, err)
			if ctx.Err() != nil || storeWide(err) {
				break
			}
			continue
		}
		now[t.id] = etag
		errs = append(errs, c.deleteMarked(ctx, []*foundTopic{f}))
		if changed && f.data == nil && f.err == nil {
			errs = append(errs, c.lookWhetherGone(ctx, t, before))
		}
	}
	return now, errors.Join(errs...)
}

// readTopicIfChanged is readTopicObject, but leaves f as it is while the
// description has the given ETag, which may be empty: that of no description. It
// gives the ETag to ask with next time.
func (c *Catalog) readTopicIfChanged(ctx context.Context, f *foundTopic, etag string) (newETag string, changed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, getPatience)
	defer cancel()
	key := topicObject(f.name, f.id)
	b, newETag, err := c.getIfChanged(ctx, key, etag)
	if errors.Is(err, objstore.ErrNotModified) {
		return etag, false, nil
	}
	return newETag, true, f.fill(key, b, err)
}
