package locallog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/record"
)

var firstLog = segmentName(0, 0) + logSuffix

// killed leaves a log's files as a kill -9 would: everything written, nothing
// noted about a clean stop.
func killed(t testing.TB, l *Log, fs *vfs.MemFS) *vfs.MemFS {
	t.Helper()
	must(t, l.Sync(context.Background()))
	return crash(fs)
}

// The last batch cut at every byte: the rest is there, the tail is gone from the
// file before anything is appended, and the log is whole after the next restart.
// case 7-26
func TestTornTailCutAtEveryByte(t *testing.T) {
	base := vfs.NewCrashableMem()
	l := mustOpen(t, options(base))
	appendValues(t, l, "a", "b", "c")
	base = killed(t, l, base)
	whole := file(t, base, firstLog)
	at := batchesIn(t, whole)
	last := at[len(at)-1]
	for size := last; size < len(whole); size++ {
		fs := crash(base)
		setFile(t, fs, firstLog, whole[:size])
		l := mustOpen(t, options(fs))
		if st := l.State(); st.HighWatermark != 2 || st.NextLog != 3 {
			t.Fatalf("cut at %d: %+v", size, st)
		}
		if got := file(t, fs, firstLog); !bytes.Equal(got, whole[:last]) {
			t.Fatalf("cut at %d: file has %d bytes after recovery, want %d", size, len(got), last)
		}
		if base := appendValues(t, l, "d"); base != 2 {
			t.Fatalf("cut at %d: next offset %d", size, base)
		}
		fs = killed(t, l, fs)
		l = mustOpen(t, options(fs))
		for i, v := range []string{"a", "b", "d"} {
			wantValue(t, l, int64(i), v)
		}
	}
}

// The same on a real file system, where the cut is a truncation in place.
func TestTornTailOnDisk(t *testing.T) {
	o := options(vfs.Default)
	o.Dir = t.TempDir()
	l := mustOpen(t, o)
	appendValues(t, l, "a", "b")
	must(t, l.Close())
	must(t, vfs.Default.Remove(vfs.Default.PathJoin(o.Dir, stopFile)))
	path := vfs.Default.PathJoin(o.Dir, firstLog)
	info, err := os.Stat(path)
	must(t, err)
	must(t, os.Truncate(path, info.Size()-1))
	l = mustOpen(t, o)
	wantValue(t, l, 0, "a")
	wantErr(t, l, 1, ErrNotFound)
	if base := appendValues(t, l, "c"); base != 1 {
		t.Fatalf("next offset %d", base)
	}
	must(t, l.Close())
	l = mustOpen(t, o)
	wantValue(t, l, 1, "c")
}

// Whoever looks for what a crash did finds a line, and none after a clean stop.
func TestRecoveryIsLogged(t *testing.T) {
	fs := vfs.NewCrashableMem()
	var logs bytes.Buffer
	o := options(fs)
	o.Logger = slog.New(slog.NewTextHandler(&logs, nil))
	l := mustOpen(t, o)
	appendValues(t, l, "a", "b")
	must(t, l.Close())
	l = mustOpen(t, o)
	if logs.Len() > 0 {
		t.Errorf("a new log, and one that was stopped cleanly: %s", logs.String())
	}
	appendValues(t, l, "c")
	o.FS = killed(t, l, fs)
	setFile(t, o.FS, firstLog, append(file(t, o.FS, firstLog), 1, 2, 3))
	mustOpen(t, o)
	if want := `"log was not stopped cleanly, and is recovered" segments=1 local_start=0 next_kafka_offset=3 cut_bytes=3`; strings.Count(logs.String(), want) != 1 {
		t.Errorf("no line %s in %s", want, logs.String())
	}
}

// A tail of zeros, as a preallocated file or a lost page has it, is cut; what is
// appended afterwards is there after the second restart. case 6-15
func TestZeroTail(t *testing.T) {
	for _, zeros := range []int{1, 60, 61, 4096, 300_000} {
		fs := vfs.NewCrashableMem()
		l := mustOpen(t, options(fs))
		appendValues(t, l, "a")
		fs = killed(t, l, fs)
		setFile(t, fs, firstLog, append(file(t, fs, firstLog), make([]byte, zeros)...))
		for i := range 3 {
			l := mustOpen(t, options(fs))
			if base := appendValues(t, l, fmt.Sprint("v", i)); base != int64(i+1) {
				t.Fatalf("%d zeros: offset %d at restart %d", zeros, base, i)
			}
			fs = killed(t, l, fs)
		}
		l = mustOpen(t, options(fs))
		wantValue(t, l, 0, "a")
		for i := range 3 {
			wantValue(t, l, int64(i+1), fmt.Sprint("v", i))
		}
	}
}

// One write whose pages reached the disk in another order: a later part is there,
// an earlier one is zeros. Nobody was answered, so it is torn and not damage.
func TestTornInTheMiddleOfAGroup(t *testing.T) {
	fs := vfs.NewCrashableMem()
	l := mustOpen(t, options(fs))
	appendValues(t, l, "a")
	before := len(file(t, fs, firstLog))
	appendValues(t, l, value(1, 6000), value(2, 6000), value(3, 6000))
	fs = killed(t, l, fs)
	b := file(t, fs, firstLog)
	for page := 0; page+pageSize < len(b); page += pageSize {
		torn := bytes.Clone(b)
		clear(torn[max(page, before) : page+pageSize])
		fs := crash(fs)
		setFile(t, fs, firstLog, torn)
		l := mustOpen(t, options(fs))
		wantValue(t, l, 0, "a")
		if segs := l.Segments(); len(segs) != 1 || segs[0].Damaged {
			t.Fatalf("page %d: taken for damage: %+v", page, segs)
		}
		hw := l.State().HighWatermark
		if base := appendValues(t, l, "next"); base != hw {
			t.Fatalf("page %d: offset %d, high watermark was %d", page, base, hw)
		}
	}
}

// Below the index's position, or after a clean stop, a bad tail is not torn: it
// stays in its file, its offsets answer that they are damaged, and the log goes on
// behind them.
func TestDamagedTail(t *testing.T) {
	for name, c := range map[string]struct {
		clean  bool
		proven int64
		damage func([]byte, []int) []byte
	}{
		"proven, bit flip":       {proven: 5, damage: func(b []byte, at []int) []byte { b[len(b)-3] ^= 4; return b }},
		"proven, cut inside":     {proven: 5, damage: func(b []byte, at []int) []byte { return b[:len(b)-3] }},
		"proven, zeroed":         {proven: 5, damage: func(b []byte, at []int) []byte { clear(b[at[len(at)-1]:]); return b }},
		"clean stop, bit flip":   {clean: true, damage: func(b []byte, at []int) []byte { b[at[len(at)-1]] ^= 4; return b }},
		"clean stop, cut inside": {clean: true, damage: func(b []byte, at []int) []byte { return b[:len(b)-3] }},
		"clean stop, batch gone": {clean: true, damage: func(b []byte, at []int) []byte { return b[:at[len(at)-1]] }},
		"clean stop, garbage more": {clean: true, damage: func(b []byte, at []int) []byte {
			return append(b[:len(b)-30], "garbage and more of it, as much as was there"...)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewCrashableMem()
			l := mustOpen(t, options(fs))
			appendValues(t, l, "a", "b", "c", "d")
			if c.clean {
				must(t, l.Close())
				fs = crash(fs)
			} else {
				fs = killed(t, l, fs)
			}
			b := file(t, fs, firstLog)
			b = c.damage(b, batchesIn(t, b))
			setFile(t, fs, firstLog, b)
			for restart := range 3 {
				o := options(fs)
				o.ProvenNextLog = c.proven
				l := mustOpen(t, o)
				if !bytes.Equal(file(t, fs, firstLog), b) {
					t.Fatal("the damaged file was changed")
				}
				wantValue(t, l, 2, "c")
				wantErr(t, l, 3, record.ErrCorrupt)
				if base := appendValues(t, l, fmt.Sprint("new", restart)); base != int64(4+restart) {
					t.Fatalf("appended at %d, want %d", base, 4+restart)
				}
				for i := range restart + 1 {
					wantValue(t, l, int64(4+i), fmt.Sprint("new", i))
				}
				got, err := scanAll(t, l, 0)
				if !errors.Is(err, record.ErrCorrupt) || len(got) != 3 {
					t.Fatalf("scan over the damage: %v, %v", got, err)
				}
				segs := l.Segments()
				if !segs[0].Damaged || segs[1].Damaged {
					t.Fatalf("segments %+v", segs)
				}
				if got, err := scanAll(t, l, segs[0].NextLog); err != nil || len(got) != restart+1 {
					t.Fatalf("scan behind the damage: %v, %v", got, err)
				}
				fs = killed(t, l, fs)
			}
		})
	}
}

// Damage that hits answered data in the last segment is not taken for a torn tail
// just because the index had not come so far.
func TestDamageInTheMiddleOfTheLastSegment(t *testing.T) {
	fs := vfs.NewCrashableMem()
	l := mustOpen(t, options(fs))
	for i := range 20 {
		appendValues(t, l, value(i, 100))
	}
	must(t, l.Note(context.Background(), Note{RemoteNext: 1}))
	for i := 20; i < 30; i++ {
		appendValues(t, l, value(i, 100))
	}
	fs = killed(t, l, fs)
	b := file(t, fs, firstLog)
	at := batchesIn(t, b)
	for name, damage := range map[string]func(b []byte){
		"record": func(b []byte) { b[at[5]+80] ^= 1 },
		"length": func(b []byte) { b[at[5]+9] ^= 0xff },
		"offset": func(b []byte) { b[at[5]+7] ^= 0x40 },
		"header": func(b []byte) { copy(b[at[5]:], "not a header at all, nothing of it is any good now, no.......") },
		"two":    func(b []byte) { copy(b[at[5]+20:at[6]+30], bytes.Repeat([]byte("#"), 10_000)) },
	} {
		t.Run(name, func(t *testing.T) {
			fs := crash(fs)
			bad := bytes.Clone(b)
			damage(bad)
			setFile(t, fs, firstLog, bad)
			l := mustOpen(t, options(fs))
			for i := range 30 {
				got, err := valueAt(l, int64(i))
				switch lost := i == 4 || i == 5 && name == "two"; {
				case lost && !errors.Is(err, record.ErrCorrupt):
					t.Fatalf("offset %d: %q, %v", i, clip(got), err)
				case !lost && (err != nil || got != value(i, 100)):
					t.Fatalf("offset %d: %q, %v", i, clip(got), err)
				}
			}
			if base := appendValues(t, l, "next"); base != 30 {
				t.Fatalf("next offset %d", base)
			}
		})
	}
}

// Behind a hole that may have swallowed internal batches nothing is believed that
// cannot be counted on, and no offset is given twice.
func TestHoleWithoutAnchor(t *testing.T) {
	fs := vfs.NewCrashableMem()
	l := mustOpen(t, options(fs))
	appendValues(t, l, "a")
	must(t, l.Note(context.Background(), Note{RemoteNext: 1}))
	appendValues(t, l, "b", "c")
	fs = killed(t, l, fs)
	b := file(t, fs, firstLog)
	at := batchesIn(t, b)
	copy(b[at[2]:at[4]-10], bytes.Repeat([]byte("#"), 10_000)) // the note and b
	setFile(t, fs, firstLog, b)

	l = mustOpen(t, options(fs))
	wantValue(t, l, 0, "a")
	for off := int64(1); off < 3; off++ {
		wantErr(t, l, off, record.ErrCorrupt) // c is there, but at which offset?
	}
	if base := appendValues(t, l, "d"); base < 3 {
		t.Fatalf("offset %d was given before", base)
	}
	l.Close()

	// With the index's position there is an anchor, and c can be read.
	fs2 := crash(fs)
	setFile(t, fs2, firstLog, b)
	for _, name := range listing(t, fs2) {
		if name != firstLog {
			removeFile(t, fs2, name)
		}
	}
	o := options(fs2)
	o.ProvenNextLog, o.ProvenNextKafka = 5, 3
	l = mustOpen(t, o)
	wantErr(t, l, 1, record.ErrCorrupt)
	wantValue(t, l, 2, "c")
	if base := appendValues(t, l, "d"); base != 3 {
		t.Fatalf("offset %d, want 3", base)
	}
}

// A disk that fails while the log is opened is not a torn tail.
func TestReadErrorAtOpen(t *testing.T) {
	base, names := threeSegments(t)
	before := file(t, base, names[2]+logSuffix)
	broken := &brokenReads{FS: base, suffix: names[2] + logSuffix}
	if _, err := Open(context.Background(), options(broken)); !errors.Is(err, errBroken) {
		t.Fatalf("open: %v", err)
	}
	if !bytes.Equal(before, file(t, base, names[2]+logSuffix)) {
		t.Fatal("the file was changed")
	}
	wantNine(t, mustOpen(t, options(base)))
}

var errBroken = errors.New("disk does not read")

type brokenReads struct {
	vfs.FS
	suffix string
}

func (b *brokenReads) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := b.FS.Open(name, o...)
	if err == nil && strings.HasSuffix(name, b.suffix) {
		f = brokenFile{f}
	}
	return f, err
}

type brokenFile struct{ vfs.File }

func (brokenFile) ReadAt([]byte, int64) (int, error) { return 0, errBroken }

// A mapped file that is cut from outside does not take the process down.
func TestFaultIsDamage(t *testing.T) {
	o := options(vfs.Default)
	o.Dir = t.TempDir()
	l := mustOpen(t, o)
	appendValues(t, l, value(0, 100_000), value(1, 100_000))
	wantValue(t, l, 1, value(1, 100_000))
	must(t, os.Truncate(vfs.Default.PathJoin(o.Dir, firstLog), 50_000))
	wantErr(t, l, 1, record.ErrCorrupt)
	r, err := l.OpenSegment(0)
	must(t, err)
	if _, err := r.ReadAt(make([]byte, 100), 150_000); !errors.Is(err, record.ErrCorrupt) {
		t.Fatalf("read at: %v", err)
	}
	must(t, r.Close())
	// A panic of the callback's own stays one.
	defer func() {
		if r := recover(); r != "mine" {
			t.Fatalf("recovered %v", r)
		}
	}()
	l.ReadBatch(0, func([]byte, int64) error { panic("mine") })
}
