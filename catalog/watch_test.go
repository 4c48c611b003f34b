package catalog

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// fakeOwned counts how often it is asked. It is used from one bubble at a time
// and read while nothing runs.
type fakeOwned struct {
	asked int
	lost  bool
	err   error
	takes time.Duration
}

func (f *fakeOwned) CheckOwner(context.Context) (bool, error) {
	f.asked++
	time.Sleep(f.takes)
	return f.lost, f.err
}

// runWatcher runs a watcher over the partitions for d and ends it.
func runWatcher(t *testing.T, d time.Duration, all ...*fakeOwned) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := watcher{partitions: func() []owned {
			var out []owned
			for _, f := range all {
				out = append(out, f)
			}
			return out
		}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.run(ctx) }()
		time.Sleep(d)
		cancel()
		<-done
	})
}

func TestWatcherAsksAboutOneInTurn(t *testing.T) {
	a, b, c := &fakeOwned{}, &fakeOwned{err: errors.New("store away"), takes: 4 * time.Second}, &fakeOwned{}
	runWatcher(t, 6*lookInterval+lookInterval/2, a, b, c)
	for i, f := range []*fakeOwned{a, b, c} {
		if f.asked != 2 {
			t.Errorf("partition %d was asked about %d times in six intervals, want twice", i, f.asked)
		}
	}
	runWatcher(t, 10*lookInterval) // none at all
}

// One lost partition tells of a node that has taken them all.
func TestWatcherAsksAboutAllOnceOneIsLost(t *testing.T) {
	var all []*fakeOwned
	for range 40 {
		all = append(all, &fakeOwned{lost: true})
	}
	runWatcher(t, lookInterval+lookInterval/2, all...)
	total := 0
	for i, f := range all {
		if total += f.asked; f.asked == 0 {
			t.Errorf("partition %d was not asked about", i)
		}
	}
	if total != len(all)+1 {
		t.Errorf("asked %d times about %d partitions", total, len(all))
	}
}

// A pause is told from either clock. The process itself is stopped in e2e.
func TestElapsed(t *testing.T) {
	now := time.Now()
	if d := elapsed(now, now.Add(5*time.Second)); d != 5*time.Second {
		t.Errorf("both clocks: %v", d)
	}
	if d := elapsed(now, now.Add(time.Minute).Round(0)); d < time.Minute-time.Second {
		t.Errorf("only the wall clock has moved: %v", d)
	}
	if d := elapsed(now, now.Add(-time.Hour)); d >= watchPause {
		t.Errorf("the clock was set back: %v", d)
	}
}
