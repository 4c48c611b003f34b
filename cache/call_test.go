package cache

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A waiter with a later deadline moves the fetch's deadline out, and the first
// one's deadline does not end the fetch.
func TestDeadlineMovesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(1 << 20)
		defer closeCache(t, c)
		start := time.Now()
		seen := make(chan time.Duration, 2)
		fetch := func(ctx context.Context) ([]byte, error) {
			for range 2 {
				d, ok := ctx.Deadline()
				if !ok {
					t.Error("no deadline")
				}
				seen <- d.Sub(start)
				time.Sleep(20 * time.Millisecond)
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		var wg sync.WaitGroup
		for _, d := range []time.Duration{30 * time.Millisecond, 70 * time.Millisecond, 50 * time.Millisecond} {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), d)
				defer cancel()
				if _, _, err := c.Get(ctx, key(1), fetch); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v: %v", d, err)
				}
				if got := time.Since(start); got != d {
					t.Errorf("waited %v, deadline %v", got, d)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		if a, b := <-seen, <-seen; a != 30*time.Millisecond || b != 70*time.Millisecond {
			t.Errorf("the fetch saw the deadlines %v and %v", a, b)
		}
		if s := c.Stats(); s.Fetches != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestWaiterWithoutDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(1 << 20)
		defer closeCache(t, c)
		mustGet(t, c, key(1), func(ctx context.Context) ([]byte, error) {
			if d, ok := ctx.Deadline(); ok {
				t.Errorf("deadline %v", d)
			}
			return nil, nil
		})
	})
}

// A fetch that gave up at the deadline it saw at its start does not fail a waiter
// that came later and has more time.
func TestVictimTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(1 << 20)
		defer closeCache(t, c)
		fetch := func(ctx context.Context) ([]byte, error) {
			d, _ := ctx.Deadline()
			if time.Until(d) > 100*time.Millisecond {
				return filled(1, 10), nil
			}
			time.Sleep(time.Until(d) / 2)
			return nil, context.DeadlineExceeded
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if _, _, err := c.Get(ctx, key(1), fetch); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("impatient: %v", err)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got, _, err := c.Get(ctx, key(1), fetch); err != nil || len(got) != 10 {
			t.Errorf("patient: %v, %d bytes", err, len(got))
		}
		wg.Wait()
	})
}

// A fetch that always ends with a context's error is not run for each waiter.
func TestBrokenFetchIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(1 << 20)
		defer closeCache(t, c)
		fetch := func(context.Context) ([]byte, error) {
			time.Sleep(time.Millisecond)
			return nil, context.Canceled
		}
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if _, _, err := c.Get(t.Context(), key(1), fetch); !errors.Is(err, context.Canceled) {
					t.Errorf("error %v", err)
				}
			})
		}
		wg.Wait()
		if s := c.Stats(); s.Fetches != 3 {
			t.Errorf("stats %+v", s)
		}
	})
}

// At the deadline the last waiter hears what the fetch knows, if it says so soon.
func TestLastWordAtTheDeadline(t *testing.T) {
	slowDown := errors.New("slow down")
	for name, tc := range map[string]struct {
		unwind time.Duration
		err    error
		want   error
		waits  time.Duration
	}{
		"store answered":    {10 * time.Millisecond, slowDown, slowDown, 110 * time.Millisecond},
		"no answer":         {10 * time.Millisecond, context.DeadlineExceeded, context.DeadlineExceeded, 110 * time.Millisecond},
		"too late":          {time.Second, slowDown, context.DeadlineExceeded, 100*time.Millisecond + deadlineGrace},
		"success after all": {10 * time.Millisecond, nil, nil, 110 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New(1 << 20)
				defer closeCache(t, c)
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				start := time.Now()
				_, _, err := c.Get(ctx, key(1), func(ctx context.Context) ([]byte, error) {
					<-ctx.Done()
					if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
						t.Errorf("fetch: %v", ctx.Err())
					}
					time.Sleep(tc.unwind)
					return filled(1, 10), tc.err
				})
				if !errors.Is(err, tc.want) || time.Since(start) != tc.waits {
					t.Errorf("error %v after %v, want %v after %v", err, time.Since(start), tc.want, tc.waits)
				}
			})
		})
	}
}

// A waiter that leaves at its deadline while the fetch goes on for others gets the
// store's last answer, also when it was reported through a derived context.
func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(1 << 20)
		defer closeCache(t, c)
		slowDown := errors.New("slow down")
		fetch := func(ctx context.Context) ([]byte, error) {
			derived, cancel := context.WithCancel(ctx)
			defer cancel()
			Report(derived, slowDown)
			time.Sleep(time.Second)
			return filled(1, 10), nil
		}
		var wg sync.WaitGroup
		wg.Go(func() { mustGet(t, c, key(1), fetch) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, _, err := c.Get(ctx, key(1), fetch); !errors.Is(err, slowDown) {
			t.Errorf("at the deadline: %v", err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		cancel()
		if _, _, err := c.Get(ctx, key(1), fetch); !errors.Is(err, context.Canceled) {
			t.Errorf("a client that left: %v", err)
		}
		wg.Wait()
		Report(t.Context(), slowDown) // belongs to no fetch: nothing happens
	})
}

// Contexts derived from a fetch's context end with it, by the same error, and
// leave nothing behind when they end first.
func TestDerivedContexts(t *testing.T) {
	f := newFetchContext()
	early, cancelEarly := context.WithCancel(f)
	cancelEarly()
	if n := len(f.mu.after); n != 0 || early.Err() == nil {
		t.Errorf("%d hooks left by a context that has ended", n)
	}
	derived, cancel := context.WithTimeout(f, time.Hour)
	defer cancel()
	f.cancel(context.DeadlineExceeded)
	f.cancel(context.Canceled)
	<-derived.Done()
	for name, err := range map[string]error{"own": f.Err(), "derived": derived.Err(), "cause": context.Cause(derived)} {
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s error: %v", name, err)
		}
	}
	late, cancelLate := context.WithCancel(f)
	defer cancelLate()
	if !errors.Is(late.Err(), context.DeadlineExceeded) {
		t.Errorf("derived afterwards: %v", late.Err())
	}
	ran := 0
	if stop := f.AfterFunc(func() { ran++ }); stop() || ran != 1 {
		t.Errorf("AfterFunc after the end: ran %d times", ran)
	}
}
