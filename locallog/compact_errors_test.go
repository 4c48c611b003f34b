package locallog

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/record"
)

// wantAsItWas wants the first segment of threeSegments to be untouched, and no
// temporary file.
func wantAsItWas(t testing.TB, l *Log, fs vfs.FS, name string, before []byte) {
	t.Helper()
	if !bytes.Equal(file(t, fs, name+logSuffix), before) {
		t.Error("the segment is not as it was")
	}
	for _, n := range listing(t, fs) {
		if strings.HasSuffix(n, tempSuffix) {
			t.Errorf("%s is still there", n)
		}
	}
	if l != nil {
		wantNine(t, l)
	}
}

func TestCompactRefuses(t *testing.T) {
	fs, names := threeSegments(t)
	l := mustOpen(t, options(fs))
	before := file(t, fs, names[0]+logSuffix)
	infos := l.Segments()
	mine := errors.New("mine")
	settled := 0
	settle := func(context.Context) error { settled++; return nil }
	if _, err := l.CompactSegment(t.Context(), 1, CompactOptions{}); !errors.Is(err, ErrNoSegment) {
		t.Errorf("no segment: %v", err)
	}
	if _, err := l.CompactSegment(t.Context(), infos[2].BaseLog, CompactOptions{}); !errors.Is(err, ErrActive) {
		t.Errorf("active segment: %v", err)
	}
	done, err := l.CompactSegment(t.Context(), 0, CompactOptions{Settle: settle})
	if err != nil || done.Swapped || done.Before != int64(len(before)) || done.After < done.Before || done.RecordsAfter != 3 || settled > 0 {
		t.Errorf("batches of their own, which is larger: %+v, %v, settled %d times", done, err, settled)
	}
	wantAsItWas(t, l, fs, names[0], before)
	fails := func([]byte, int64, bool) (bool, error) { return false, mine }
	if _, err := l.CompactSegment(t.Context(), 0, CompactOptions{Keep: fails, Settle: settle}); !errors.Is(err, mine) || settled > 0 {
		t.Errorf("error of Keep: %v, settled %d times", err, settled)
	}
	unsettled := func(context.Context) error { return mine }
	if _, err := l.CompactSegment(t.Context(), 0, CompactOptions{Keep: keepOnly(nil), Settle: unsettled}); !errors.Is(err, mine) {
		t.Errorf("error of Settle: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	gone := func(context.Context) error { cancel(); return nil }
	if _, err := l.CompactSegment(ctx, 0, CompactOptions{Keep: keepOnly(nil), Settle: gone}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	wantAsItWas(t, l, fs, names[0], before)
	must(t, l.Close())
	if _, err := l.CompactSegment(t.Context(), 0, CompactOptions{}); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// Between the decision and the swap the log may lose what the decision was based
// on, or the segment itself.
func TestCompactOvertaken(t *testing.T) {
	fs, names := threeSegments(t)
	l := mustOpen(t, options(fs))
	before := file(t, fs, names[0]+logSuffix)
	truncate := func(ctx context.Context) error { return l.TruncateSuffix(ctx, 8) }
	if _, err := l.CompactSegment(t.Context(), 0, CompactOptions{Keep: keepOnly(nil), Settle: truncate}); !errors.Is(err, ErrTruncated) {
		t.Errorf("truncated meanwhile: %v", err)
	}
	appendValues(t, l, "c2")
	wantAsItWas(t, l, fs, names[0], before)
	trim := func(ctx context.Context) error { return l.TrimPrefix(ctx, 3) }
	if _, err := l.CompactSegment(t.Context(), 0, CompactOptions{Keep: keepOnly(nil), Settle: trim}); !errors.Is(err, ErrNoSegment) {
		t.Errorf("trimmed meanwhile: %v", err)
	}
	for _, name := range listing(t, fs) {
		if strings.HasPrefix(name, names[0]) {
			t.Errorf("%s is still there", name)
		}
	}
	wantErr(t, l, 2, ErrBelowStart)
	wantValue(t, l, 3, "a1")
}

// What Settle does before the swap is what a crash after it can count on: the new
// file is whole by then and the old one is still in place.
func TestCompactSettles(t *testing.T) {
	fs, names := threeSegments(t)
	var logs bytes.Buffer
	o := options(fs)
	o.Logger = slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelWarn}))
	l := mustOpen(t, o)
	before := file(t, fs, names[0]+logSuffix)
	old := l.view.Load().sealed[0]
	var whole []byte
	_, err := l.CompactSegment(t.Context(), 0, CompactOptions{Keep: keepOnly(map[int64]bool{1: true}), Settle: func(ctx context.Context) error {
		whole = file(t, fs, names[0]+compactSuffix)
		if !bytes.Equal(file(t, fs, names[0]+logSuffix), before) {
			t.Error("the segment is not as it was")
		}
		appendValues(t, l, "the log takes writes")
		return l.Sync(ctx)
	}})
	must(t, err)
	if !bytes.Equal(file(t, crash(fs), names[0]+logSuffix), whole) {
		t.Error("what is in place, durably, is not what was there when Settle was called")
	}
	if !exists(crash(fs), names[0]+indexSuffix) {
		t.Error("the sparse index is not durable")
	}
	if old.narrow() || old.damaged.Load() || logs.Len() > 0 {
		t.Errorf("the new file was taken for the damaged old one: %s", logs.String())
	}
	wantValue(t, l, 1, "b0")
}

// Close ends a compaction and waits for it; another one that waits for its turn
// ends too.
func TestCloseEndsCompaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs, names := threeSegments(t)
		l := mustOpen(t, options(fs))
		before := file(t, fs, names[0]+logSuffix)
		second := l.Segments()[1].BaseLog
		asked, release := make(chan struct{}), make(chan struct{})
		results, closed := make(chan error, 2), make(chan error, 1)
		go func() {
			_, err := l.CompactSegment(context.Background(), 0, CompactOptions{Keep: keepOnly(nil), Settle: func(ctx context.Context) error {
				close(asked)
				<-ctx.Done() // by Close
				<-release
				return l.Sync(ctx)
			}})
			results <- err
		}()
		<-asked
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := l.CompactSegment(ctx, second, CompactOptions{}); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled while it waits: %v", err)
		}
		go func() {
			_, err := l.CompactSegment(context.Background(), second, CompactOptions{Keep: keepOnly(nil)})
			results <- err
		}()
		go func() { closed <- l.Close() }()
		synctest.Wait()
		if len(closed) > 0 || len(results) != 1 {
			t.Errorf("a compaction still runs: Close has returned %d times, %d compactions have ended", len(closed), len(results))
		}
		close(release)
		for range 2 {
			if err := <-results; !errors.Is(err, ErrClosed) {
				t.Errorf("while the log is closed: %v", err)
			}
		}
		must(t, <-closed)
		wantAsItWas(t, mustOpen(t, options(fs)), fs, names[0], before)
	})
}

// A batch whose CRC does not hold is found on the way; the segment stays and is
// known to be damaged.
func TestCompactFindsDamage(t *testing.T) {
	base, names := threeSegments(t)
	at := batchesIn(t, file(t, base, names[0]+logSuffix))
	for _, pos := range []int{at[1] + 70, at[3] + 70, at[3]} { // a record, the note, all of the note
		fs := crash(base)
		b := file(t, fs, names[0]+logSuffix)
		if pos == at[3] { // it is sound, but says what is not so
			n, err := parseNotice(b[pos : pos+noticeSize])
			must(t, err)
			n.nextKafka++
			other, err := n.appendTo(nil)
			must(t, err)
			copy(b[pos:], other)
		} else {
			b[pos] ^= 1
		}
		setFile(t, fs, names[0]+logSuffix, b)
		l := mustOpen(t, options(fs))
		if l.Segments()[0].Damaged {
			t.Fatal("known too early for this test")
		}
		var corrupt *record.CorruptError
		_, err := l.CompactSegment(t.Context(), 0, CompactOptions{Keep: keepOnly(nil)})
		if !errors.As(err, &corrupt) || corrupt.Object != names[0]+logSuffix || corrupt.Position < int64(pos-70) || corrupt.Position > int64(pos) {
			t.Errorf("damage at byte %d: %v", pos, err)
		}
		if !l.Segments()[0].Damaged {
			t.Error("damage was found and is not known")
		}
		wantAsItWas(t, nil, fs, names[0], b)
	}
}

// A sparse index whose checksum holds and that leads astray must not make Keep
// judge other records than those that are there.
func TestCompactCountsItself(t *testing.T) {
	fs, _ := threeSegments(t)
	l := mustOpen(t, options(fs))
	s := l.view.Load().sealed[0]
	e, err := s.extent()
	must(t, err)
	var wrong table
	for i := range e.t.len() {
		at := e.t.at(i)
		if i > 0 {
			at.kafka = 3
		}
		wrong = wrong.append(at)
	}
	s.writeIndex(wrong)
	must(t, l.Close())
	l = mustOpen(t, options(fs))
	var asked []int64
	_, err = l.CompactSegment(t.Context(), 0, CompactOptions{Keep: func(_ []byte, off int64, _ bool) (bool, error) {
		asked = append(asked, off)
		return true, nil
	}})
	if len(asked) != 3 || asked[0] != 0 || asked[1] != 1 || asked[2] != 2 {
		t.Errorf("asked about %v (%v)", asked, err)
	}
}
