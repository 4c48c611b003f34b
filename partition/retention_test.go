package partition

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/record"
)

// fakeClock is a clock that a test sets.
type fakeClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *fakeClock) read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func (r *rig) clock() *fakeClock {
	c := &fakeClock{now: time.Now()}
	r.options = func(o *Options) { o.Now = c.read }
	return c
}

// A clock that jumps ahead deletes nothing; one that is set back neither.
// case 7-24
func TestGuardedClock(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct{ wall, elapsed, want time.Duration }{
		{time.Hour, time.Hour, time.Hour},
		{25 * time.Hour, time.Hour, time.Hour},
		{-24 * time.Hour, time.Hour, -24 * time.Hour},
	} {
		if got := earlier(start.Add(c.wall), start.Add(c.elapsed)); got != start.Add(c.want) {
			t.Errorf("wall %v, elapsed %v: %v", c.wall, c.elapsed, got.Sub(start))
		}
	}
	if d := time.Since(guardedClock()()); d < 0 || d > time.Minute {
		t.Errorf("off by %v", d)
	}
}

func TestExpired(t *testing.T) {
	now := time.UnixMilli(1e12)
	list := []piece{
		{next: 10, bytes: 100, sealed: now.Add(-3 * time.Hour)},
		{next: 20, bytes: 100, sealed: now.Add(-2 * time.Hour)},
		{next: 30, bytes: 100, sealed: now.Add(-time.Hour)},
		{next: 40, bytes: 50, keep: true},
	}
	for _, c := range []struct {
		bytes int64
		age   time.Duration
		start int64
		n     int
	}{
		{-1, -1, 0, 0},
		{350, -1, 0, 0},
		{251, -1, 0, 0}, // what is left would be below the limit
		{250, -1, 10, 1},
		{50, -1, 30, 3},
		{0, -1, 30, 3},
		{-1, 2 * time.Hour, 20, 2},
		{-1, 4 * time.Hour, 0, 0},
		{-1, 0, 30, 3},
		{250, 2 * time.Hour, 20, 2},
	} {
		s := Settings{RetentionBytes: c.bytes, RetentionAge: c.age}
		if start, n, _ := expired(list, &s, now); start != c.start || n != c.n {
			t.Errorf("bytes %d, age %v: below %d (%d segments), want %d (%d)", c.bytes, c.age, start, n, c.start, c.n)
		}
	}
}

// Retention by age goes by when segments were sealed, in both tiers, whatever the
// records' timestamps say. case 7-23, 7-24
func TestRetentionByAge(t *testing.T) {
	for _, stamp := range []int64{1700000000 /* seconds */, 1700000000000, 4102444800000 /* 2100 */, 1700000000000000 /* µs */} {
		r := newRig(t)
		r.settings.RetentionAge = time.Hour
		clock := r.clock()
		p := r.open()
		write := func(prefix string) {
			for i := range 30 {
				rec := record.Record{Key: fmt.Appendf(nil, "%s-%d", prefix, i), Value: fmt.Appendf(nil, "%0300d", i), Timestamp: stamp}
				if _, err := p.Append(t.Context(), []record.Record{rec}); err != nil {
					t.Fatal(err)
				}
			}
		}
		write("old")
		evict(t, p)
		clock.add(59 * time.Minute)
		if c := compact(t, p); c.Done.SegmentsExpired != 0 {
			t.Fatalf("timestamp %d: %d fresh segments expired", stamp, c.Done.SegmentsExpired)
		}
		write("new")
		evict(t, p)
		write("newest")
		clock.add(2 * time.Minute)
		c := compact(t, p)
		if c.Done.SegmentsExpired == 0 || *c.CloudStart != 30 {
			t.Fatalf("timestamp %d: %d segments expired, the bucket begins at %d", stamp, c.Done.SegmentsExpired, *c.CloudStart)
		}
		for i := range 30 {
			if _, err := get(p, fmt.Sprintf("old-%d", i)); !errors.Is(err, ErrKeyNotFound) {
				t.Fatalf("expired key: %v", err)
			}
			mustGet(t, p, fmt.Sprintf("new-%d", i))
			mustGet(t, p, fmt.Sprintf("newest-%d", i))
		}
		r.stop()
		p = r.other("node-b").open() // what is uploaded is all there is to it
		if off := put(t, p, "next", "v"); off != 90 {
			t.Fatalf("next offset %d", off)
		}
		mustGet(t, p, "new-0")
	}
}

// Between retention and the next purge the index still knows the key, and the
// answer says why there is no record. Everything can go.
func TestNotRetainedUntilPurged(t *testing.T) {
	r := newRig(t)
	r.settings.RetentionAge = 0
	p := r.open()
	fill(t, p, "k", 30)
	evict(t, p) // the chore after it has retention, an eviction has not
	if err := p.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := p.retain(t.Context(), p.log.Load(), p.settings.Load(), new(CompactionStats))
	p.leave()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := get(p, "k-007"); !errors.Is(err, ErrNotRetained) {
		t.Fatalf("not retained: %v", err)
	}
	if err := p.purge(t.Context(), p.serving.Load()); err != nil {
		t.Fatal(err)
	}
	if _, err := get(p, "k-007"); !errors.Is(err, ErrKeyNotFound) {
		t.Fatalf("purged: %v", err)
	}
	if off := put(t, p, "k-007", "again"); off != 30 {
		t.Fatalf("offset %d, want 30", off)
	}
	mustGet(t, p, "k-007")
	r.settings.RetentionAge = -1
	r.stop()
	if err := r.fs.RemoveAll("/data/t/0/kv_index"); err != nil {
		t.Fatal(err)
	}
	p = r.open()
	mustGet(t, p, "k-007")
	if _, err := get(p, "k-008"); !errors.Is(err, ErrKeyNotFound) {
		t.Fatalf("rebuilt: %v", err)
	}
}

// A purge leaves keys alone that were written again while it ran.
func TestPurgeLeavesNewerRecords(t *testing.T) {
	r := newRig(t)
	p := r.open()
	fill(t, p, "k", 30)
	evict(t, p)
	keys := [][]byte{[]byte("k-000"), []byte("k-001")}
	put(t, p, "k-001", "newer")
	if err := p.forget(p.feed.open(), keys, 30); err != nil {
		t.Fatal(err)
	}
	if _, err := get(p, "k-000"); !errors.Is(err, ErrKeyNotFound) {
		t.Fatal(err)
	}
	if string(mustGet(t, p, "k-001").Value) != "newer" {
		t.Fatal("a newer record was purged")
	}
}

// A size limit counts each record once, in whichever tier it is; copies whose
// upload failed do not count. case 7-12
func TestRetentionBySize(t *testing.T) {
	r := newRig(t)
	p := r.open()
	fill(t, p, "k", 60)
	evict(t, p)
	want := fill(t, p, "l", 60)
	if err := p.log.Load().Roll(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := *p.settings.Load()
	s.RemoteWrite = false // nothing is on its way
	var total int64
	for _, seg := range p.pieces(p.log.Load(), &s) {
		total += seg.bytes
	}
	r.store.Before(func(_ context.Context, c objstoretest.Call) error {
		if c.Op == objstoretest.OpPut && strings.HasSuffix(c.Key, ".index") {
			return objstore.ErrUnavailable
		}
		return nil
	})
	for range 20 {
		if _, err := p.uploadGroup(t.Context(), p.log.Load(), p.settings.Load(), new(CompactionStats)); err == nil {
			t.Fatal("an upload came through")
		}
	}
	s = *p.settings.Load()
	s.RetentionBytes = total
	p.Configure(s)
	if start, n, _ := expired(p.pieces(p.log.Load(), &s), &s, p.now()); n != 0 {
		t.Fatalf("%d segments below %d would be deleted", n, start)
	}
	r.store.Before(nil)
	s.RetentionBytes = total / 4
	p.Configure(s)
	c := compact(t, p)
	if c.Done.SegmentsExpired == 0 {
		t.Fatal("nothing expired")
	}
	if left := c.CloudBytes + c.LocalBytes; left < s.RetentionBytes {
		t.Fatalf("%d bytes are left of a limit of %d", left, s.RetentionBytes)
	}
	if _, err := get(p, "k-000"); !errors.Is(err, ErrKeyNotFound) {
		t.Fatalf("oldest key: %v", err)
	}
	verify(t, p, map[string]string{"l-059": want["l-059"]}, nil)
}

// Without a store the local log is all there is, and retention moves its start;
// the index comes back as it was.
func TestRetentionWithoutAStore(t *testing.T) {
	r := newRig(t)
	r.noStore = true
	r.settings.RetentionBytes = 8 << 10
	p := r.open()
	fill(t, p, "k", 100)
	c := compact(t, p)
	if c.Done.SegmentsExpired == 0 || *c.LocalStart == 0 {
		t.Fatalf("%+v", c.Done)
	}
	want := answers(t, p, numberedAs("k", 100))
	r.stop()
	if err := r.fs.RemoveAll("/data/t/0/kv_index"); err != nil {
		t.Fatal(err)
	}
	sameAnswers(t, "index built anew", answers(t, r.open(), numberedAs("k", 100)), want)
}

func numberedAs(prefix string, n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprintf("%s-%03d", prefix, i))
	}
	return keys
}

// A crash between the manifest of a retention and the trimming of the local log.
func TestRetentionGoesOnAfterACrash(t *testing.T) {
	r := newRig(t)
	r.settings.SegmentBytes = 2 << 10
	p := r.open()
	fill(t, p, "x", 60)
	if err := p.log.Load().Roll(t.Context()); err != nil {
		t.Fatal(err)
	}
	compact(t, p) // uploads
	m := p.tier.Snapshot()
	start := m.Segments[len(m.Segments)-2].BaseOffset
	if _, err := p.tier.Truncate(t.Context(), start, start, p.now()); err != nil {
		t.Fatal(err)
	}
	r.settings.RetentionBytes = 1 << 20
	p = r.reopen()
	compact(t, p)
	if at := p.log.Load().State().LocalStart; at < start {
		t.Fatalf("local log still begins at %d, the partition at %d", at, start)
	}
}

// retained applies retention as a chore does.
func retained(t *testing.T, p *Partition, s Settings) {
	t.Helper()
	if err := p.retainSoon(t.Context(), &s, new(CompactionStats)); err != nil {
		t.Fatal(err)
	}
}

// powerOff leaves the rig at rest with what was synced.
func (r *rig) powerOff() {
	r.t.Helper()
	after := r.fs.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{})
	r.stop()
	r.fs = after
}

// A power cut does not undo a purge that is noted.
func TestPurgeSurvivesAPowerCut(t *testing.T) {
	r := newRig(t)
	p := r.open()
	fill(t, p, "k", 30)
	evict(t, p)
	s := r.settings
	s.RetentionAge = 0
	if err := p.expire(t.Context(), &s, new(CompactionStats)); err != nil {
		t.Fatal(err)
	}
	r.powerOff()
	p = r.open()
	if err := p.compactDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := get(p, "k-007"); !errors.Is(err, ErrKeyNotFound) {
		t.Fatalf("purged, then a power cut: %v", err)
	}
}

// After retention and a power cut the index needs nothing from the bucket, so what
// is local is served although the store is away.
func TestPowerCutAfterRetentionWithTheStoreAway(t *testing.T) {
	r := newRig(t)
	p := r.open()
	fill(t, p, "old", 60)
	if err := p.log.Load().Roll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := p.uploadSealed(t.Context(), p.log.Load(), p.settings.Load(), new(CompactionStats))
	p.leave()
	if err != nil {
		t.Fatal(err)
	}
	s := r.settings
	s.RetentionAge = 0
	retained(t, p, s)
	put(t, p, "hot", "v")
	r.powerOff()
	r.store.Before(func(context.Context, objstoretest.Call) error { return objstore.ErrUnavailable })
	mustGet(t, r.open(), "hot")
}

// An operator's retention ends the background's compaction and does not keep the
// chores from being done while it waits for that.
func TestExpireDoesNotWaitForCompaction(t *testing.T) {
	r := newRig(t)
	p := r.open()
	ctx, end, err := p.compactions.begin(p.ctx, true)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-ctx.Done()
		if err := p.enter(t.Context()); err != nil {
			t.Error(err)
		} else {
			p.leave()
		}
		end()
	}()
	soon, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := p.expire(soon, p.settings.Load(), new(CompactionStats)); err != nil {
		t.Error(err)
	}
	p.cancel() // also if it did not
	<-ended
}

// asked counts how often a context is asked whether it has ended.
type asked struct {
	context.Context
	times int
}

func (a *asked) Err() error {
	a.times++
	return a.Context.Err()
}

// A purge that finds nothing to remove notices that it is to end.
func TestPurgeEndsWithItsContext(t *testing.T) {
	r := newRig(t)
	p := r.open()
	fill(t, p, "k", 30)
	evict(t, p)
	s := r.settings
	s.RetentionAge = 0
	retained(t, p, s)
	recs := make([]record.Record, 10000)
	for i := range recs {
		recs[i] = record.Record{Key: fmt.Appendf(nil, "a-%05d", i)}
		recs[i].Value = recs[i].Key
	}
	if _, err := p.Append(t.Context(), recs); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a := &asked{Context: ctx}
	if err := p.purge(a, p.serving.Load()); !errors.Is(err, context.Canceled) || a.times < 2 {
		t.Fatalf("asked %d times: %v", a.times, err)
	}
}
