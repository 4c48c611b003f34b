package locallog

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"keyhole/record"
)

// The log of threeSegments truncated at every offset, with a reader inside, then
// appended to and opened again.
func TestTruncateSuffix(t *testing.T) {
	ctx := context.Background()
	for at := int64(2); at <= 9; at++ { // the bucket has what is below 2
		fs, _ := threeSegments(t)
		l := mustOpen(t, options(fs))
		wantNine(t, l)
		last, err := l.OpenSegment(l.Segments()[2].BaseLog)
		must(t, err)
		must(t, l.TruncateSuffix(ctx, at))
		check := func(l *Log, next int64) {
			t.Helper()
			if st := l.State(); st.HighWatermark != next || st.RemoteNext != 2 {
				t.Fatalf("truncated at %d: %+v", at, st)
			}
			for off := range at {
				wantValue(t, l, off, string("abc"[off%3])+fmt.Sprint(off/3))
			}
			wantErr(t, l, next, ErrNotFound)
			got, err := scanAll(t, l, 0)
			if err != nil || len(got) != int(next) {
				t.Fatalf("truncated at %d: scan gives %v, %v", at, got, err)
			}
		}
		check(l, at)
		n := 0
		must(t, last.Batches(func(_ int64, b []byte, _ int64) error {
			n++
			_, err := record.Verify(b)
			return err
		}))
		if n != 2 {
			t.Fatalf("the reader inside sees %d batches", n)
		}
		must(t, last.Close())
		check(mustOpen(t, options(crash(fs))), at) // durable at once
		if base := appendValues(t, l, "new"); base != at {
			t.Fatalf("truncated at %d, appended at %d", at, base)
		}
		check(l, at+1)
		must(t, l.Roll(ctx))
		l = mustOpen(t, options(killed(t, l, fs)))
		check(l, at+1)
		wantValue(t, l, at, "new")
	}
}

func TestTruncateSuffixOnDisk(t *testing.T) {
	ctx := context.Background()
	o := options(vfs.Default)
	o.Dir = t.TempDir()
	l := mustOpen(t, o)
	mustAppend(t, l, batchOf(t, value(0, 50_000), value(1, 50_000), value(2, 50_000)))
	must(t, l.Roll(ctx))
	appendValues(t, l, "a")
	err := l.ReadBatch(2, func(batch []byte, _ int64) error {
		must(t, l.TruncateSuffix(ctx, 1))
		_, err := record.Verify(batch) // still mapped, still whole
		return err
	})
	must(t, err)
	wantValue(t, l, 0, value(0, 50_000))
	wantErr(t, l, 1, ErrNotFound)
	appendValues(t, l, "b")
	wantValue(t, l, 1, "b")
}

func TestTruncateRefuses(t *testing.T) {
	ctx := context.Background()
	l := mustOpen(t, options(vfs.NewMem()))
	appendValues(t, l, "a", "b", "c", "d")
	must(t, l.Note(ctx, Note{RemoteNext: 3, LocalStart: 1}))
	for _, c := range []struct {
		at   int64
		want error
	}{{0, ErrBelowStart}, {2, ErrInvalid}, {5, ErrInvalid}, {4, nil}, {3, nil}} {
		if err := l.TruncateSuffix(ctx, c.at); !errors.Is(err, c.want) {
			t.Errorf("truncate to %d: %v, want %v", c.at, err, c.want)
		}
	}
	if err := l.Err(); err != nil {
		t.Fatalf("a refusal made the log read-only: %v", err)
	}
}

// Truncation stopped at its k-th file operation, for every k, with what was not
// synced lost or kept: the next Open finds the log before or after it, whole.
func TestTruncateCrash(t *testing.T) {
	base, _ := threeSegments(t)
	for _, at := range []int64{4, 5, 6, 7, 8} {
		for k := int32(0); ; k++ {
			fs := crash(base)
			inj := errorfs.OnIndex(k)
			tog := &errorfs.Toggle{Injector: writesOnly{inj}}
			l := mustOpen(t, options(errorfs.Wrap(fs, tog)))
			tog.On()
			err := l.TruncateSuffix(context.Background(), at)
			tog.Off()
			l.Close()
			for _, fs := range []*vfs.MemFS{crash(fs), fs} {
				l := mustOpen(t, options(fs))
				next := l.State().HighWatermark
				if next != 9 && next != at {
					t.Fatalf("to %d, stopped at %d: log ends at %d", at, k, next)
				}
				if err == nil && next != at {
					t.Fatalf("to %d: answered and not done", at)
				}
				for off := range next {
					wantValue(t, l, off, string("abc"[off%3])+fmt.Sprint(off/3))
				}
				if st := l.State(); st.RemoteNext != 2 || exists(fs, truncateFile) {
					t.Fatalf("to %d, stopped at %d: %+v", at, k, st)
				}
				if base := appendValues(t, l, "new"); base != next {
					t.Fatalf("appended at %d, want %d", base, next)
				}
			}
			if err == nil {
				if k < 10 {
					t.Fatalf("only %d operations were stopped", k)
				}
				break
			}
		}
	}
}

// writesOnly passes only operations that change something on to an injector.
type writesOnly struct{ errorfs.Injector }

func (w writesOnly) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite && op.Kind != errorfs.OpOpenDir {
		return nil
	}
	return w.Injector.MaybeError(op)
}

// Only batches that can be encoded anew without loss are split.
func TestTruncateInsideTransaction(t *testing.T) {
	l := mustOpen(t, options(vfs.NewMem()))
	b := batchOf(t, "a", "b")
	h, err := record.ParseHeader(b)
	must(t, err)
	h.ProducerID = 5
	if _, err := firstPart(b, h, 1); !errors.Is(err, ErrInvalid) {
		t.Fatalf("split of a producer's batch: %v", err)
	}
	mustAppend(t, l, batchWith(t, record.Gzip, value(0, 1000), value(1, 1000), "c"))
	must(t, l.TruncateSuffix(context.Background(), 2))
	wantValue(t, l, 0, value(0, 1000))
	wantValue(t, l, 1, value(1, 1000))
	wantErr(t, l, 2, ErrNotFound)
}
