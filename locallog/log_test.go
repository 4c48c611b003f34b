package locallog

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/record"
)

func TestAppendAndRead(t *testing.T) {
	for name, fs := range map[string]vfs.FS{"memory": vfs.NewMem(), "disk": vfs.Default} {
		t.Run(name, func(t *testing.T) {
			o := options(fs)
			if name == "disk" {
				o.Dir = t.TempDir() + "/topic/0"
			}
			o.SegmentBytes = bytesOf(8 << 10)
			l := mustOpen(t, o)
			var want []string
			for i := range 200 {
				a, b, c := value(3*i, 10+i), value(3*i+1, 300), value(3*i+2, 0)
				bases := mustAppend(t, l, batchOf(t, a, b), batchWith(t, record.Zstd, c))
				if bases[0] != int64(3*i) || bases[1] != int64(3*i+2) {
					t.Fatalf("bases %v, want %d and %d", bases, 3*i, 3*i+2)
				}
				want = append(want, a, b, c)
			}
			check := func(l *Log) {
				t.Helper()
				for i, v := range want {
					wantValue(t, l, int64(i), v)
				}
				wantErr(t, l, int64(len(want)), ErrNotFound)
				wantErr(t, l, -1, ErrBelowStart)
				got, err := scanAll(t, l, 0)
				must(t, err)
				if len(got) != len(want) {
					t.Fatalf("scan gives %d records, want %d", len(got), len(want))
				}
			}
			check(l)
			if n := len(l.Segments()); n < 10 {
				t.Fatalf("%d segments of 8 KiB", n)
			}
			before := l.Segments()
			must(t, l.Close())
			must(t, l.Close())
			wantErr(t, l, 0, ErrClosed)
			if _, err := l.Append(context.Background(), [][]byte{batchOf(t, "x")}); !errors.Is(err, ErrClosed) {
				t.Fatalf("append after close: %v", err)
			}
			l = mustOpen(t, o)
			check(l)
			after := l.Segments()
			// The active segment's times are approximate after a restart.
			last := len(after) - 1
			before[last].FirstAppend, after[last].FirstAppend = time.Time{}, time.Time{}
			if !slices.Equal(before, after) {
				t.Fatalf("segments changed over a restart:\n%+v\n%+v", before, after)
			}
		})
	}
}

// Kafka's own transaction markers are data: they take a Kafka offset. What looks
// like a batch of the log's own is refused.
func TestControlBatches(t *testing.T) {
	l := mustOpen(t, options(vfs.NewMem()))
	marker, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: -1, Control: true},
		[]record.Record{{Key: []byte{0, 0, 0, 1}, Value: []byte{0, 0, 0, 0, 0, 0}}})
	must(t, err)
	mustAppend(t, l, batchOf(t, "a"), marker, batchOf(t, "b"))
	wantValue(t, l, 0, "a")
	wantValue(t, l, 1, "\x00\x00\x00\x00\x00\x00")
	wantValue(t, l, 2, "b")

	own, err := notice{kind: kindNote}.appendTo(nil)
	must(t, err)
	if _, err := l.Append(context.Background(), [][]byte{own}); !errors.Is(err, ErrInvalid) {
		t.Fatalf("append of an internal batch: %v", err)
	}
	if st := l.State(); st.HighWatermark != 3 {
		t.Fatalf("high watermark %d", st.HighWatermark)
	}
}

func TestAppendRefuses(t *testing.T) {
	o := options(vfs.NewMem())
	o.MaxBatchBytes = 200
	l := mustOpen(t, o)
	bad := batchOf(t, "a")
	bad[len(bad)-1] ^= 1
	shifted := batchOf(t, "a")
	record.SetBaseOffset(shifted, 5)
	for name, c := range map[string]struct {
		batches [][]byte
		want    error
	}{
		"nothing":    {nil, ErrInvalid},
		"too large":  {[][]byte{batchOf(t, value(0, 300))}, ErrTooLarge},
		"bad CRC":    {[][]byte{batchOf(t, "a"), bad}, record.ErrCorrupt},
		"cut":        {[][]byte{batchOf(t, "a")[:70]}, record.ErrCorrupt},
		"short":      {[][]byte{{1, 2}}, ErrInvalid},
		"offset":     {[][]byte{shifted}, ErrInvalid},
		"two in one": {[][]byte{append(batchOf(t, "a"), batchOf(t, "b")...)}, record.ErrCorrupt},
	} {
		if _, err := l.Append(context.Background(), c.batches); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if st := l.State(); st.HighWatermark != 0 || st.NextLog != 1 {
		t.Fatalf("something was appended: %+v", st)
	}
}

// case 3-10: a batch whose last offset lies beyond its records, even one without
// any, moves the log on by its offsets and not by its record count.
func TestOffsetsWithGaps(t *testing.T) {
	fs := vfs.NewMem()
	l := mustOpen(t, options(fs))
	gappy, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: 9},
		[]record.Record{{Offset: 2, Value: []byte("two")}})
	must(t, err)
	empty, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: 4}, nil)
	must(t, err)
	bases := mustAppend(t, l, gappy, empty, batchOf(t, "next"))
	if !slices.Equal(bases, []int64{0, 10, 15}) {
		t.Fatalf("bases %v", bases)
	}
	must(t, l.Close())
	l = mustOpen(t, options(fs))
	wantValue(t, l, 2, "two")
	wantValue(t, l, 15, "next")
	if hw := l.State().HighWatermark; hw != 16 {
		t.Fatalf("high watermark %d", hw)
	}
}

func TestNotesAndState(t *testing.T) {
	ctx := context.Background()
	fs := vfs.NewCrashableMem()
	o := options(fs)
	o.Epoch, o.StartKafka = 3, 1000
	l := mustOpen(t, o)
	if st := l.State(); st != (State{LocalStart: 1000, HighWatermark: 1000, NextLog: 1, Epoch: 3}) {
		t.Fatalf("new log: %+v", st)
	}
	if base := appendValues(t, l, "a", "b"); base != 1000 {
		t.Fatalf("first offset %d", base)
	}
	must(t, l.Note(ctx, Note{RemoteNext: 1001, ManifestGeneration: 7}))
	must(t, l.Note(ctx, Note{RemoteNext: 900, ManifestGeneration: 2, LocalStart: 5000}))
	appendValues(t, l, "c")
	want := State{LocalStart: 1002, HighWatermark: 1003, NextLog: 6, RemoteNext: 1001, ManifestGeneration: 7, Epoch: 3}
	if st := l.State(); st != want {
		t.Fatalf("state %+v, want %+v", st, want)
	}
	wantErr(t, l, 1001, ErrBelowStart)
	wantValue(t, l, 1002, "c")
	// All of it was answered, so all of it outlives a crash.
	o.FS = crash(fs)
	l = mustOpen(t, o)
	want.Epoch = 4
	if st := l.State(); st != want {
		t.Fatalf("state after crash %+v, want %+v", st, want)
	}
	wantValue(t, l, 1002, "c")
	// The state goes into the next segment's checkpoint.
	must(t, l.Roll(ctx))
	must(t, l.TrimPrefix(ctx, 1003))
	want.LocalStart, want.NextLog, want.Epoch = 1003, 8, 5
	o.FS = crash(o.FS.(*vfs.MemFS))
	l = mustOpen(t, o)
	if st := l.State(); st != want {
		t.Fatalf("state after trim %+v, want %+v", st, want)
	}
}

func TestRoll(t *testing.T) {
	ctx := context.Background()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		l := mustOpen(t, options(fs))
		must(t, l.Roll(ctx))
		if segs := l.Segments(); len(segs) != 1 || !segs[0].FirstAppend.IsZero() {
			t.Fatalf("a segment without data was rolled: %+v", segs)
		}
		first := time.Now()
		appendValues(t, l, "a")
		time.Sleep(time.Hour) // synctest's clock
		appendValues(t, l, "b")
		if at := l.Segments()[0].FirstAppend; !at.Equal(first) {
			t.Fatalf("first append at %v, want %v", at, first)
		}
		must(t, l.Roll(ctx))
		segs := l.Segments()
		if len(segs) != 2 || !segs[0].Sealed || !segs[0].SealedAt.Equal(time.Now()) || !segs[0].FirstAppend.Equal(first) ||
			segs[0].MaxTimestamp != 1_700_000_000_000 || segs[1].Sealed || segs[1].BaseKafka != 2 {
			t.Fatalf("segments %+v", segs)
		}
		l.Close()
	})
}

// A new epoch's writer begins its own segment, with the first write and not
// before, so that an idle log writes nothing when it is opened.
func TestEpochRollsWithFirstWrite(t *testing.T) {
	fs := vfs.NewMem()
	o := options(fs)
	l := mustOpen(t, o)
	appendValues(t, l, "a")
	must(t, l.Close())
	before := listing(t, fs)
	o.Epoch = 5
	l = mustOpen(t, o)
	must(t, l.Close())
	if after := listing(t, fs); len(after) != len(before) {
		t.Fatalf("opening wrote: %v, before %v", after, before)
	}
	l = mustOpen(t, o)
	appendValues(t, l, "b")
	segs := l.Segments()
	if len(segs) != 2 || segs[0].Epoch != 0 || segs[1].Epoch != 5 {
		t.Fatalf("segments %+v", segs)
	}
	o.Epoch = 4
	must(t, l.Close())
	l = mustOpen(t, o)
	if e := l.State().Epoch; e != 5 {
		t.Fatalf("epoch went back to %d", e)
	}
	wantValue(t, l, 0, "a")
	wantValue(t, l, 1, "b")
	// A segment without data is replaced, not kept.
	must(t, l.Roll(context.Background()))
	must(t, l.Close())
	o.Epoch = 6
	l = mustOpen(t, o)
	appendValues(t, l, "c")
	if segs := l.Segments(); len(segs) != 3 || segs[2].Epoch != 6 || segs[2].BaseKafka != 2 {
		t.Fatalf("segments %+v", segs)
	}
	wantValue(t, l, 2, "c")
	got, err := scanAll(t, l, 0)
	if err != nil || len(got) != 3 {
		t.Fatalf("scan: %v, %v", got, err)
	}
}

func TestTrimWithReadersInside(t *testing.T) {
	ctx := context.Background()
	for name, fs := range map[string]vfs.FS{"memory": vfs.NewMem(), "disk": vfs.Default} {
		t.Run(name, func(t *testing.T) {
			o := options(fs)
			if name == "disk" {
				o.Dir = t.TempDir() + "/0"
			}
			l := mustOpen(t, o)
			appendValues(t, l, "a", "b")
			must(t, l.Roll(ctx))
			appendValues(t, l, "c")
			base := l.Segments()[0].BaseLog
			r, err := l.OpenSegment(base)
			must(t, err)
			name := fs.PathJoin(o.Dir, segmentName(base, 0)+logSuffix)
			err = l.ReadBatch(1, func(batch []byte, _ int64) error {
				must(t, l.TrimPrefix(ctx, 2))
				if st := l.State(); st.LocalStart != 2 {
					t.Fatalf("state %+v", st)
				}
				wantErr(t, l, 1, ErrBelowStart)
				if _, err := fs.Stat(name); err != nil {
					t.Fatalf("file is gone while it is read: %v", err)
				}
				_, err := record.Verify(batch)
				return err
			})
			must(t, err)
			n := 0
			must(t, r.Batches(func(_ int64, b []byte, base int64) error {
				n++
				_, err := record.Verify(b)
				return err
			}))
			if n != 2 || r.BaseOffset() != 0 || r.NextOffset() != 2 {
				t.Fatalf("%d batches, offsets %d to %d", n, r.BaseOffset(), r.NextOffset())
			}
			must(t, r.Close())
			must(t, r.Close())
			if _, err := fs.Stat(name); err == nil {
				t.Fatal("file stays after its last reader left")
			}
			if _, err := l.OpenSegment(base); !errors.Is(err, ErrNoSegment) {
				t.Fatalf("open trimmed segment: %v", err)
			}
			if err := l.Scan(ctx, 0, nil); !errors.Is(err, ErrBelowStart) {
				t.Fatalf("scan from trimmed offset: %v", err)
			}
			wantValue(t, l, 2, "c")
			must(t, l.TrimPrefix(ctx, 100)) // the active segment stays
			wantValue(t, l, 2, "c")
		})
	}
}

func TestSegmentReaderReadAt(t *testing.T) {
	for name, fs := range map[string]vfs.FS{"memory": vfs.NewMem(), "disk": vfs.Default} {
		o := options(fs)
		if name == "disk" {
			o.Dir = t.TempDir()
		}
		l := mustOpen(t, o)
		appendValues(t, l, value(0, 5000), value(1, 5000))
		r, err := l.OpenSegment(0)
		must(t, err)
		whole := make([]byte, r.Size())
		if n, err := r.ReadAt(whole, 0); n != len(whole) || err != nil {
			t.Fatalf("%s: read %d of %d: %v", name, n, len(whole), err)
		}
		err = r.Batches(func(pos int64, batch []byte, _ int64) error {
			if string(whole[pos:pos+int64(len(batch))]) != string(batch) {
				t.Fatalf("%s: batch at %d differs from the file", name, pos)
			}
			return nil
		})
		must(t, err)
		if n, err := r.ReadAt(make([]byte, 10), r.Size()-4); n != 4 || err != io.EOF {
			t.Fatalf("%s: read over the end: %d, %v", name, n, err)
		}
		if n, err := r.ReadAt(make([]byte, 10), r.Size()+4); n != 0 || err != io.EOF {
			t.Fatalf("%s: read behind the end: %d, %v", name, n, err)
		}
		if _, err := r.ReadAt(make([]byte, 10), -1); err == nil || err == io.EOF {
			t.Fatalf("%s: read at -1: %v", name, err)
		}
		must(t, r.Close())
	}
}

func TestScanFrom(t *testing.T) {
	l := mustOpen(t, options(vfs.NewMem()))
	mustAppend(t, l, batchOf(t, "a", "b"), batchOf(t, "c"))
	must(t, l.Note(context.Background(), Note{RemoteNext: 1}))
	appendValues(t, l, "d")
	// Log offsets: 0 checkpoint, 1-2, 3, 4 note, 5.
	for from, want := range map[int64]int{0: 4, 1: 4, 2: 4, 3: 2, 4: 1, 5: 1, 6: 0, 100: 0} {
		got, err := scanAll(t, l, from)
		if err != nil || len(got) != want {
			t.Errorf("scan from %d: %v, %v, want %d records", from, got, err, want)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.Scan(ctx, 0, func(Appended) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Fatalf("scan with a dead context: %v", err)
	}
}
