package locallog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"keyhole/record"
)

// counting gives a file system that counts syncs and writes of segment files and
// can be told to fail or to hold one kind of operation.
type counting struct {
	mu     sync.Mutex
	counts map[errorfs.OpKind]int
	fail   map[errorfs.OpKind]error
	hold   chan struct{} // when not nil, syncs of segments wait for it to close
	held   chan struct{} // gets an element when a sync begins to wait
}

func (c *counting) String() string { return "counting" }

func (c *counting) MaybeError(op errorfs.Op) error {
	c.mu.Lock()
	if c.counts == nil {
		c.counts = map[errorfs.OpKind]int{}
	}
	c.counts[op.Kind]++
	err, hold := c.fail[op.Kind], c.hold
	c.mu.Unlock()
	if op.Kind == errorfs.OpFileSyncData && hold != nil {
		c.held <- struct{}{}
		<-hold
	}
	return err
}

func (c *counting) count(k errorfs.OpKind) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[k]
}

func (c *counting) set(k errorfs.OpKind, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail = map[errorfs.OpKind]error{k: err}
}

// holdSyncs makes the next syncs wait until release is called.
func (c *counting) holdSyncs() (release func()) {
	hold := make(chan struct{})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hold, c.held = hold, make(chan struct{}, 100)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.hold = nil
		close(hold)
	}
}

func TestGroupCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counting{}
		o := options(errorfs.Wrap(vfs.NewMem(), c))
		var applied []int64
		var l *Log
		o.Apply = func(group []Appended) error {
			for _, a := range group {
				applied = append(applied, a.KafkaBase) // one committer at a time
				if hw := l.State().HighWatermark; hw <= a.KafkaBase {
					t.Errorf("applying offset %d with high watermark %d", a.KafkaBase, hw)
				}
			}
			return nil
		}
		l = mustOpen(t, o)
		release := c.holdSyncs()
		first := make(chan error, 1)
		go func() {
			_, err := l.Append(t.Context(), [][]byte{batchOf(t, "first")})
			first <- err
		}()
		<-c.held
		const n = 64
		bases := make([]int64, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				b, err := l.Append(t.Context(), [][]byte{batchOf(t, fmt.Sprint(i)), batchOf(t, fmt.Sprint(i))})
				if err != nil || b[1] != b[0]+1 {
					t.Errorf("append: %v, %v", b, err)
					return
				}
				bases[i] = b[0]
			})
		}
		synctest.Wait() // all of them wait behind the first one's sync
		writes, syncs := c.count(errorfs.OpFileWriteAt), c.count(errorfs.OpFileSyncData)
		release()
		wg.Wait()
		must(t, <-first)
		if w, s := c.count(errorfs.OpFileWriteAt)-writes, c.count(errorfs.OpFileSyncData)-syncs; w != 1 || s != 1 {
			t.Errorf("%d writes and %d syncs for %d waiting appends, want 1 and 1", w, s, n)
		}
		for i, base := range bases {
			wantValue(t, l, base, fmt.Sprint(i))
			wantValue(t, l, base+1, fmt.Sprint(i))
		}
		for i, base := range applied {
			if base != int64(i) {
				t.Fatalf("applied %v, not in order", applied)
			}
		}
		if len(applied) != 2*n+1 {
			t.Fatalf("%d batches applied, want %d", len(applied), 2*n+1)
		}
		l.Close()
	})
}

// An append whose caller leaves before a group has taken it up is not made; one
// that was taken up is seen through.
func TestAppendCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counting{}
		l := mustOpen(t, options(errorfs.Wrap(vfs.NewMem(), c)))
		release := c.holdSyncs()
		type outcome struct {
			bases []int64
			err   error
		}
		start := func(ctx context.Context, v string) chan outcome {
			ch := make(chan outcome, 1)
			go func() {
				b, err := l.Append(ctx, [][]byte{batchOf(t, v)})
				ch <- outcome{b, err}
			}()
			return ch
		}
		ctx1, cancel1 := context.WithCancel(t.Context())
		taken := start(ctx1, "taken")
		<-c.held
		ctx2, cancel2 := context.WithCancel(t.Context())
		queued := start(ctx2, "queued")
		synctest.Wait()
		stays := start(t.Context(), "stays")
		synctest.Wait()
		cancel1()
		cancel2()
		if out := <-queued; !errors.Is(out.err, context.Canceled) {
			t.Errorf("queued append of a caller that left: %v, %v", out.bases, out.err)
		}
		release()
		if out := <-taken; out.err != nil || out.bases[0] != 0 {
			t.Errorf("append that was under way: %v, %v", out.bases, out.err)
		}
		if out := <-stays; out.err != nil || out.bases[0] != 1 {
			t.Errorf("append of a caller that stayed: %v, %v", out.bases, out.err)
		}
		got, err := scanAll(t, l, 0)
		if err != nil || len(got) != 2 || got[0] != "taken" || got[1] != "stays" {
			t.Errorf("log has %v, %v", got, err)
		}
		l.Close()
	})
}

func TestGroupIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counting{}
		l := mustOpen(t, options(errorfs.Wrap(vfs.NewMem(), c)))
		release := c.holdSyncs()
		var wg sync.WaitGroup
		add := func(b []byte) {
			wg.Go(func() {
				if _, err := l.Append(t.Context(), [][]byte{b}); err != nil {
					t.Error(err)
				}
			})
		}
		add(batchOf(t, "first"))
		<-c.held
		big := batchOf(t, value(0, groupBytes/4-1000)) // as key and as value
		for range 6 {
			add(big)
		}
		synctest.Wait()
		writes := c.count(errorfs.OpFileWriteAt)
		release()
		wg.Wait()
		if n := c.count(errorfs.OpFileWriteAt) - writes; n != 3 {
			t.Errorf("%d groups for 6 appends of half a group each, want 3", n)
		}
		l.Close()
	})
}

// Close lets no waiting writer hang, and answers the ones behind it.
func TestCloseWithWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counting{}
		l := mustOpen(t, options(errorfs.Wrap(vfs.NewMem(), c)))
		release := c.holdSyncs()
		var ok, closed atomic.Int32
		var wg sync.WaitGroup
		add := func() {
			wg.Go(func() {
				_, err := l.Append(t.Context(), [][]byte{batchOf(t, "v")})
				switch {
				case err == nil:
					ok.Add(1)
				case errors.Is(err, ErrClosed):
					closed.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		add()
		<-c.held
		wg.Go(func() { must(t, l.Close()) })
		synctest.Wait()
		for range 10 {
			add()
		}
		wg.Go(func() {
			if err := l.Roll(t.Context()); !errors.Is(err, ErrClosed) {
				t.Errorf("roll: %v", err)
			}
		})
		synctest.Wait()
		release()
		wg.Wait()
		if ok.Load() != 1 || closed.Load() != 10 {
			t.Errorf("%d appended, %d refused; want 1 and 10", ok.Load(), closed.Load())
		}
	})
}

// With a flush interval an append is answered before it is synced, and is synced
// when the interval is over, without anybody calling.
func TestFlushInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewCrashableMem()
		c := &counting{}
		o := options(errorfs.Wrap(mem, c))
		o.FlushInterval = every(time.Second)
		l := mustOpen(t, o)
		appendValues(t, l, "a")
		appendValues(t, l, "b")
		wantValue(t, l, 1, "b")
		if n := c.count(errorfs.OpFileSyncData); n != 0 {
			t.Errorf("%d syncs before the interval is over", n)
		}
		lost := mustOpen(t, options(crash(mem)))
		if hw := lost.State().HighWatermark; hw != 0 {
			t.Errorf("high watermark %d after a crash before the sync", hw)
		}
		time.Sleep(2 * time.Second) // synctest's clock
		synctest.Wait()
		if n := c.count(errorfs.OpFileSyncData); n != 1 {
			t.Errorf("%d syncs after the interval, want 1", n)
		}
		kept := mustOpen(t, options(crash(mem)))
		wantValue(t, kept, 1, "b")

		appendValues(t, l, "c")
		must(t, l.Sync(t.Context()))
		kept2 := mustOpen(t, options(crash(mem)))
		wantValue(t, kept2, 2, "c")
		appendValues(t, l, "d")
		must(t, l.Close()) // with the timer armed
		kept3 := mustOpen(t, options(crash(mem)))
		wantValue(t, kept3, 3, "d")
		for _, l := range []*Log{lost, kept, kept2, kept3} {
			l.Close()
		}
	})
}

// Once a write or a sync has failed nothing is written any more, even if it would
// work again; what was answered stays readable; opening anew recovers.
// case 6-06, 6-08
func TestWriteFaults(t *testing.T) {
	for name, c := range map[string]struct {
		kind errorfs.OpKind
		err  error
		op   func(*Log) error
	}{
		"disk full":         {errorfs.OpFileWriteAt, syscall.ENOSPC, appendOne},
		"sync fails":        {errorfs.OpFileSyncData, syscall.EIO, appendOne},
		"note write fails":  {errorfs.OpFileWriteAt, syscall.ENOSPC, func(l *Log) error { return l.Note(context.Background(), Note{RemoteNext: 1}) }},
		"roll cannot sync":  {errorfs.OpFileSync, syscall.EIO, func(l *Log) error { return l.Roll(context.Background()) }},
		"roll cannot make":  {errorfs.OpCreate, syscall.ENOSPC, func(l *Log) error { return l.Roll(context.Background()) }},
		"roll cannot name":  {errorfs.OpRename, syscall.EIO, func(l *Log) error { return l.Roll(context.Background()) }},
		"truncation stuck":  {errorfs.OpRename, syscall.EIO, func(l *Log) error { return l.TruncateSuffix(context.Background(), 1) }},
		"directory no sync": {errorfs.OpOpenDir, syscall.EIO, func(l *Log) error { return l.Roll(context.Background()) }},
	} {
		t.Run(name, func(t *testing.T) {
			mem := vfs.NewCrashableMem()
			inj := &counting{}
			l := mustOpen(t, options(errorfs.Wrap(mem, inj)))
			appendValues(t, l, "a", "b")
			inj.set(c.kind, c.err)
			if err := c.op(l); !errors.Is(err, ErrReadOnly) || !errors.Is(err, c.err) {
				t.Fatalf("operation under fault: %v, want ErrReadOnly that wraps %v", err, c.err)
			}
			inj.set(c.kind, nil)
			syncs := inj.count(errorfs.OpFileSyncData) + inj.count(errorfs.OpFileSync)
			for range 3 {
				if err := appendOne(l); !errors.Is(err, ErrReadOnly) || !errors.Is(err, c.err) {
					t.Fatalf("append afterwards: %v", err)
				}
			}
			if !errors.Is(l.Err(), c.err) {
				t.Fatalf("Err() is %v", l.Err())
			}
			wantValue(t, l, 1, "b")
			wantErr(t, l, 2, ErrNotFound)
			must(t, l.Close())
			if n := inj.count(errorfs.OpFileSyncData) + inj.count(errorfs.OpFileSync); n != syncs {
				t.Fatal("something was synced after a failure")
			}
			if exists(mem, stopFile) {
				t.Fatal("a log that failed says that it stopped cleanly")
			}
			for _, fs := range []*vfs.MemFS{mem, crash(mem)} {
				l := mustOpen(t, options(fs))
				wantValue(t, l, 0, "a")
				must(t, appendOne(l))
			}
		})
	}
}

func appendOne(l *Log) error {
	b, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: -1}, []record.Record{{Value: []byte("one")}})
	if err == nil {
		_, err = l.Append(context.Background(), [][]byte{b})
	}
	return err
}

// A short write without an error is a failure too, and what it left is cut.
func TestShortWrite(t *testing.T) {
	mem := vfs.NewMem()
	short := &shortFS{FS: mem}
	l := mustOpen(t, options(short))
	appendValues(t, l, "a")
	short.on.Store(true)
	if err := appendOne(l); !errors.Is(err, ErrReadOnly) {
		t.Fatalf("append with a short write: %v", err)
	}
	l.Close()
	l = mustOpen(t, options(mem))
	wantValue(t, l, 0, "a")
	if base := appendValues(t, l, "b"); base != 1 {
		t.Fatalf("offset %d", base)
	}
	must(t, l.Close())
	l = mustOpen(t, options(mem))
	wantValue(t, l, 1, "b")
}

type shortFS struct {
	vfs.FS
	on atomic.Bool
}

func (s *shortFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := s.FS.OpenReadWrite(name, c, o...)
	return &shortFile{f, s}, err
}

type shortFile struct {
	vfs.File
	fs *shortFS
}

func (f *shortFile) WriteAt(p []byte, off int64) (int, error) {
	if f.fs.on.Load() {
		p = p[:len(p)/2]
	}
	return f.File.WriteAt(p, off)
}

// A group that cannot be applied is not answered, but it is in the log.
func TestApplyFails(t *testing.T) {
	fs := vfs.NewMem()
	o := options(fs)
	broken := errors.New("index broke")
	o.Apply = func([]Appended) error { return broken }
	l := mustOpen(t, o)
	if err := appendOne(l); !errors.Is(err, ErrReadOnly) || !errors.Is(err, broken) {
		t.Fatalf("append: %v", err)
	}
	must(t, l.Close())
	l = mustOpen(t, options(fs))
	wantValue(t, l, 0, "one")
}

// Readers and writers of all kinds at once; -race is the judge, and every value
// read is the one that was written.
func TestParallelUse(t *testing.T) {
	for name, fs := range map[string]vfs.FS{"memory": vfs.NewMem(), "disk": vfs.Default} {
		t.Run(name, func(t *testing.T) {
			o := options(fs)
			if name == "disk" {
				o.Dir = t.TempDir()
			}
			o.SegmentBytes = bytesOf(4 << 10)
			l := mustOpen(t, o)
			ctx, cancel := context.WithCancel(context.Background())
			var writers, readers sync.WaitGroup
			for w := range 4 {
				writers.Go(func() {
					for i := range 100 {
						// The value says the offset's parity of writer; readers check its shape.
						v := value(w*1000+i, 50+i)
						bases, err := l.Append(ctx, [][]byte{batchOf(t, v)})
						if err != nil {
							t.Error(err)
							return
						}
						if got, err := valueAt(l, bases[0]); err != nil && !errors.Is(err, ErrBelowStart) || err == nil && got != v {
							t.Errorf("offset %d: %q, %v", bases[0], clip(got), err)
						}
					}
				})
			}
			writers.Go(func() {
				for i := range 40 {
					hw := l.State().HighWatermark
					if err := errors.Join(l.Roll(ctx), l.Note(ctx, Note{RemoteNext: hw}), l.TrimPrefix(ctx, hw-int64(40-i))); err != nil {
						t.Error(err)
					}
				}
			})
			for range 2 {
				readers.Go(func() {
					for ctx.Err() == nil {
						st := l.State()
						for off := st.LocalStart; off < st.HighWatermark; off += 7 {
							if _, err := valueAt(l, off); err != nil && !errors.Is(err, ErrBelowStart) {
								t.Errorf("offset %d: %v", off, err)
							}
						}
						for _, s := range l.Segments() {
							r, err := l.OpenSegment(s.BaseLog)
							if errors.Is(err, ErrNoSegment) {
								continue
							}
							if err != nil {
								t.Error(err)
								continue
							}
							if err := r.Batches(func(int64, []byte, int64) error { return nil }); err != nil {
								t.Error(err)
							}
							r.Close()
						}
					}
				})
			}
			writers.Wait()
			cancel()
			readers.Wait()
		})
	}
}
