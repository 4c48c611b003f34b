package manifest_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"keyhole/manifest"
	"keyhole/record"
)

// follows calls Follow and checks what it says.
func follows(t testing.TB, h *manifest.Handle, want bool) {
	t.Helper()
	if changed, err := h.Follow(t.Context()); err != nil || changed != want {
		t.Fatalf("changed %t, %v; want %t", changed, err, want)
	}
}

func mustCommit(t testing.TB, h *manifest.Handle, segs ...manifest.Segment) {
	t.Helper()
	if err := h.Commit(t.Context(), adding(segs...)); err != nil {
		t.Fatal(err)
	}
}

func TestFollowSeesWhatTheWriterCommits(t *testing.T) {
	s, fs := &memStore{conditional: true}, newFS(t)
	r := manifest.Open(options(s, fs, "replica"))
	follows(t, r, false) // a topic that was just created
	if r.Current().Known() {
		t.Fatal("a manifest is known before there is one")
	}
	w := claimed(t, s, "w")
	replaces := s.replaces
	follows(t, r, true)
	mustCommit(t, w, segment(0, 9, "x"))
	before := r.Current()
	follows(t, r, true)
	wantRanges(t, before)
	wantRanges(t, r.Current(), [2]int64{0, 9})
	follows(t, r, false)

	// It starts warm, and follows from there.
	s.failLoad = errReply
	again := manifest.Open(options(s, fs, "replica"))
	wantRanges(t, again.Current(), [2]int64{0, 9})
	if changed, err := again.Follow(t.Context()); changed || !errors.Is(err, errReply) {
		t.Fatalf("with the bucket away: %t, %v", changed, err)
	}
	s.failLoad = nil
	follows(t, again, false)
	mustCommit(t, w, segment(10, 19, "y"))
	follows(t, again, true)
	wantRanges(t, again.Current(), [2]int64{0, 9}, [2]int64{10, 19})

	// Another writer takes over, and compaction and retention go on.
	w2 := claimed(t, s, "w2")
	follows(t, again, true)
	at := time.UnixMilli(1_700_000_000_000)
	err := w2.Commit(t.Context(), func(m *manifest.Manifest) (*manifest.Manifest, error) {
		m, err := m.With(epochSegment(20, 29, "z", w2.Current().Epoch))
		if err != nil {
			return nil, err
		}
		if m, err = m.Replace(m.Segments[1:2], nil, 20, at); err != nil {
			return nil, err
		}
		return m.Truncate(10, at)
	})
	if err != nil {
		t.Fatal(err)
	}
	follows(t, again, true)
	wantRanges(t, again.Current(), [2]int64{20, 29})
	if s.replaces != replaces+4 {
		t.Errorf("%d replacements by two writers", s.replaces-replaces)
	}
}

// Nothing is asked for twice: once the ETag is known, an unchanged manifest moves
// no bytes.
func TestFollowLoadsOnlyWhatHasChanged(t *testing.T) {
	s := &memStore{conditional: true}
	w := claimed(t, s, "w")
	r := manifest.Open(options(s, newFS(t), "replica"))
	follows(t, r, true)
	moved := s.moved
	for range 3 {
		follows(t, r, false)
	}
	if s.moved != moved {
		t.Errorf("%d bytes moved for an unchanged manifest", s.moved-moved)
	}
	mustCommit(t, w, segment(0, 9, "x"))
	follows(t, r, true)
	if s.moved == moved {
		t.Error("no bytes moved for a changed one")
	}
}

func TestFollowDoesNotGoBack(t *testing.T) {
	s, fs := &memStore{conditional: true}, newFS(t)
	w := claimed(t, s, "w")
	mustCommit(t, w, segment(0, 9, "x"))
	old := s.data
	mustCommit(t, w, epochSegment(10, 19, "y", 1001))
	good := s.data
	m := s.stored(t)
	made := func(edit func(m *manifest.Manifest)) []byte {
		next := *m
		next.Generation += 2
		next.Epoch += 1000
		next.Session = "other"
		edit(&next)
		return encode(t, &next)
	}
	other := options(s, fs, "w")
	other.TopicID = "id2"
	for _, tc := range []struct {
		name string
		data []byte
		gone bool
	}{
		{name: "gone", gone: true},
		{name: "older generation", data: old},
		{name: "same generation of another write", data: made(func(m *manifest.Manifest) { m.Generation -= 2; m.Epoch -= 1000 })},
		{name: "older epoch", data: made(func(m *manifest.Manifest) { m.Epoch = 1000 })},
		{name: "fewer offsets", data: made(func(m *manifest.Manifest) {
			m.NextOffset, m.Segments, m.LeaderEpochs = 10, m.Segments[:1], m.LeaderEpochs[:1]
		})},
		{name: "fewer offsets of one epoch", data: made(func(m *manifest.Manifest) {
			m.NextOffset, m.Segments = 15, []manifest.Segment{m.Segments[0], epochSegment(10, 14, "y", 1001)}
		})},
		{name: "same offsets given again", data: made(func(m *manifest.Manifest) {
			m.LeaderEpochs = []manifest.EpochStart{m.LeaderEpochs[0], {Epoch: 2001, StartOffset: 10}}
		})},
		{name: "offsets given again within an epoch", data: made(func(m *manifest.Manifest) {
			m.LeaderEpochs = append(m.LeaderEpochs[:2:2], manifest.EpochStart{Epoch: 2001, StartOffset: 15})
		})},
		{name: "damaged", data: []byte("<html>sign in</html>")},
		{name: "of another topic", data: made(func(m *manifest.Manifest) { m.TopicID = "id2" })},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fs := newFS(t)
			s := &memStore{conditional: true, data: good, version: 1}
			r := manifest.Open(options(s, fs, "replica"))
			follows(t, r, true)
			set := func(data []byte) {
				s.data = data
				s.version++
			}
			set(tc.data)
			warm := manifest.Open(options(s, fs, "replica"))
			for _, h := range []*manifest.Handle{r, r, warm, warm} { // it is no better the second time
				changed, err := h.Follow(t.Context())
				if changed || !errors.Is(err, record.ErrCorrupt) || errors.Is(err, manifest.ErrAbsent) != tc.gone {
					t.Fatalf("changed %t, %v", changed, err)
				}
				if !strings.Contains(err.Error(), "orders/id1/3/manifest.json") {
					t.Errorf("error does not name the object: %v", err)
				}
				wantRanges(t, h.Current(), [2]int64{0, 9}, [2]int64{10, 19})
			}
			// Whoever puts it right is followed again.
			next, err := m.With(segment(20, 29, "z"))
			if err != nil {
				t.Fatal(err)
			}
			doc := *next
			doc.Generation++
			doc.Commit++
			set(encode(t, &doc))
			follows(t, r, true)
			wantRanges(t, r.Current(), [2]int64{0, 9}, [2]int64{10, 19}, [2]int64{20, 29})
			if s.replaces != 0 {
				t.Error("something was written to the bucket")
			}
		})
	}
}

// A start or a horizon that sinks is a bucket that went back as well.
func TestFollowDoesNotUndoRetention(t *testing.T) {
	s := &memStore{conditional: true}
	w := claimed(t, s, "w")
	mustCommit(t, w, segment(0, 9, "x"), segment(10, 19, "y"))
	full := *s.stored(t)
	at := time.UnixMilli(1)
	for name, edit := range map[string]func(m *manifest.Manifest) (*manifest.Manifest, error){
		"start":   func(m *manifest.Manifest) (*manifest.Manifest, error) { return m.Truncate(10, at) },
		"horizon": func(m *manifest.Manifest) (*manifest.Manifest, error) { return m.Replace(m.Segments[:1], nil, 5, at) },
	} {
		s := &memStore{conditional: true, version: 1}
		edited, err := edit(&full)
		if err != nil {
			t.Fatal(err)
		}
		s.data = encode(t, edited)
		r := manifest.Open(options(s, newFS(t), "replica"))
		follows(t, r, true)
		back := full
		back.Generation += 5
		s.data = encode(t, &back)
		s.version++
		if changed, err := r.Follow(t.Context()); changed || !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: changed %t, %v", name, changed, err)
		}
	}
}

// What a replica has read on a writer's disk is no proof that the disk has had the
// partition.
func TestFollowingIsNoClaim(t *testing.T) {
	s, fs := &memStore{conditional: true}, newFS(t)
	a := manifest.Open(options(s, fs, "a"))
	if _, err := a.Claim(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Follow(t.Context()); !errors.Is(err, manifest.ErrFollows) {
		t.Fatalf("a writer follows: %v", err)
	}
	b := claimed(t, s, "b")
	mustCommit(t, b, segment(0, 9, "x"))

	replica := manifest.Open(options(s, fs, "a"))
	follows(t, replica, true)
	if err := replica.Commit(t.Context(), adding(segment(10, 19, "y"))); !errors.Is(err, manifest.ErrNotClaimed) {
		t.Fatalf("a replica commits: %v", err)
	}
	again := manifest.Open(options(s, fs, "a"))
	wantRanges(t, again.Current(), [2]int64{0, 9})
	if _, err := again.Claim(t.Context(), false); !errors.Is(err, manifest.ErrSuperseded) {
		t.Fatalf("claim: %v", err)
	}
	mustCommit(t, b, segment(10, 19, "y")) // and is not disturbed

	// The replica's copy still proves what the bucket has had.
	s.data = nil
	if _, err := manifest.Open(options(s, fs, "a")).Claim(t.Context(), true); !errors.Is(err, record.ErrCorrupt) {
		t.Fatalf("claim of a bucket that lost it: %v", err)
	} else if !strings.Contains(err.Error(), "p/manifest.json.replica") {
		t.Errorf("error does not name the copy: %v", err)
	}
}

// Of two copies on one disk the later counts.
func TestLaterOfTwoCopiesCounts(t *testing.T) {
	s, fs := &memStore{conditional: true}, newFS(t)
	claimed(t, s, "first")
	follows(t, manifest.Open(options(s, fs, "w")), true)
	w := manifest.Open(options(s, fs, "w"))
	if _, err := w.Claim(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, w, segment(0, 9, "x"))
	wantRanges(t, manifest.Open(options(s, fs, "w")).Current(), [2]int64{0, 9})

	mustCommit(t, claimed(t, s, "other"), segment(10, 19, "y"))
	follows(t, manifest.Open(options(s, fs, "w")), true)
	wantRanges(t, manifest.Open(options(s, fs, "w")).Current(), [2]int64{0, 9}, [2]int64{10, 19})
}

// The copy is tried again when it could not be written; the manifest counts at once.
func TestFollowWithoutACopy(t *testing.T) {
	s, fs := &memStore{conditional: true}, newFS(t)
	mustCommit(t, claimed(t, s, "w"), segment(0, 9, "x"))
	full := true
	failing := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full && op.Kind == errorfs.OpCreate {
			return errorfs.ErrInjected
		}
		return nil
	}))
	r := manifest.Open(options(s, failing, "replica"))
	for i := range 2 {
		if changed, err := r.Follow(t.Context()); changed != (i == 0) || !errors.Is(err, errorfs.ErrInjected) {
			t.Fatalf("changed %t, %v", changed, err)
		}
		wantRanges(t, r.Current(), [2]int64{0, 9})
	}
	full = false
	follows(t, r, false)
	wantRanges(t, manifest.Open(options(s, fs, "replica")).Current(), [2]int64{0, 9})
}
