package locallog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/record"
)

// threeSegments is a log of three segments of three records each, and where its
// files are. The last record of each is in a batch with two.
func threeSegments(t testing.TB) (fs *vfs.MemFS, names []string) {
	t.Helper()
	fs = vfs.NewCrashableMem()
	l := mustOpen(t, options(fs))
	for i := range 3 {
		mustAppend(t, l, batchOf(t, fmt.Sprint("a", i)), batchOf(t, fmt.Sprint("b", i), fmt.Sprint("c", i)))
		must(t, l.Note(context.Background(), Note{RemoteNext: int64(i)}))
		if i < 2 {
			must(t, l.Roll(context.Background()))
		}
	}
	for _, s := range l.Segments() {
		names = append(names, segmentName(s.BaseLog, s.Epoch))
	}
	return killed(t, l, fs), names
}

func wantNine(t testing.TB, l *Log, lost ...int64) {
	t.Helper()
	for off := range int64(9) {
		want := string("abc"[off%3]) + fmt.Sprint(off/3)
		isLost := false
		for _, o := range lost {
			isLost = isLost || o == off
		}
		if isLost {
			wantErr(t, l, off, record.ErrCorrupt)
		} else {
			wantValue(t, l, off, want)
		}
	}
}

// case 6-17, 7-29: an index that is missing, empty, cut, garbage, of another
// segment or of an earlier state is built anew; one without its log is removed.
func TestIndexRebuilt(t *testing.T) {
	base, names := threeSegments(t)
	good := file(t, base, names[0]+indexSuffix)
	flipped := func(pos int) []byte {
		b := bytes.Clone(good)
		b[pos] ^= 1
		return b
	}
	for name, content := range map[string][]byte{
		"missing": nil, "empty": {}, "cut header": good[:50], "cut table": good[:len(good)-3],
		"garbage": bytes.Repeat([]byte("?"), 500), "longer": append(bytes.Clone(good), 0),
		"other segment": file(t, base, names[1]+indexSuffix),
		"header bit":    flipped(20), "table bit": flipped(len(good) - 3),
	} {
		t.Run(name, func(t *testing.T) {
			fs := crash(base)
			if content == nil {
				removeFile(t, fs, names[0]+indexSuffix)
			} else {
				setFile(t, fs, names[0]+indexSuffix, content)
			}
			l := mustOpen(t, options(fs))
			wantNine(t, l)
			if st := l.State(); st.RemoteNext != 2 || st.HighWatermark != 9 {
				t.Fatalf("state %+v", st)
			}
			rebuilt := file(t, fs, names[0]+indexSuffix)
			h, err := decodeIndexHeader(rebuilt, int64(len(rebuilt)))
			must(t, err)
			if _, err := decodeTable(h, rebuilt[indexHeaderSize:]); err != nil {
				t.Fatal(err)
			}
		})
	}
	fs := crash(base)
	orphan := segmentName(7_000_000, 0) + indexSuffix
	setFile(t, fs, orphan, good)
	setFile(t, fs, "kv_index", []byte("not ours"))
	l := mustOpen(t, options(fs))
	wantNine(t, l)
	if exists(fs, orphan) || !exists(fs, "kv_index") {
		t.Fatalf("files after open: %v", listing(t, fs))
	}
}

// case 6-17, 7-27: a segment file is gone. Its offsets answer that they are
// damaged, not that they never were.
func TestMissingSegment(t *testing.T) {
	base, names := threeSegments(t)
	for i, lost := range [][]int64{{0, 1, 2}, {3, 4, 5}} {
		fs := crash(base)
		removeFile(t, fs, names[i]+logSuffix)
		l := mustOpen(t, options(fs))
		wantNine(t, l, lost...)
		if _, err := scanAll(t, l, 0); !errors.Is(err, record.ErrCorrupt) {
			t.Fatalf("scan over the missing segment: %v", err)
		}
		if base := appendValues(t, l, "new"); base != 9 {
			t.Fatalf("next offset %d", base)
		}
		must(t, l.TrimPrefix(context.Background(), 6))
		wantErr(t, l, lost[0], ErrBelowStart)
		wantValue(t, l, 6, "a2")
		// Trimmed away, the damage is gone for good.
		l = mustOpen(t, options(killed(t, l, fs)))
		for _, s := range l.Segments() {
			if s.Damaged {
				t.Fatalf("still damaged: %+v", l.Segments())
			}
		}
	}
}

// After a clean stop even the loss of the last segment shows.
func TestMissingLastSegmentAfterCleanStop(t *testing.T) {
	base, names := threeSegments(t)
	must(t, mustOpen(t, options(base)).Close())
	base = crash(base)
	for n := 1; n <= 3; n++ {
		fs := crash(base)
		for _, name := range names[3-n:] {
			removeFile(t, fs, name+logSuffix)
		}
		l := mustOpen(t, options(fs))
		var lost []int64
		for off := int64(9 - 3*n); off < 9; off++ {
			lost = append(lost, off)
		}
		wantNine(t, l, lost...)
		if base := appendValues(t, l, "new"); base != 9 {
			t.Fatalf("next offset %d", base)
		}
		l = mustOpen(t, options(killed(t, l, fs)))
		wantNine(t, l, lost...)
		wantValue(t, l, 9, "new")
	}
}

// case 7-27: damage in a sealed segment, with and without its index.
func TestDamagedSealedSegment(t *testing.T) {
	base, names := threeSegments(t)
	whole := file(t, base, names[1]+logSuffix)
	at := batchesIn(t, whole) // checkpoint, a, b+c, note
	for name, c := range map[string]struct {
		damage  func([]byte) []byte
		noIndex bool
		lost    []int64
	}{
		"record, indexed":      {func(b []byte) []byte { b[at[2]+70] ^= 1; return b }, false, []int64{4, 5}},
		"record":               {func(b []byte) []byte { b[at[2]+70] ^= 1; return b }, true, []int64{4, 5}},
		"header":               {func(b []byte) []byte { b[at[1]+16] = 9; return b }, true, []int64{3}},
		"header, indexed":      {func(b []byte) []byte { b[at[1]+16] = 9; return b }, false, []int64{3}},
		"checkpoint, indexed":  {func(b []byte) []byte { b[30] ^= 1; return b }, false, nil},
		"checkpoint":           {func(b []byte) []byte { b[30] ^= 1; return b }, true, nil},
		"cut":                  {func(b []byte) []byte { return b[:at[2]+10] }, true, []int64{4, 5}},
		"cut, index not right": {func(b []byte) []byte { return b[:at[2]+10] }, false, []int64{4, 5}},
		"empty":                {func(b []byte) []byte { return nil }, false, []int64{3, 4, 5}},
		"all zero":             {func(b []byte) []byte { clear(b); return b }, true, []int64{3, 4, 5}},
	} {
		t.Run(name, func(t *testing.T) {
			fs := crash(base)
			setFile(t, fs, names[1]+logSuffix, c.damage(bytes.Clone(whole)))
			if c.noIndex {
				removeFile(t, fs, names[1]+indexSuffix)
			}
			for range 2 {
				l := mustOpen(t, options(fs))
				wantNine(t, l, c.lost...)
				fs = killed(t, l, fs)
			}
		})
	}
}

// The checkpoint of the last segment is damaged: the segment before says where it
// begins. If there is none before, nobody knows, and Open says so.
func TestDamagedLastCheckpoint(t *testing.T) {
	base, names := threeSegments(t)
	fs := crash(base)
	b := file(t, fs, names[2]+logSuffix)
	b[100] ^= 1
	setFile(t, fs, names[2]+logSuffix, b)
	l := mustOpen(t, options(fs))
	wantNine(t, l)
	if base := appendValues(t, l, "new"); base != 9 {
		t.Fatalf("next offset %d", base)
	}

	fs = vfs.NewCrashableMem()
	l = mustOpen(t, options(fs))
	appendValues(t, l, "a")
	fs = killed(t, l, fs)
	b = file(t, fs, firstLog)
	b[100] ^= 1
	setFile(t, fs, firstLog, b)
	var corrupt *record.CorruptError
	if _, err := Open(context.Background(), options(fs)); !errors.As(err, &corrupt) || !strings.HasSuffix(corrupt.Object, logSuffix) {
		t.Fatalf("open: %v", err)
	}
}

// Unfinished files of earlier writes go; the files beside the segments may be
// garbage.
func TestLeftovers(t *testing.T) {
	base, names := threeSegments(t)
	for _, junk := range [][]byte{nil, []byte("garbage"), make([]byte, 200)} {
		fs := crash(base)
		temps := []string{names[0] + logSuffix + tempSuffix, names[1] + indexSuffix + tempSuffix, stopFile + tempSuffix, truncateFile + tempSuffix}
		for _, name := range append(temps, stopFile, truncateFile) {
			setFile(t, fs, name, junk)
		}
		l := mustOpen(t, options(fs))
		wantNine(t, l)
		for _, name := range append(temps, stopFile) {
			if exists(fs, name) {
				t.Errorf("%s is still there", name)
			}
		}
	}
}

// The same with a start that has moved, and nothing left: what was evicted is not
// said to be damaged.
func TestAllMissingAfterCleanStop(t *testing.T) {
	ctx := context.Background()
	for _, start := range []int64{0, 4, 7, 20} { // as the bucket may say
		fs, _ := threeSegments(t)
		l := mustOpen(t, options(fs))
		must(t, l.TrimPrefix(ctx, 6))
		must(t, l.Close())
		for _, name := range listing(t, fs) {
			if strings.HasSuffix(name, logSuffix) {
				removeFile(t, fs, name)
			}
		}
		o := options(fs)
		o.StartKafka = start
		l = mustOpen(t, o)
		wantErr(t, l, 5, ErrBelowStart)
		for off := max(6, start); off < 9; off++ {
			wantErr(t, l, off, record.ErrCorrupt)
		}
		if base := appendValues(t, l, "new"); base != max(9, start) {
			t.Fatalf("start %d: next offset %d", start, base)
		}
	}
}
