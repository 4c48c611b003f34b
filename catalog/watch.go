package catalog

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// watchTick is how often the clock is looked at, and watchPause what must be
	// missing between two ticks for this process to have been stopped: by a
	// signal, or together with its machine.
	watchTick  = time.Second
	watchPause = 3 * time.Second
	// lookInterval is how often the bucket is asked about one partition, in
	// turn. A node that takes a bucket over claims all of it, so one is enough
	// to learn of it, whatever the number of partitions.
	lookInterval = 10 * time.Second
	// lookPatience bounds one such question, looksAtOnce how many run together.
	lookPatience = 10 * time.Second
	looksAtOnce  = 16
)

// owned is what watcher asks: a *partition.Partition.
type owned interface {
	// CheckOwner reports whether this call found that another node has taken
	// the partition over.
	CheckOwner(ctx context.Context) (lost bool, err error)
}

// watcher finds out that another node has taken over what lives here, which a
// node that uploads nothing would not notice: it would go on answering with
// values that the other one has replaced.
//
//	tick ─► stopped meanwhile? ─ yes ───────────────────► ask about all
//	              └ no, and lookInterval has passed ─► ask about one ─ lost ─┘
type watcher struct {
	partitions func() []owned
	turn       int // which one is asked next
}

// watch is the watcher's goroutine.
func (c *Catalog) watch() {
	w := watcher{partitions: func() []owned {
		var all []owned
		for _, t := range c.Topics() {
			for _, p := range t.Hosted() {
				all = append(all, p)
			}
		}
		return all
	}}
	w.run(c.ctx)
}

func (w *watcher) run(ctx context.Context) {
	tick := time.NewTicker(watchTick)
	defer tick.Stop()
	last := time.Now()
	asked := last
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		switch {
		case elapsed(last, now) >= watchPause:
			w.askAll(ctx)
			asked = now
		case now.Sub(asked) >= lookInterval:
			if w.askNext(ctx) {
				w.askAll(ctx)
			}
			asked = now
		}
		last = time.Now() // a store that takes its time is not a pause
	}
}

// elapsed is the time from a to b by whichever clock has moved more: the
// monotonic one stands still while a machine sleeps, the other may be set.
func elapsed(a, b time.Time) time.Duration {
	return max(b.Sub(a), b.Round(0).Sub(a.Round(0)))
}

// askNext asks about the partition whose turn it is. What the store has to say
// against it is said wherever something is read or written; here it leaves the
// question open until next time.
func (w *watcher) askNext(ctx context.Context) (lost bool) {
	all := w.partitions()
	if len(all) == 0 {
		return false
	}
	w.turn++
	return ask(ctx, all[w.turn%len(all)])
}

func (w *watcher) askAll(ctx context.Context) {
	var g errgroup.Group
	g.SetLimit(looksAtOnce)
	for _, p := range w.partitions() {
		g.Go(func() error {
			ask(ctx, p)
			return nil
		})
	}
	_ = g.Wait() // no function fails
}

func ask(ctx context.Context, p owned) (lost bool) {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	lost, _ = p.CheckOwner(ctx)
	return lost
}
