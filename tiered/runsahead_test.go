package tiered

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/record"
)

// uploadMany uploads n segments of a few records each, over one set of keys.
func uploadMany(t testing.TB, n *node, rng *rand.Rand, segments int) []*memSource {
	t.Helper()
	build := newBuilder(t, 0)
	build.codecs = []record.Codec{record.None}
	var sources []*memSource
	for range segments {
		build.random(rng, 6)
		sources = append(sources, build.done())
	}
	n.upload(t, sources...)
	return sources
}

// However the replies come in, the runs are applied in the order of the segments,
// and no more of them are read at once than are allowed.
func TestRunsAreAppliedInOrder(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 0))
		b := newBucket()
		n := newNode(t, b, nodeOptions{})
		sources := uploadMany(t, n, rng, 150)
		var mu sync.Mutex
		running, most := 0, 0
		b.Before(func(ctx context.Context, c objstoretest.Call) error {
			mu.Lock()
			running++
			most = max(most, running)
			wait := time.Duration(1+rng.IntN(1000)) * time.Millisecond
			mu.Unlock()
			defer func() { mu.Lock(); running--; mu.Unlock() }()
			select {
			case <-time.After(wait):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		got := make(map[string]int64)
		last, seg := int64(-1), 0
		var steps []KeyRunProgress
		m := n.Snapshot()
		began := time.Now()
		err := n.KeyRuns(t.Context(), 0, func(p KeyRunProgress) { steps = append(steps, p) }, func(key []byte, offset int64, tombstone bool) error {
			at, _ := m.Find(offset)
			if at < seg {
				t.Errorf("offset %d of segment %d behind %d of segment %d", offset, at, last, seg)
			}
			last, seg = offset, at
			if tombstone {
				delete(got, string(key))
			} else {
				got[string(key)] = offset
			}
			return nil
		})
		if err != nil || !maps.Equal(got, latest(0, sources...)) {
			t.Fatalf("%d keys, %v", len(got), err)
		}
		if most != runReads {
			t.Errorf("%d reads at once, want %d", most, runReads)
		}
		// One by one they would take half a second each.
		if took := time.Since(began); took > 150*500*time.Millisecond/4 {
			t.Errorf("took %v", took)
		}
		end := steps[len(steps)-1]
		if len(steps) != 151 || steps[0].Segments != 0 || steps[0].Bytes != 0 || end.Segments != 150 || end.Of != 150 || end.Bytes != end.OfBytes || end.Bytes == 0 {
			t.Errorf("%d steps, from %+v to %+v", len(steps), steps[0], end)
		}
		if !slices.IsSortedFunc(steps, func(a, b KeyRunProgress) int { return int(a.Bytes - b.Bytes) }) {
			t.Error("progress goes back")
		}
	})
}

// What is read ahead stays within its bound while nothing is taken; a run that is
// larger than the bound is not read ahead at all.
func TestBytesOfRunsAheadAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		n := newNode(t, b, nodeOptions{})
		build := newBuilder(t, 0)
		var sources []*memSource
		for i := range 30 {
			if i == 10 {
				for range 600 { // a run that does not fit
					build.add(record.None, kv(0, fmt.Sprint(rand.Uint64()), "v"))
				}
			}
			sources = append(sources, build.numbered(20))
		}
		m := n.upload(t, sources...)
		n.runsAhead = 4 * m.Segments[0].IndexSize
		if m.Segments[10].IndexSize <= n.runsAhead {
			t.Fatal("the large run is not large")
		}
		var read atomic.Int64
		b.After(func(_ context.Context, c objstoretest.Call) error { read.Add(c.N); return nil })
		want := latest(0, sources...)
		first := true
		err := n.KeyRuns(t.Context(), 0, nil, func(key []byte, offset int64, _ bool) error {
			if at, _ := m.Find(offset); first || at == 11 {
				synctest.Wait() // whatever may be read is
				if first && read.Load() > n.runsAhead {
					t.Errorf("%d bytes read ahead, at most %d", read.Load(), n.runsAhead)
				}
				first = false
			}
			if want[string(key)] != offset {
				t.Errorf("key %s at %d", key, offset)
			}
			delete(want, string(key))
			return nil
		})
		if err != nil || len(want) != 0 {
			t.Errorf("%d keys left, %v", len(want), err)
		}
	})
}

// An error of fn, of the store in the middle, the end of the context and Close end
// all reads that are under way; goleak finds those that go on.
func TestKeyRunsLeaveNothingBehind(t *testing.T) {
	rng := newRand(t)
	for _, how := range []string{"fn", "store", "context", "close"} {
		b := newBucket()
		n := newNode(t, b, nodeOptions{})
		uploadMany(t, n, rng, 40)
		names := n.Snapshot().Segments
		ctx, cancel := context.WithCancel(t.Context())
		failing := IndexKey(prefix, &names[5])
		b.Before(func(ctx context.Context, c objstoretest.Call) error {
			switch {
			case c.Key == failing && how == "store":
				return objstore.ErrUnavailable
			case c.Key > failing:
				<-ctx.Done() // these are never answered
				return ctx.Err()
			}
			return nil
		})
		mine := errors.New("mine")
		closed := make(chan error, 1)
		err := n.KeyRuns(ctx, 0, nil, func(_ []byte, offset int64, _ bool) error {
			if at, _ := n.Snapshot().Find(offset); at == 3 {
				switch how {
				case "fn":
					return mine
				case "context":
					cancel()
				case "close":
					if n.life.Err() == nil {
						go func() { closed <- n.Close() }()
						<-n.life.Done()
					}
				}
			}
			return nil
		})
		cancel()
		want := map[string]error{"fn": mine, "store": objstore.ErrUnavailable, "context": context.Canceled, "close": ErrClosed}[how]
		if want == nil || !errors.Is(err, want) {
			t.Errorf("%s: %v", how, err)
		}
		if how == "close" {
			if err := <-closed; err != nil {
				t.Error(err)
			}
		}
		b.Before(nil)
	}
}

// The keys of one segment come from its run, or from its batches.
func TestKeysOfOneSegment(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	sources := uploadMany(t, n, newRand(t), 3)
	segs := n.Snapshot().Segments
	keys := func() (map[string]keyState, error) {
		got := make(map[string]keyState)
		err := n.Keys(t.Context(), &segs[1], func(key []byte, offset int64, tombstone bool) error {
			got[string(key)] = keyState{offset, tombstone}
			return nil
		})
		return got, err
	}
	want := make(map[string]keyState)
	for _, r := range sources[1].records {
		if r.Key != nil {
			want[string(r.Key)] = keyState{r.Offset, r.Value == nil}
		}
	}
	for _, damage := range []bool{false, true} {
		if damage {
			put(t, b, IndexKey(prefix, &segs[1]), []byte("x"))
		}
		if got, err := keys(); err != nil || !maps.Equal(got, want) {
			t.Errorf("damaged %t: %d keys, want %d, %v", damage, len(got), len(want), err)
		}
	}
	put(t, b, LogKey(prefix, &segs[1]), []byte("x"))
	if _, err := keys(); !errors.Is(err, record.ErrCorrupt) || !strings.Contains(err.Error(), LogKey(prefix, &segs[1])) {
		t.Errorf("both damaged: %v", err)
	}
	// The same objects gone from the bucket and from the manifest are no damage.
	for _, name := range []string{IndexKey(prefix, &segs[1]), LogKey(prefix, &segs[1])} {
		if err := b.Delete(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := keys(); !errors.Is(err, record.ErrCorrupt) || errors.Is(err, ErrMoved) {
		t.Errorf("gone: %v", err)
	}
	err := n.manifest.Commit(t.Context(), func(m *manifest.Manifest) (*manifest.Manifest, error) {
		return m.Replace(segs[1:2], nil, 0, time.Unix(1, 0))
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := keys(); errors.Is(err, record.ErrCorrupt) || !errors.Is(err, ErrMoved) {
		t.Errorf("replaced and gone: %v", err)
	}
}
