package locallog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/record"
)

// Random damage of random files, with every kind of knowledge about where the log
// ended: no read ever gives another record's value, no offset below the high
// watermark is said not to exist, and what is appended afterwards stays.
func TestRandomDamage(t *testing.T) {
	base, _ := threeSegments(t)
	l := mustOpen(t, options(base))
	for i := 3; i < 12; i++ { // makes the last segment longer
		mustAppend(t, l, batchOf(t, fmt.Sprint("a", i)), batchOf(t, fmt.Sprint("b", i), fmt.Sprint("c", i)))
		if i%3 == 0 {
			must(t, l.Note(context.Background(), Note{ManifestGeneration: int64(i)}))
		}
	}
	end := l.State()
	killedFS := killed(t, l, base)
	must(t, l.Close())
	stoppedFS := crash(base)
	names := slices.DeleteFunc(listing(t, stoppedFS), func(s string) bool { return s == stopFile })
	slices.Sort(names)

	for _, seed := range []uint64{1, 2, 3, uint64(time.Now().UnixNano())} {
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 0))
		for round := range 100 {
			stopped := rng.IntN(2) == 0
			fs := crash(killedFS)
			if stopped {
				fs = crash(stoppedFS)
			}
			var hit []string
			for range 1 + rng.IntN(2) {
				name := names[rng.IntN(len(names))]
				hit = append(hit, name+": "+damage(t, rng, fs, name))
			}
			o := options(fs)
			if rng.IntN(2) == 0 {
				o.ProvenNextLog, o.ProvenNextKafka = end.NextLog, end.HighWatermark
			}
			what := fmt.Sprintf("seed %d round %d, stopped %v, proven %d, %s", seed, round, stopped, o.ProvenNextLog, strings.Join(hit, "; "))
			checkDamaged(t, o, what, end.HighWatermark, stopped)
		}
	}
}

// damage spoils a file and says how.
func damage(t *testing.T, rng *rand.Rand, fs vfs.FS, name string) string {
	if !exists(fs, name) {
		return "removed already"
	}
	b := bytes.Clone(file(t, fs, name))
	if len(b) == 0 {
		return "empty already"
	}
	from := rng.IntN(len(b))
	to := min(len(b), from+1+rng.IntN(300))
	switch rng.IntN(6) {
	case 0, 1:
		b[from] ^= 1 << rng.IntN(8)
		setFile(t, fs, name, b)
		return fmt.Sprint("bit flipped at ", from)
	case 2:
		for i := from; i < to; i++ {
			b[i] = byte(rng.Uint32())
		}
		setFile(t, fs, name, b)
		return fmt.Sprint("garbage from ", from, " to ", to)
	case 3:
		setFile(t, fs, name, b[:from])
		return fmt.Sprint("cut at ", from)
	case 4:
		// Bytes that go missing are not tried: what is left of one batch's base
		// offset and of the rest of another can be a sound batch, since Kafka's
		// CRC does not cover the base offset.
		setFile(t, fs, name, slices.Insert(b, from, bytes.Repeat([]byte{0xA5}, to-from)...))
		return fmt.Sprint("bytes put in at ", from)
	default:
		removeFile(t, fs, name)
		return "removed"
	}
}

func checkDamaged(t *testing.T, o Options, what string, next int64, stopped bool) {
	t.Helper()
	if files := listing(t, o.FS); !slices.ContainsFunc(files, func(s string) bool { return strings.HasSuffix(s, logSuffix) }) {
		return
	}
	l, err := Open(context.Background(), o)
	if err != nil {
		if !errors.Is(err, record.ErrCorrupt) {
			t.Fatalf("%s: open: %v", what, err)
		}
		return
	}
	defer l.Close()
	st := l.State()
	if st.HighWatermark < next && stopped {
		t.Fatalf("%s: log was stopped at %d and now ends at %d", what, next, st.HighWatermark)
	}
	if st.HighWatermark > next+1<<22 {
		t.Fatalf("%s: log ended at %d and now at %d", what, next, st.HighWatermark)
	}
	readable := map[int64]string{}
	for off := range min(st.HighWatermark, next+1000) {
		got, err := valueAt(l, off)
		switch want := string("abc"[off%3]) + fmt.Sprint(off/3); {
		case off >= next && errors.Is(err, record.ErrCorrupt):
		case err == nil && got == want && off < next:
			readable[off] = got
		case errors.Is(err, record.ErrCorrupt):
		default:
			t.Fatalf("%s: offset %d: %q, %v", what, off, got, err)
		}
	}
	if base := appendValues(t, l, "new"); base != st.HighWatermark {
		t.Fatalf("%s: appended at %d, high watermark was %d", what, base, st.HighWatermark)
	}
	must(t, l.Sync(context.Background()))
	o.FS = crash(o.FS.(*vfs.MemFS))
	again, err := Open(context.Background(), o)
	if err != nil {
		t.Fatalf("%s: open again: %v", what, err)
	}
	defer again.Close()
	wantValue(t, again, st.HighWatermark, "new")
	for off, want := range readable {
		// A damaged header may hide its neighbours, once the segment's index is
		// believed again, but it shows none of them wrongly.
		if got, err := valueAt(again, off); got != want && !errors.Is(err, record.ErrCorrupt) {
			t.Fatalf("%s: offset %d after the next start: %q, %v", what, off, got, err)
		}
	}
}

// The base offset of a batch stands outside of its checksum. In clean-stop, which
// is alone in its file, it must not be believed for that: the log would be taken
// for one that ended far behind its end.
func TestEveryBitOfCleanStop(t *testing.T) {
	base, _ := threeSegments(t)
	l := mustOpen(t, options(base))
	mustAppend(t, l, batchOf(t, "last"))
	want := l.State()
	must(t, l.Close())
	sound := file(t, base, stopFile)
	for bit := range 8 * len(sound) {
		fs := crash(base)
		bad := bytes.Clone(sound)
		bad[bit/8] ^= 1 << (bit % 8)
		setFile(t, fs, stopFile, bad)
		l := mustOpen(t, options(fs))
		got := l.State()
		got.Epoch = want.Epoch // a log that was not stopped cleanly begins another
		if got != want {
			t.Fatalf("bit %d of byte %d: %+v, want %+v", bit%8, bit/8, got, want)
		}
		for _, s := range l.Segments() {
			if s.Damaged {
				t.Fatalf("bit %d of byte %d: segment %d is called damaged", bit%8, bit/8, s.BaseLog)
			}
		}
		must(t, l.Close())
	}
}
