package tiered

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"

	"keyhole/manifest"
)

const (
	// runReads is how many key runs are read at once.
	runReads = 8
	// runsWaiting is how many key runs may be read or waiting to be taken.
	runsWaiting = 64
	// runsAhead bounds the bytes of those. A larger run is read piece by piece
	// when its turn comes.
	runsAhead = 64 << 20
)

// aheadReader reads the key runs of a list of segments before they are asked for,
// several at once, and hands them out in the order of the list. Bytes are reserved
// in that order too, so the run that is waited for is never short of them.
type aheadReader struct {
	bytes *semaphore.Weighted
	queue chan *runAhead // in order
	stop  context.CancelFunc
	tasks sync.WaitGroup
}

// runAhead is one run on its way.
type runAhead struct {
	weight int64         // reserved bytes
	done   chan struct{} // closed when open may be called
	open   func() (*stream, error)
}

func (t *Tier) readRunsAhead(ctx context.Context, segs []manifest.Segment) *aheadReader {
	a := &aheadReader{bytes: semaphore.NewWeighted(t.runsAhead), queue: make(chan *runAhead, runsWaiting)}
	ctx, a.stop = context.WithCancel(ctx)
	a.tasks.Go(func() {
		places := make(chan struct{}, runReads)
		for i := range segs {
			run := &runAhead{done: make(chan struct{})}
			if size := segs[i].IndexSize; size <= t.runsAhead {
				if a.bytes.Acquire(ctx, size) != nil {
					return
				}
				run.weight = size
			}
			select {
			case a.queue <- run:
			case <-ctx.Done():
				return
			}
			if run.weight == 0 {
				run.open = func() (*stream, error) { return t.openRun(ctx, &segs[i]) }
				close(run.done)
				continue
			}
			select {
			case places <- struct{}{}:
			case <-ctx.Done():
				return
			}
			a.tasks.Go(func() {
				s, err := t.openRun(ctx, &segs[i])
				if err == nil {
					err = s.readAhead()
				}
				run.open = func() (*stream, error) { return s, err }
				close(run.done)
				<-places
			})
		}
	})
	return a
}

// next waits for the next run, or for ctx.
func (a *aheadReader) next(ctx context.Context) (*runAhead, error) {
	var run *runAhead
	select {
	case run = <-a.queue:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case <-run.done:
		return run, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// release gives the bytes of a run back; it is not used any more then.
func (a *aheadReader) release(run *runAhead) {
	run.open = nil
	a.bytes.Release(run.weight)
}

// close ends all reads and waits for them.
func (a *aheadReader) close() {
	a.stop()
	a.tasks.Wait()
}
