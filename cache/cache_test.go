package cache

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func key(i int) Key { return Key{Upload: "u", Chunk: int32(i)} }

// serve returns a fetch that answers with data at once.
func serve(data []byte) Fetch {
	return func(context.Context) ([]byte, error) { return data, nil }
}

// filled returns n bytes that depend on i.
func filled(i, n int) []byte {
	b := make([]byte, n)
	for j := range b {
		b[j] = byte(i*31 + j)
	}
	return b
}

func mustGet(t *testing.T, c *Cache, k Key, f Fetch) ([]byte, bool) {
	t.Helper()
	data, hit, err := c.Get(t.Context(), k, f)
	if err != nil {
		t.Fatalf("Get(%v): %v", k, err)
	}
	return data, hit
}

func closeCache(t *testing.T, c *Cache) {
	t.Helper()
	if err := c.Close(context.Background()); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func TestHitSharesTheBytes(t *testing.T) {
	c := New(1 << 20)
	defer closeCache(t, c)
	want := filled(1, 100)
	got, hit := mustGet(t, c, key(1), serve(want))
	if hit || &got[0] != &want[0] {
		t.Fatalf("first Get: hit %v, same bytes %v", hit, &got[0] == &want[0])
	}
	never := func(context.Context) ([]byte, error) {
		t.Error("fetch on a hit")
		return nil, nil
	}
	got, hit = mustGet(t, c, key(1), never)
	if !hit || &got[0] != &want[0] {
		t.Fatalf("second Get: hit %v, same bytes %v", hit, &got[0] == &want[0])
	}
	if got, ok := c.Lookup(key(1)); !ok || &got[0] != &want[0] {
		t.Fatalf("Lookup: %v", ok)
	}
	if _, ok := c.Lookup(key(2)); ok {
		t.Fatal("Lookup found a key that nobody fetched")
	}
	want2 := Stats{Hits: 2, Misses: 1, Fetches: 1, Entries: 1, Bytes: 100, MaxBytes: 1 << 20}
	if s := c.Stats(); s != want2 {
		t.Fatalf("stats %+v, want %+v", s, want2)
	}
}

func TestHitAllocatesNothing(t *testing.T) {
	c := New(1 << 20)
	defer closeCache(t, c)
	fetch := serve(filled(1, 100))
	mustGet(t, c, key(1), fetch)
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() {
		if _, hit, err := c.Get(ctx, key(1), fetch); !hit || err != nil {
			t.Errorf("hit %v, error %v", hit, err)
		}
		if _, ok := c.Lookup(key(1)); !ok {
			t.Error("not found")
		}
	}); n != 0 {
		t.Errorf("%v allocations a hit", n)
	}
}

func TestOrderAndResize(t *testing.T) {
	c := New(300)
	defer closeCache(t, c)
	for i := range 3 {
		mustGet(t, c, key(i), serve(filled(i, 100)))
	}
	mustGet(t, c, key(0), nil) // used again: 1 is the oldest now
	if !holds(c, key(1)) {     // and asking does not count as use
		t.Fatal("1 is gone too early")
	}
	mustGet(t, c, key(3), serve(filled(3, 100)))
	for i, want := range []bool{true, false, true, true} {
		if holds(c, key(i)) != want {
			t.Errorf("after eviction: contains %d is %v", i, !want)
		}
	}
	c.Resize(150)
	for i, want := range []bool{false, false, false, true} {
		if holds(c, key(i)) != want {
			t.Errorf("after Resize: contains %d is %v", i, !want)
		}
	}
	if s := c.Stats(); s.Evictions != 3 || s.Bytes != 100 || s.MaxBytes != 150 {
		t.Errorf("stats %+v", s)
	}
	c.Trim()
	if s := c.Stats(); s.Entries != 0 || s.Bytes != 0 || holds(c, key(3)) {
		t.Errorf("after Trim: %+v", s)
	}
}

func TestNothingKeptWithoutRoom(t *testing.T) {
	for _, limit := range []int64{-5, 0, 99} {
		c := New(limit)
		got, _ := mustGet(t, c, key(1), serve(filled(1, 100))) // case 5-06: served all the same
		if len(got) != 100 || holds(c, key(1)) {
			t.Errorf("limit %d: %d bytes, kept %v", limit, len(got), holds(c, key(1)))
		}
		mustGet(t, c, key(2), serve(nil))
		if s := c.Stats(); s.Entries != 0 || s.Bytes != 0 {
			t.Errorf("limit %d: %+v", limit, s)
		}
		closeCache(t, c)
	}
}

// case 5-06: the limit is bytes, whatever the sizes, at every moment.
func TestLimitHoldsForMixedSizes(t *testing.T) {
	const limit = 1 << 16
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	c := New(limit)
	defer closeCache(t, c)
	for range 5000 {
		i := rng.IntN(300)
		size := 1 + i*i%7000
		got, _ := mustGet(t, c, key(i), serve(filled(i, size)))
		if len(got) != size || got[size-1] != byte(i*31+size-1) {
			t.Fatalf("key %d: wrong bytes", i)
		}
		if s := c.Stats(); s.Bytes > limit {
			t.Fatalf("%d bytes held, limit %d", s.Bytes, limit)
		}
	}
	if s := c.Stats(); s.Evictions == 0 || s.Hits == 0 || s.Bytes < limit/2 {
		t.Errorf("not much of a test: %+v", s)
	}
}

// case 5-07: a small slice of a large array is charged as the large array.
func TestChargesTheWholeArray(t *testing.T) {
	const limit = 1 << 20
	c := New(limit)
	defer closeCache(t, c)
	before := heap()
	for i := range 1000 {
		mustGet(t, c, key(i), func(context.Context) ([]byte, error) {
			return make([]byte, 64<<10)[:100], nil
		})
	}
	if s := c.Stats(); s.Bytes > limit || s.Entries != 16 {
		t.Errorf("stats %+v", s)
	}
	if grown := heap() - before; grown > 2*limit {
		t.Errorf("heap grew by %d bytes, limit %d", grown, limit)
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// case 5-13: what failed or came short is not kept.
func TestFailureIsNotKept(t *testing.T) {
	c := New(1 << 20)
	defer closeCache(t, c)
	bad := errors.New("short body")
	_, hit, err := c.Get(t.Context(), key(1), func(context.Context) ([]byte, error) { return filled(1, 50), bad })
	if hit || !errors.Is(err, bad) {
		t.Fatalf("hit %v, error %v", hit, err)
	}
	if holds(c, key(1)) {
		t.Fatal("a failed fetch is kept")
	}
	if got, hit := mustGet(t, c, key(1), serve(filled(1, 100))); hit || len(got) != 100 {
		t.Fatalf("second Get: hit %v, %d bytes", hit, len(got))
	}
	if s := c.Stats(); s.Failures != 1 || s.Fetches != 2 {
		t.Errorf("stats %+v", s)
	}
}

// case 5-15: the same chunk number of another upload is another chunk.
func TestUploadsShareNothing(t *testing.T) {
	c := New(1 << 20)
	defer closeCache(t, c)
	for _, upload := range []string{"a", "b"} {
		for chunk := range int32(2) {
			want := upload + fmt.Sprint(chunk)
			got, hit := mustGet(t, c, Key{upload, chunk}, serve([]byte(want)))
			if hit || string(got) != want {
				t.Errorf("%s: hit %v, got %q", want, hit, got)
			}
		}
	}
}

// case 5-03: parallel misses of one chunk are one fetch.
func TestOneFetchForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(1 << 20)
		defer closeCache(t, c)
		var fetches atomic.Int32
		fetch := func(context.Context) ([]byte, error) {
			fetches.Add(1)
			time.Sleep(25 * time.Millisecond) // synctest's clock
			return filled(1, 100), nil
		}
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() {
				if got, hit, err := c.Get(t.Context(), key(1), fetch); hit || err != nil || len(got) != 100 {
					t.Errorf("hit %v, error %v, %d bytes", hit, err, len(got))
				}
			})
		}
		wg.Wait()
		if n := fetches.Load(); n != 1 {
			t.Errorf("%d fetches", n)
		}
		if s := c.Stats(); s.Misses != 200 || s.Fetches != 1 || s.Running != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

// case 5-01: the client that started the fetch leaves, and nobody else notices.
func TestFirstWaiterLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(1 << 20)
		defer closeCache(t, c)
		var fetches atomic.Int32
		fetch := func(ctx context.Context) ([]byte, error) {
			fetches.Add(1)
			select {
			case <-time.After(100 * time.Millisecond):
				return filled(1, 100), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			start := time.Now()
			if _, _, err := c.Get(ctx, key(1), fetch); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("first: %v", err)
			}
			if d := time.Since(start); d != 10*time.Millisecond {
				t.Errorf("first waited %v", d)
			}
		})
		synctest.Wait()
		for range 49 {
			wg.Go(func() {
				if got, _, err := c.Get(t.Context(), key(1), fetch); err != nil || len(got) != 100 {
					t.Errorf("error %v, %d bytes", err, len(got))
				}
			})
		}
		wg.Wait()
		if n := fetches.Load(); n != 1 {
			t.Errorf("%d fetches", n)
		}
	})
}

func TestNobodyWaitsAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(1 << 20)
		defer closeCache(t, c)
		ended := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan error, 1)
		go func() {
			_, _, err := c.Get(ctx, key(1), func(ctx context.Context) ([]byte, error) {
				<-ctx.Done()
				ended <- ctx.Err()
				time.Sleep(time.Second) // unwinds slowly
				return nil, ctx.Err()
			})
			got <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Errorf("waiter: %v", err)
		}
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("fetch: %v", err)
		}
		// The dying fetch is still there; a new caller does not join it.
		if s := c.Stats(); s.Running != 1 {
			t.Errorf("stats %+v", s)
		}
		if data, _ := mustGet(t, c, key(1), serve(filled(1, 10))); len(data) != 10 {
			t.Errorf("%d bytes", len(data))
		}
	})
}

// A success that nobody waited for is kept, and replacing an entry is charged once.
func TestLateSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(1 << 20)
		defer closeCache(t, c)
		ctx, cancel := context.WithCancel(t.Context())
		go c.Get(ctx, key(1), func(context.Context) ([]byte, error) { //nolint:errcheck // left on purpose
			time.Sleep(time.Second)
			return filled(1, 70), nil
		})
		synctest.Wait()
		cancel()
		synctest.Wait()
		mustGet(t, c, key(1), serve(filled(1, 70)))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if s := c.Stats(); s.Entries != 1 || s.Bytes != 70 || s.Running != 0 || s.Fetches != 2 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestPanicReachesAllWaiters(t *testing.T) {
	for name, fetch := range map[string]Fetch{
		"panic":  func(context.Context) ([]byte, error) { time.Sleep(time.Millisecond); panic("our own bug") },
		"goexit": func(context.Context) ([]byte, error) { time.Sleep(time.Millisecond); runtime.Goexit(); return nil, nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New(1 << 20)
				defer closeCache(t, c)
				var wg sync.WaitGroup
				for range 5 {
					wg.Go(func() {
						if _, _, err := c.Get(t.Context(), key(1), fetch); err == nil {
							t.Error("no error")
						}
					})
				}
				wg.Wait()
				if got, _ := mustGet(t, c, key(1), serve(filled(1, 10))); len(got) != 10 {
					t.Errorf("the key is wedged: %d bytes", len(got))
				}
			})
		})
	}
}

// case 5-04: one entry, several writers, and the counters read all the time.
// case 5-16: a hit changes the order, so it is no read; -race watches.
func TestParallelUse(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for _, limit := range []int64{100, 1000, 0} {
		c := New(limit)
		var wg sync.WaitGroup
		for w := range 64 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(seed, uint64(w)))
				for range 300 {
					i := rng.IntN(20)
					ctx, cancel := context.WithCancel(t.Context())
					if rng.IntN(4) == 0 {
						go cancel()
					}
					got, _, err := c.Get(ctx, key(i), func(ctx context.Context) ([]byte, error) {
						runtime.Gosched()
						return filled(i, 100), ctx.Err()
					})
					if err == nil && (len(got) != 100 || got[0] != byte(i*31)) {
						t.Errorf("key %d: wrong bytes", i)
					}
					if err != nil && !errors.Is(err, context.Canceled) {
						t.Errorf("key %d: %v", i, err)
					}
					cancel()
					switch rng.IntN(20) {
					case 0:
						c.Trim()
					case 1:
						c.Resize(limit)
					case 2:
						if s := c.Stats(); s.Bytes > limit || s.Bytes != int64(s.Entries)*100 {
							t.Errorf("stats %+v, limit %d", s, limit)
						}
					}
				}
			})
		}
		wg.Wait()
		closeCache(t, c)
		if s := c.Stats(); s.Running != 0 || s.Bytes != 0 || s.Entries != 0 {
			t.Errorf("after Close: %+v", s)
		}
	}
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(1 << 20)
		mustGet(t, c, key(1), serve(filled(1, 10)))
		got := make(chan error, 1)
		go func() {
			_, _, err := c.Get(t.Context(), key(2), func(ctx context.Context) ([]byte, error) {
				<-ctx.Done()
				time.Sleep(time.Second)
				return filled(2, 10), nil // in spite of all, too late
			})
			got <- err
		}()
		synctest.Wait()

		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := c.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close while a fetch hangs: %v", err)
		}
		if err := <-got; !errors.Is(err, ErrClosed) {
			t.Errorf("waiter: %v", err)
		}
		start := time.Now()
		closeCache(t, c)
		if d := time.Since(start); d != 900*time.Millisecond {
			t.Errorf("Close waited %v for the fetch", d)
		}
		closeCache(t, c)
		for i := range 3 {
			if _, _, err := c.Get(t.Context(), key(i), serve(nil)); !errors.Is(err, ErrClosed) {
				t.Errorf("Get after Close: %v", err)
			}
			if _, ok := c.Lookup(key(i)); ok {
				t.Error("Lookup found something after Close")
			}
		}
	})
}

func BenchmarkHit(b *testing.B) {
	c := New(1 << 20)
	defer c.Close(context.Background()) //nolint:errcheck // nothing runs
	ctx := b.Context()
	k := Key{Upload: "0190a9d2-4f0e-7c3e-9d43-0e9f5a1c2b7d", Chunk: 7}
	fetch := serve(filled(1, 100))
	if _, _, err := c.Get(ctx, k, fetch); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, ok := c.Lookup(k); !ok {
				b.Error("miss")
				return
			}
		}
	})
}

// holds reports whether k is in memory. It does not mark it as used.
func holds(c *Cache, k Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.order.Contains(k)
}
