package locallog

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
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// script compacts, appends and compacts again. states are what a sealed segment
// may hold, by its base log offset: one state at rest, two while it is compacted.
type script struct {
	states   map[int64][]map[int64]string
	appended map[int64]string
}

func (s *script) run(ctx context.Context, l *Log) error {
	for round := range 3 {
		for _, base := range sealedSegments(l) {
			keep := map[int64]string{}
			for off, v := range s.states[base][0] {
				if off%3 != int64(round) {
					keep[off] = v
				}
			}
			s.states[base] = append(s.states[base], keep)
			done, err := l.CompactSegment(ctx, base, CompactOptions{Target: 10_000, Keep: func(_ []byte, off int64, _ bool) (bool, error) {
				_, ok := keep[off]
				return ok, nil
			}})
			if err != nil {
				return err
			}
			if done.Swapped != (len(keep) < len(s.states[base][0])) {
				return fmt.Errorf("round %d: %+v", round, done)
			}
			s.states[base] = s.states[base][1:]
		}
		v := fmt.Sprint("appended", round)
		at, err := l.Append(ctx, [][]byte{batchBytes(v)})
		if err != nil {
			return err
		}
		s.appended[at[0]] = v
	}
	return nil
}

// crashBase is a log of three sealed segments of 12 records, with notes among
// them, and what they hold.
func crashBase(t testing.TB, fs *vfs.MemFS) (*vfs.MemFS, *script) {
	t.Helper()
	l := mustOpen(t, options(fs))
	for range 3 {
		for i := range 4 {
			mustAppend(t, l, batchOf(t, value(i, 10), value(i, 100), value(i, 1000)))
			must(t, l.Note(t.Context(), Note{ManifestGeneration: int64(i)}))
		}
		must(t, l.Roll(t.Context()))
	}
	s := &script{states: map[int64][]map[int64]string{}, appended: map[int64]string{}}
	all, err := scanAll(t, l, 0)
	must(t, err)
	for _, seg := range l.Segments() {
		if seg.Sealed {
			held := maps.Clone(all)
			maps.DeleteFunc(held, func(off int64, _ string) bool { return off < seg.BaseKafka || off >= seg.NextKafka })
			s.states[seg.BaseLog] = []map[int64]string{held}
		}
	}
	must(t, l.Close())
	return crash(fs), s
}

// check wants every segment to hold one of the states that it may be in.
func (s *script) check(t testing.TB, l *Log) {
	t.Helper()
	got, err := scanAll(t, l, 0)
	must(t, err)
	for off, v := range s.appended {
		wantValue(t, l, off, v)
	}
	next := int64(36)
	for off, v := range got {
		if off >= 36 {
			if want, ok := s.appended[off]; ok && want != v || !strings.HasPrefix(v, "appended") {
				t.Fatalf("offset %d is %q", off, clip(v))
			}
			next = max(next, off+1)
		}
	}
	for _, seg := range l.Segments() {
		states, ok := s.states[seg.BaseLog]
		if !ok {
			continue
		}
		held := maps.Clone(got)
		maps.DeleteFunc(held, func(off int64, _ string) bool { return off < seg.BaseKafka || off >= seg.NextKafka })
		if !slices.ContainsFunc(states, func(state map[int64]string) bool { return maps.Equal(state, held) }) {
			t.Fatalf("segment %d holds %d records, of %d states", seg.BaseLog, len(held), len(states))
		}
		if seg.Damaged || seg.NextKafka-seg.BaseKafka != 12 {
			t.Fatalf("segment %+v", seg)
		}
		for off, v := range held {
			wantValue(t, l, off, v)
		}
	}
	if base := appendValues(t, l, "appended at last"); base != next {
		t.Fatalf("next offset %d, want %d", base, next)
	}
	for _, name := range listing(t, l.d.fs) {
		if strings.HasSuffix(name, tempSuffix) {
			t.Fatalf("%s is still there", name)
		}
	}
}

// nth breaks from the n-th write of a file system on: lasting, or that one only.
type nth struct {
	left    int
	lasting bool
	hit     func()
	armed   bool
}

func (n *nth) String() string { return "nth" }

func (n *nth) MaybeError(op errorfs.Op) error {
	if !n.armed || op.Kind.ReadOrWrite() != errorfs.OpIsWrite || n.left < 0 {
		return nil
	}
	if n.left--; n.left >= 0 {
		return nil
	}
	if n.lasting {
		n.left = 0
	}
	if n.hit != nil {
		n.hit()
		n.hit = nil
	}
	return errorfs.ErrInjected
}

// The power goes at the k-th write, for every k, and takes along what was not
// synced, or some of it.
func TestCompactPowerCut(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, unsynced := range []int{0, 50, 100} {
		cuts := 0
		for k := 0; ; k++ {
			fs, s := crashBase(t, vfs.NewCrashableMem())
			var after *vfs.MemFS
			n := &nth{left: k, lasting: true, hit: func() {
				after = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: unsynced, RNG: rng})
			}}
			l := mustOpen(t, options(errorfs.Wrap(fs, n)))
			n.armed = true
			err := s.run(t.Context(), l)
			n.armed = false
			if after == nil {
				must(t, err)
				s.check(t, l)
				break
			}
			cuts++
			l.Close()
			_, err = Verify(t.Context(), VerifyOptions{FS: after, Dir: testDir, Report: func(f Finding) {
				if f.Damage {
					t.Errorf("cut %d: verify finds damage: %+v", k, f)
				}
			}})
			must(t, err)
			again := mustOpen(t, options(after))
			s.check(t, again)
			must(t, again.Close())
			wantSound(t, after, true)
			if t.Failed() {
				t.Fatalf("at cut %d, %d%% of unsynced data kept", k, unsynced)
			}
		}
		// six compactions and some appends, of several writes each
		if cuts < 50 {
			t.Errorf("only %d cuts: the test shows little", cuts)
		}
	}
}

// The k-th write fails, once. The log goes on, or is read-only and goes on after
// it was opened again.
func TestCompactWriteFails(t *testing.T) {
	for k := 0; ; k++ {
		fs, s := crashBase(t, vfs.NewCrashableMem())
		n := &nth{left: k}
		l := mustOpen(t, options(errorfs.Wrap(fs, n)))
		n.armed = true
		err := s.run(t.Context(), l)
		done := n.left >= 0
		n.armed = false
		if l.Err() == nil {
			s.check(t, l)
		}
		must(t, errors.Join(l.Close()))
		again := mustOpen(t, options(fs))
		if l.Err() != nil {
			s.check(t, again)
		}
		must(t, again.Close())
		wantSound(t, fs, true)
		if done {
			must(t, err)
			return
		}
	}
}

// A disk without room for the new file keeps the old one, and the log writable.
func TestCompactNoSpace(t *testing.T) {
	fs, s := crashBase(t, vfs.NewCrashableMem())
	full := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if strings.HasSuffix(op.Path, compactSuffix) && op.Kind == errorfs.OpFileWrite {
			return syscall.ENOSPC
		}
		return nil
	}))
	l := mustOpen(t, options(full))
	if err := s.run(t.Context(), l); !errors.Is(err, ErrNoSpace) || l.Err() != nil {
		t.Fatalf("error %v, log is %v", err, l.Err())
	}
	s.check(t, l)
}

// Whoever is inside the old file when its name goes to the new one stays there,
// with a mapping and without: a reader that was opened and has read nothing, and
// one that holds a batch.
func TestCompactUnderReaders(t *testing.T) {
	for name, fs := range map[string]vfs.FS{"memory": vfs.NewMem(), "disk": vfs.Default} {
		t.Run(name, func(t *testing.T) {
			o := options(fs)
			if name == "disk" {
				o.Dir = t.TempDir()
			}
			l := mustOpen(t, o)
			for i := range 50 {
				appendValues(t, l, value(i, 500))
			}
			must(t, l.Roll(t.Context()))
			must(t, l.Close())
			whole, err := (&directory{fs: fs, path: o.Dir}).read(firstLog, 1<<20)
			must(t, err)
			l = mustOpen(t, o) // nothing of the segment is loaded or open now
			var r *SegmentReader
			inside, swapped, left := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			done, err := l.CompactSegment(t.Context(), 0, CompactOptions{
				Keep: keepOnly(map[int64]bool{49: true}),
				Settle: func(context.Context) (err error) {
					if r, err = l.OpenSegment(0); err != nil {
						return err
					}
					go func() {
						left <- l.ReadBatch(7, func(batch []byte, base int64) error {
							before := bytes.Clone(batch)
							close(inside)
							<-swapped
							if !bytes.Equal(batch, before) || base != 7 {
								return errors.New("the batch changed under its reader")
							}
							return nil
						})
					}()
					<-inside
					return nil
				},
			})
			must(t, err)
			close(swapped)
			must(t, <-left)
			if !done.Swapped {
				t.Fatalf("%+v", done)
			}
			old := make([]byte, r.Size())
			if _, err := r.ReadAt(old, 0); err != nil || !bytes.Equal(old, whole) {
				t.Fatalf("old file: %v, %d bytes, want %d", err, len(old), len(whole))
			}
			n := 0
			must(t, r.Batches(func(int64, []byte, int64) error { n++; return nil }))
			if n != 50 {
				t.Fatalf("%d batches in the old file", n)
			}
			must(t, r.Close())
			wantValue(t, l, 49, value(49, 500))
			if _, err := valueAt(l, 7); err == nil {
				t.Fatal("offset 7 is still there")
			}
			if now := l.Segments()[0].Bytes; now != done.After || now >= int64(len(whole)) {
				t.Fatalf("%d bytes, %+v", now, done)
			}
		})
	}
}

// Lookups, scans, segment readers, appends and a trim, while segments become
// smaller again and again.
func TestCompactParallel(t *testing.T) {
	for name, fs := range map[string]vfs.FS{"memory": vfs.NewMem(), "disk": vfs.Default} {
		t.Run(name, func(t *testing.T) {
			o := options(fs)
			if name == "disk" {
				o.Dir = t.TempDir()
			}
			l := mustOpen(t, o)
			const segments, per = 6, 40
			for i := range segments * per {
				if appendValues(t, l, value(i, 200)); i%per == per-1 {
					must(t, l.Roll(t.Context()))
				}
			}
			must(t, l.Close())
			l = mustOpen(t, o)
			var stop atomic.Bool
			var wg sync.WaitGroup
			defer wg.Wait()
			defer stop.Store(true)
			kept := func(off, round int64) bool { return off%16 > round }
			loop := func(fn func(i int) error) {
				wg.Go(func() {
					for i := 0; !stop.Load(); i++ {
						if err := fn(i); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			for range 2 {
				loop(func(i int) error {
					off := int64(i*7) % (segments * per)
					got, err := valueAt(l, off)
					if kept(off, 14) && !errors.Is(err, ErrBelowStart) && (err != nil || got != value(int(off), 200)) {
						return fmt.Errorf("offset %d: %q, %w", off, clip(got), err)
					}
					return nil
				})
			}
			loop(func(int) error {
				infos := l.Segments()
				s := infos[len(infos)/2]
				r, err := l.OpenSegment(s.BaseLog)
				if err != nil {
					return err
				}
				defer r.Close()
				next := r.BaseOffset()
				err = r.Batches(func(_ int64, _ []byte, base int64) error {
					if base < next {
						return fmt.Errorf("offset %d behind %d", base, next)
					}
					next = base
					return nil
				})
				return err
			})
			loop(func(int) error {
				_, err := l.Append(t.Context(), [][]byte{batchBytes("more")})
				return err
			})
			for round := range int64(15) {
				for i, base := range sealedSegments(l) {
					_, err := l.CompactSegment(t.Context(), base, CompactOptions{
						Target: 1 << (8 + i), Keep: func(_ []byte, off int64, _ bool) (bool, error) { return kept(off, round), nil },
					})
					must(t, err)
				}
				if round == 10 {
					must(t, l.TrimPrefix(t.Context(), per))
				}
			}
			stop.Store(true)
			wg.Wait()
			for off := int64(per); off < segments*per; off++ {
				got, err := valueAt(l, off)
				if kept(off, 14) != (err == nil) || err == nil && got != value(int(off), 200) {
					t.Fatalf("offset %d: %q, %v", off, clip(got), err)
				}
			}
		})
	}
}
