package manifest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"keyhole/manifest"
	"keyhole/record"
)

func TestClaimMakesTheFirstManifest(t *testing.T) {
	s := &memStore{conditional: true}
	h := manifest.Open(options(s, newFS(t), "a"))
	if h.Current().Known() {
		t.Fatal("a manifest is known before anyone was asked")
	}
	if s.loads != 0 {
		t.Fatal("Open asked the bucket")
	}
	if err := h.Commit(t.Context(), adding(segment(0, 9, "x"))); !errors.Is(err, manifest.ErrNotClaimed) {
		t.Fatalf("commit before claim: %v", err)
	}
	epoch, err := h.Claim(t.Context(), true)
	if err != nil || epoch != 1001 { // epochs are left out by a disk that takes over, always
		t.Fatalf("claimed %d, %v", epoch, err)
	}
	wantRanges(t, h.Current())
	m := s.stored(t)
	if m.Writer != "a" || m.Epoch != 1001 || m.Generation != 1 || m.TopicID != "id1" {
		t.Fatalf("stored %+v", m)
	}
}

func TestCommitIsKeptOverReopen(t *testing.T) {
	s, fs := &memStore{conditional: true}, newFS(t)
	h := manifest.Open(options(s, fs, "a"))
	if _, err := h.Claim(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	before := h.Current()
	if err := h.Commit(t.Context(), adding(segment(0, 9, "x"), segment(10, 19, "y"))); err != nil {
		t.Fatal(err)
	}
	wantRanges(t, before) // a snapshot does not change
	wantRanges(t, h.Current(), [2]int64{0, 9}, [2]int64{10, 19})
	wantRanges(t, s.stored(t), [2]int64{0, 9}, [2]int64{10, 19})

	loads := s.loads
	again := manifest.Open(options(s, fs, "a"))
	wantRanges(t, again.Current(), [2]int64{0, 9}, [2]int64{10, 19})
	if s.loads != loads {
		t.Error("Open asked the bucket")
	}
	epoch, err := again.Claim(t.Context(), false)
	if err != nil || epoch != 1002 {
		t.Fatalf("claimed %d, %v", epoch, err)
	}
	wantRanges(t, again.Current(), [2]int64{0, 9}, [2]int64{10, 19})
}

// case 7-29: whatever is wrong with the local copy, the bucket's is read, and
// what was damaged never gets there.
func TestDamagedLocalCopyIsReadAgainFromTheBucket(t *testing.T) {
	s := &memStore{conditional: true}
	h := claimed(t, s, "a")
	if err := h.Commit(t.Context(), adding(segment(0, 9, "x"))); err != nil {
		t.Fatal(err)
	}
	good := append([]byte(nil), s.data...)
	flipped := append([]byte(nil), good...)
	flipped[len(flipped)/2] ^= 0x10
	for name, local := range map[string][]byte{
		"empty":         {},
		"zeros":         make([]byte, 500),
		"cut":           good[:len(good)/2],
		"flipped":       flipped,
		"other topic":   []byte(strings.Replace(string(good), "orders", "ordera", 1)),
		"a directory":   nil,
		"not there yet": nil,
	} {
		fs := newFS(t)
		var err error
		switch name {
		case "a directory":
			err = fs.MkdirAll("p/manifest.json", 0o755)
		case "not there yet":
		default:
			err = manifest.WriteFile(fs, "p/manifest.json", local)
		}
		if err != nil {
			t.Fatal(err)
		}
		again := manifest.Open(options(s, fs, "a"))
		if again.Current().Known() {
			t.Errorf("%s: a manifest is known: %+v", name, again.Current())
		}
		s.failLoad = errReply
		replaces := s.replaces
		if _, err := again.Claim(t.Context(), false); !errors.Is(err, errReply) {
			t.Errorf("%s: claim with the bucket away: %v", name, err)
		}
		if again.Current().Known() || s.replaces != replaces {
			t.Errorf("%s: an outage was taken for an answer", name)
		}
		s.failLoad = nil
		if name == "a directory" {
			continue // it cannot be replaced by a file
		}
		if _, err := again.Claim(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		wantRanges(t, again.Current(), [2]int64{0, 9})
		wantRanges(t, s.stored(t), [2]int64{0, 9})
		wantRanges(t, manifest.Open(options(s, fs, "a")).Current(), [2]int64{0, 9})
	}
}

// case 4-17: only a plain "absent" is absent.
func TestRefusalIsNotAnEmptyBucket(t *testing.T) {
	s := &memStore{conditional: true, failLoad: errors.New("access denied")}
	h := manifest.Open(options(s, newFS(t), "a"))
	if _, err := h.Claim(t.Context(), true); !errors.Is(err, s.failLoad) {
		t.Fatalf("claim: %v", err)
	}
	s.failLoad = nil
	s.data = []byte("<html>captive portal</html>")
	if _, err := h.Claim(t.Context(), true); !errors.Is(err, record.ErrCorrupt) {
		t.Fatalf("claim over garbage: %v", err)
	}
	if s.replaces != 0 || h.Current().Known() {
		t.Fatal("something was written or believed")
	}
}

func TestManifestOfAnotherTopicIsRefused(t *testing.T) { // case 3-31
	s := &memStore{conditional: true}
	claimed(t, s, "a")
	o := options(s, newFS(t), "a")
	o.TopicID = "id2"
	if _, err := manifest.Open(o).Claim(t.Context(), true); !errors.Is(err, record.ErrCorrupt) {
		t.Fatalf("claim: %v", err)
	}
}

// A bucket that lost what the local copy proves it had is not built upon.
func TestBucketThatWentBackIsRefused(t *testing.T) {
	s, fs := &memStore{conditional: true}, newFS(t)
	h := manifest.Open(options(s, fs, "a"))
	if _, err := h.Claim(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	old := append([]byte(nil), s.data...)
	if err := h.Commit(t.Context(), adding(segment(0, 9, "x"))); err != nil {
		t.Fatal(err)
	}
	replaces := s.replaces
	for name, data := range map[string][]byte{"gone": nil, "older": old} {
		s.data = data
		again := manifest.Open(options(s, fs, "a"))
		if _, err := again.Claim(t.Context(), false); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: claim: %v", name, err)
		}
		wantRanges(t, again.Current(), [2]int64{0, 9})
	}
	s.data = nil
	if err := h.Commit(t.Context(), adding(segment(10, 19, "y"))); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("commit with the manifest gone: %v", err)
	}
	if s.data != nil || s.replaces > replaces+1 {
		t.Error("a lost manifest was replaced")
	}
}

// case 7-08: a write whose reply was lost is recognised, and nothing is listed
// twice, whichever way the loss shows.
func TestLostReplyIsRecognised(t *testing.T) {
	for _, conditional := range []bool{true, false} {
		for _, l := range []loss{replyLost, replyConflict, requestLost} {
			t.Run(fmt.Sprintf("conditional=%t/%d", conditional, l), func(t *testing.T) {
				s := &memStore{conditional: conditional}
				h := claimed(t, s, "a")
				for i, seg := range []manifest.Segment{segment(0, 9, "x"), segment(10, 19, "y")} {
					if i == 1 {
						s.lose = l
					}
					err := h.Commit(t.Context(), adding(seg))
					if i == 1 && l != replyConflict {
						if !errors.Is(err, errReply) {
							t.Fatalf("commit: %v", err)
						}
						wantRanges(t, h.Current(), [2]int64{0, 9}) // case 7-09
						err = h.Commit(t.Context(), adding(seg))
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				wantRanges(t, h.Current(), [2]int64{0, 9}, [2]int64{10, 19})
				wantRanges(t, s.stored(t), [2]int64{0, 9}, [2]int64{10, 19})
				if err := h.Commit(t.Context(), adding(segment(20, 29, "z"))); err != nil {
					t.Fatal(err)
				}
				wantRanges(t, s.stored(t), [2]int64{0, 9}, [2]int64{10, 19}, [2]int64{20, 29})
			})
		}
	}
}

// An attempt of which nothing was heard may land before a different one.
func TestEarlierLostWriteIsBuiltUpon(t *testing.T) {
	s := &memStore{conditional: true}
	h := claimed(t, s, "a")
	s.lose = replyLost
	if err := h.Commit(t.Context(), adding(segment(0, 9, "x"))); !errors.Is(err, errReply) {
		t.Fatal(err)
	}
	if err := h.Commit(t.Context(), adding(segment(10, 19, "y"))); err != nil {
		t.Fatal(err)
	}
	wantRanges(t, s.stored(t), [2]int64{0, 9}, [2]int64{10, 19})
}

func TestLostReplyOfAClaim(t *testing.T) {
	for _, l := range []loss{replyLost, replyConflict, requestLost} {
		s := &memStore{conditional: true, lose: l}
		h := manifest.Open(options(s, newFS(t), "a"))
		epoch, err := h.Claim(t.Context(), true)
		if l != replyConflict {
			if !errors.Is(err, errReply) {
				t.Fatalf("%d: %v", l, err)
			}
			if err := h.Commit(t.Context(), adding(segment(0, 9, "x"))); !errors.Is(err, manifest.ErrNotClaimed) {
				t.Fatalf("%d: commit on half a claim: %v", l, err)
			}
			epoch, err = h.Claim(t.Context(), true)
		}
		if err != nil || epoch != s.stored(t).Epoch {
			t.Fatalf("%d: claimed %d, %v", l, epoch, err)
		}
		if err := h.Commit(t.Context(), adding(segment(0, 9, "x"))); err != nil {
			t.Fatal(err)
		}
	}
}

// cases 7-17, 7-18: the writer that was paused meets the newer one's epoch,
// with and without conditions at the store.
func TestOlderWriterIsFenced(t *testing.T) {
	for _, conditional := range []bool{true, false} {
		s := &memStore{conditional: conditional}
		a := claimed(t, s, "a")
		if err := a.Commit(t.Context(), adding(segment(0, 9, "x"))); err != nil {
			t.Fatal(err)
		}
		b := claimed(t, s, "b")
		if err := b.Commit(t.Context(), adding(segment(10, 19, "b1"))); err != nil {
			t.Fatal(err)
		}
		if err := a.Commit(t.Context(), adding(segment(10, 15, "a1"))); !errors.Is(err, manifest.ErrFenced) {
			t.Fatalf("conditional=%t: older writer: %v", conditional, err)
		}
		loads := s.loads
		if err := a.Commit(t.Context(), adding(segment(10, 15, "a1"))); !errors.Is(err, manifest.ErrFenced) || s.loads != loads {
			t.Errorf("fencing did not stick: %v", err)
		}
		if _, err := a.Claim(t.Context(), true); !errors.Is(err, manifest.ErrFenced) {
			t.Errorf("claim after fencing: %v", err)
		}
		if !a.Fenced() || b.Fenced() || a.SingleWriter() == conditional {
			t.Errorf("fenced %t %t, single writer %t", a.Fenced(), b.Fenced(), a.SingleWriter())
		}
		if err := b.Commit(t.Context(), adding(segment(20, 29, "b2"))); err != nil {
			t.Fatal(err)
		}
		wantRanges(t, s.stored(t), [2]int64{0, 9}, [2]int64{10, 19}, [2]int64{20, 29})
	}
}

// A writer that does not write finds out by looking. Cases 7-17, 7-18.
func TestLook(t *testing.T) {
	for _, conditional := range []bool{true, false} {
		s := &memStore{conditional: conditional}
		idle := manifest.Open(options(s, newFS(t), "idle"))
		if err := idle.Look(t.Context()); err != nil || s.loads != 0 {
			t.Fatalf("without a claim: %v, %d loads", err, s.loads)
		}
		a := claimed(t, s, "a")
		if err := a.Commit(t.Context(), adding(segment(0, 9, "x"))); err != nil {
			t.Fatal(err)
		}
		replaces := s.replaces
		if err := a.Look(t.Context()); err != nil {
			t.Fatalf("nothing has changed: %v", err)
		}
		s.failLoad = errReply
		if err := a.Look(t.Context()); !errors.Is(err, errReply) || a.Fenced() {
			t.Fatalf("the store does not answer: %v, fenced %t", err, a.Fenced())
		}
		s.failLoad = nil
		if s.replaces != replaces {
			t.Error("looking wrote")
		}
		b := claimed(t, s, "b")
		loads := s.loads
		for range 2 {
			if err := a.Look(t.Context()); !errors.Is(err, manifest.ErrFenced) || !a.Fenced() {
				t.Fatalf("conditional=%t: another writer has it: %v", conditional, err)
			}
		}
		if s.loads != loads+1 {
			t.Errorf("%d loads, want one: fencing sticks", s.loads-loads)
		}
		if err := b.Look(t.Context()); err != nil {
			t.Errorf("the newer writer: %v", err)
		}
		s.data = nil
		if err := b.Look(t.Context()); !errors.Is(err, record.ErrCorrupt) || b.Fenced() {
			t.Errorf("the manifest is gone: %v", err)
		}
	}
}

// An own write whose reply was lost is not somebody else's.
func TestLookAfterALostReply(t *testing.T) {
	s := &memStore{conditional: true}
	a := claimed(t, s, "a")
	s.lose = replyLost
	if err := a.Commit(t.Context(), adding(segment(0, 9, "x"))); !errors.Is(err, errReply) {
		t.Fatal(err)
	}
	if err := a.Look(t.Context()); err != nil || a.Fenced() {
		t.Fatalf("%v, fenced %t", err, a.Fenced())
	}
	wantRanges(t, a.Current(), [2]int64{0, 9})
}

// A copied disk gives two processes of one name. Sessions tell them apart.
func TestCloneOfAWriterIsFenced(t *testing.T) {
	for _, conditional := range []bool{true, false} {
		s := &memStore{conditional: conditional}
		first, second := claimed(t, s, "a"), claimed(t, s, "a")
		if err := first.Commit(t.Context(), adding(segment(0, 9, "x"))); !errors.Is(err, manifest.ErrFenced) {
			t.Errorf("conditional=%t: %v", conditional, err)
		}
		if err := second.Commit(t.Context(), adding(segment(0, 9, "y"))); err != nil {
			t.Error(err)
		}
	}
}

// Two writers claim at the same moment: both see the same manifest, one wins.
func TestClaimsThatRace(t *testing.T) {
	s := &memStore{conditional: true}
	var b *manifest.Handle
	s.before = func(s *memStore) { b = claimed(t, s, "b") }
	a := manifest.Open(options(s, newFS(t), "a"))
	epoch, err := a.Claim(t.Context(), true)
	if err != nil || epoch != 2002 {
		t.Fatalf("claimed %d, %v", epoch, err)
	}
	if err := b.Commit(t.Context(), adding(segment(0, 9, "x"))); !errors.Is(err, manifest.ErrFenced) {
		t.Fatalf("loser: %v", err)
	}
	if err := a.Commit(t.Context(), adding(segment(0, 9, "y"))); err != nil {
		t.Fatal(err)
	}
}

func TestDiskOfAnOlderEpochDoesNotTakeOver(t *testing.T) { // case 7-18
	s, fs := &memStore{conditional: true}, newFS(t)
	a := manifest.Open(options(s, fs, "a"))
	if _, err := a.Claim(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	b := claimed(t, s, "b")
	if err := b.Commit(t.Context(), adding(segment(0, 9, "x"))); err != nil {
		t.Fatal(err)
	}
	again := manifest.Open(options(s, fs, "a"))
	for range 2 { // asking again makes it no less so
		if _, err := again.Claim(t.Context(), false); !errors.Is(err, manifest.ErrSuperseded) {
			t.Fatalf("claim: %v", err)
		}
		wantRanges(t, again.Current(), [2]int64{0, 9})
	}
	// Nor does the loss of the local copy.
	if _, err := manifest.Open(options(s, newFS(t), "a")).Claim(t.Context(), false); !errors.Is(err, manifest.ErrSuperseded) {
		t.Fatalf("claim without a local copy: %v", err)
	}
	if b.Commit(t.Context(), adding(segment(10, 19, "y"))) != nil {
		t.Fatal("the newer writer was disturbed")
	}
	// With nothing on its disk that the bucket lacks it may.
	if epoch, err := again.Claim(t.Context(), true); err != nil || epoch != 3003 {
		t.Fatalf("claimed %d, %v", epoch, err)
	}
	wantRanges(t, again.Current(), [2]int64{0, 9}, [2]int64{10, 19})
}

// On a store without conditions an older writer's late write can land on top.
// The newer writer sees it before its next write and puts its own list back.
func TestOverwrittenManifestIsPutBack(t *testing.T) {
	s := &memStore{}
	claimed(t, s, "a")
	stale := append([]byte(nil), s.data...)
	b := claimed(t, s, "b")
	if err := b.Commit(t.Context(), adding(segment(0, 9, "x"))); err != nil {
		t.Fatal(err)
	}
	s.data = stale
	if err := b.Commit(t.Context(), adding(segment(10, 19, "y"))); err != nil {
		t.Fatal(err)
	}
	wantRanges(t, s.stored(t), [2]int64{0, 9}, [2]int64{10, 19})
	if m := s.stored(t); m.Writer != "b" || m.Epoch != 2002 {
		t.Errorf("stored %+v", m)
	}
}

// case 7-20: workers of one process take turns, nothing is lost.
func TestCommitsOfOneProcessTakeTurns(t *testing.T) {
	s := &memStore{conditional: true}
	h := claimed(t, s, "a")
	const workers = 8
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			err := h.Commit(t.Context(), func(m *manifest.Manifest) (*manifest.Manifest, error) {
				return m.With(segment(m.Next(), m.Next()+9, fmt.Sprint("w", w)))
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	m := s.stored(t)
	if len(m.Segments) != workers || m.Next() != workers*10 || m.Generation != 1+workers {
		t.Fatalf("stored %+v", m)
	}
	if s.loads != 1 {
		t.Errorf("%d loads, want the claim's only", s.loads)
	}
}

func TestWaitingForTheTurnEndsWithItsContext(t *testing.T) {
	s := &memStore{conditional: true}
	h := claimed(t, s, "a")
	ctx, cancel := context.WithCancel(t.Context())
	err := h.Commit(t.Context(), func(m *manifest.Manifest) (*manifest.Manifest, error) {
		cancel()
		if err := h.Commit(ctx, adding(segment(0, 9, "x"))); !errors.Is(err, context.Canceled) {
			t.Errorf("waiting commit: %v", err)
		}
		return m, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestErrorOfAnEditChangesNothing(t *testing.T) {
	s := &memStore{conditional: true}
	h := claimed(t, s, "a")
	replaces := s.replaces
	want := errors.New("no")
	if err := h.Commit(t.Context(), func(*manifest.Manifest) (*manifest.Manifest, error) { return nil, want }); !errors.Is(err, want) {
		t.Errorf("commit: %v", err)
	}
	if err := h.Commit(t.Context(), adding()); err != nil {
		t.Errorf("empty commit: %v", err)
	}
	if s.replaces != replaces {
		t.Error("something was written")
	}
}
