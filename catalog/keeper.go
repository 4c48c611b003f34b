package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"keyhole/objstore"
)

const (
	minBackoff = 200 * time.Millisecond
	maxBackoff = 5 * time.Second
	// putPatience and getPatience bound one small request, its repetitions in
	// the store's own wrapper included.
	putPatience = 20 * time.Second
	getPatience = 20 * time.Second
)

// jitter spreads a pause over 50 … 100 % of d.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

func nextBackoff(d time.Duration) time.Duration { return min(max(2*d, minBackoff), maxBackoff) }

// keeper brings the bucket's topic.json objects in line with this disk: new and
// changed topics, and marks of deletion. One goroutine does it, so that two
// states of one topic never race to the bucket. It never gives up; what it has
// not done at Close it finds again at the next start, by comparing.
type keeper struct {
	kick chan struct{} // wakes the goroutine; holds one wish

	mu   sync.Mutex
	work map[string]*upkeep // by topic id
	err  error              // the last failure; nil once all work is done
}

// upkeep is one object to be written.
type upkeep struct {
	data *topicData
	gate *gate         // opened when the object is in the bucket; nil: none
	done chan struct{} // closed after the first attempt, whatever its outcome
	over bool          // done is closed
}

// add asks for data to be written, in place of any older state of the topic.
// The result is closed once it has been tried.
func (k *keeper) add(data *topicData, g *gate) <-chan struct{} {
	if k.kick == nil {
		return nil // no store
	}
	u := &upkeep{data: data, gate: g, done: make(chan struct{})}
	k.mu.Lock()
	k.work[data.ID].attemptedLocked()
	k.work[data.ID] = u
	k.mu.Unlock()
	select {
	case k.kick <- struct{}{}:
	default:
	}
	return u.done
}

// drop forgets work for a topic: a topic that is being deleted must not appear
// in the bucket again as alive.
func (k *keeper) drop(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.work[id].attemptedLocked()
	delete(k.work, id)
}

// attemptedLocked lets those go who wait for u, which may be nil. The caller
// holds the keeper's mu.
func (u *upkeep) attemptedLocked() {
	if u != nil && !u.over {
		u.over = true
		close(u.done)
	}
}

// await waits until the bucket has been tried, at most uploadPatience.
func (k *keeper) await(ctx context.Context, done <-chan struct{}) {
	if done == nil {
		return
	}
	timer := time.NewTimer(uploadPatience)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// trouble is the last failure and how many objects wait.
func (k *keeper) trouble() (waiting int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.work), k.err
}

// storeTrouble is why a topic's description may not be in the bucket.
func (c *Catalog) storeTrouble() error {
	_, err := c.remote.trouble()
	_, kept := c.keeper.trouble()
	return errors.Join(err, kept)
}

// keep is the keeper's goroutine. It begins once the bucket has proved to be
// ours.
func (c *Catalog) keep() {
	select {
	case <-c.remote.verified:
	case <-c.ctx.Done():
		return
	}
	var backoff time.Duration
	for {
		if err := c.keepOnce(); err != nil && c.ctx.Err() == nil {
			backoff = nextBackoff(backoff)
			c.o.Logger.Warn("description of a topic is not in the bucket yet; will try again", "err", err, "in", backoff)
			c.pause(jitter(backoff), c.keeper.kick)
		} else {
			backoff = 0
			c.pause(0, c.keeper.kick)
		}
		if c.ctx.Err() != nil {
			return
		}
	}
}

// pause waits for the kick or the end of the catalog, at most d; 0: for ever.
func (c *Catalog) pause(d time.Duration, kick <-chan struct{}) {
	var after <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		after = timer.C
	}
	select {
	case <-c.ctx.Done():
	case <-kick:
	case <-after:
	}
}

// keepOnce tries all work there is, in the order in which the topics were made.
func (c *Catalog) keepOnce() error {
	k := &c.keeper
	k.mu.Lock()
	work := slices.SortedFunc(maps.Values(k.work), func(a, b *upkeep) int { return strings.Compare(a.data.ID, b.data.ID) })
	k.mu.Unlock()
	var errs []error
	for _, u := range work {
		err := c.putTopic(u.data)
		if err == nil {
			c.kept(u)
		}
		k.mu.Lock()
		u.attemptedLocked()
		if err == nil && k.work[u.data.ID] == u {
			delete(k.work, u.data.ID)
		}
		k.mu.Unlock()
		if err != nil {
			errs = append(errs, err)
			if c.ctx.Err() != nil {
				break
			}
		}
	}
	err := errors.Join(errs...)
	k.mu.Lock()
	k.err = err
	k.mu.Unlock()
	c.remote.tell()
	return err
}

// kept follows up on an object that has reached the bucket.
func (c *Catalog) kept(u *upkeep) {
	if u.gate != nil {
		c.stored(u.data)
		u.gate.open()
	}
	if u.data.DeletedMS != 0 {
		c.sweeper.add(u.data)
	}
}

// topicPrefix is where all objects of a topic are.
func topicPrefix(name, id string) string { return name + "/" + id + "/" }

func topicObject(name, id string) string { return topicPrefix(name, id) + topicFile }

func (c *Catalog) putTopic(data *topicData) error {
	b, err := encodeDocument(formatTopic, data)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.ctx, putPatience)
	defer cancel()
	key := topicObject(data.Name, data.ID)
	if _, err := c.o.Bucket.Put(ctx, key, bytes.NewReader(b), int64(len(b)), objstore.Condition{}); err != nil {
		return fmt.Errorf("put %s: %w", key, err)
	}
	return nil
}
