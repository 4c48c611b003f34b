package manifest_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"keyhole/manifest"
)

// edits makes random edits of one manifest and knows what must be true of it.
type edits struct {
	rng   *rand.Rand
	m     *manifest.Manifest
	epoch int64
	ids   int
	at    time.Time

	epochs    []int64         // by offset: what EpochAt has said of it first
	added     map[string]bool // upload ids of all segments there have ever been
	forgotten map[string]bool
	kept      []kept // earlier manifests, and what they were
}

type kept struct{ m, was *manifest.Manifest }

func (e *edits) segment(base, last int64) manifest.Segment {
	e.ids++
	s := epochSegment(base, last, fmt.Sprint("u", e.ids), e.epoch)
	s.Tombstones = e.rng.Int64N(s.Records + 1)
	s.CreatedAt = e.at.UnixMilli()
	return s
}

// within returns up to three segments in a range, with gaps.
func (e *edits) within(base, end int64) (segs []manifest.Segment) {
	for range 1 + e.rng.IntN(3) {
		base += e.rng.Int64N(4)
		if base >= end {
			break
		}
		last := min(end-1, base+e.rng.Int64N(20))
		segs = append(segs, e.segment(base, last))
		base = last + 1
	}
	return segs
}

// edit returns one random edit and whether it can be done.
func (e *edits) edit() (name string, edit func(m *manifest.Manifest) (*manifest.Manifest, error), want error) {
	m, n := e.m, len(e.m.Segments)
	switch kind := e.rng.IntN(10); {
	case kind < 4:
		e.epoch += e.rng.Int64N(2)
		segs := e.within(m.Next(), 1<<40)
		return fmt.Sprintf("With(%+v)", segs), adding(segs...), nil
	case kind == 4:
		next := m.Next() + e.rng.Int64N(5) - 1
		return fmt.Sprintf("Advance(%d)", next), func(m *manifest.Manifest) (*manifest.Manifest, error) { return m.Advance(next), nil }, nil
	case kind < 8 && n > 0:
		from := e.rng.IntN(n)
		old := slices.Clone(m.Segments[from:min(n, from+1+e.rng.IntN(3))])
		var by []manifest.Segment
		if e.rng.IntN(3) > 0 {
			by = e.within(old[0].BaseOffset, old[len(old)-1].LastOffset+1)
		}
		horizon := e.rng.Int64N(old[len(old)-1].LastOffset + 2)
		if e.rng.IntN(8) == 0 {
			old[0].Size++ // it has changed
			want = manifest.ErrChanged
		}
		return fmt.Sprintf("Replace(%+v, %+v)", old, by), func(m *manifest.Manifest) (*manifest.Manifest, error) {
			return m.Replace(old, by, horizon, e.at)
		}, want
	case kind == 8:
		start := m.StartOffset + e.rng.Int64N(max(1, m.Next()-m.StartOffset)/4+3)
		if i, ok := m.Find(start); ok && m.Segments[i].BaseOffset < start && start > m.StartOffset {
			want = manifest.ErrInvalid
		}
		return fmt.Sprintf("Truncate(%d)", start), func(m *manifest.Manifest) (*manifest.Manifest, error) { return m.Truncate(start, e.at) }, want
	}
	var ids []string
	for _, r := range m.Removed {
		if e.rng.IntN(2) == 0 {
			ids = append(ids, r.UploadID)
		}
	}
	return fmt.Sprintf("Forget(%v)", ids), func(m *manifest.Manifest) (*manifest.Manifest, error) { return m.Forget(ids...), nil }, nil
}

func (e *edits) check(next *manifest.Manifest) error {
	m := e.m
	if next.Next() < m.Next() || next.StartOffset < m.StartOffset || next.DeleteHorizon < m.DeleteHorizon {
		return errors.New("an offset has gone back")
	}
	data, err := manifest.Encode(next)
	if err != nil {
		return err
	}
	back, err := manifest.Decode("x", data)
	if err != nil {
		return err
	}
	if again, err := manifest.Encode(back); err != nil || string(again) != string(data) {
		return fmt.Errorf("another round gives other bytes, %v", err)
	}
	if !slices.Equal(back.Segments, next.Segments) || !slices.Equal(back.Removed, next.Removed) || !slices.Equal(back.LeaderEpochs, next.LeaderEpochs) {
		return errors.New("decoded is not what was encoded")
	}
	// What has an epoch keeps it for as long as it is retained.
	for offset := int64(len(e.epochs)); offset < next.Next(); offset++ {
		e.epochs = append(e.epochs, next.EpochAt(offset))
	}
	for offset := next.StartOffset; offset < next.Next(); offset++ {
		if got := next.EpochAt(offset); got != e.epochs[offset] {
			return fmt.Errorf("epoch of offset %d has become %d, was %d", offset, got, e.epochs[offset])
		}
	}
	// No object is lost sight of, and none is both in use and to be deleted.
	seen := map[string]int{}
	for _, s := range next.Segments {
		seen[s.UploadID]++
		e.added[s.UploadID] = true
	}
	for _, id := range removedIDs(next) {
		seen[id]++
	}
	for _, id := range removedIDs(m) {
		if seen[id] == 0 {
			e.forgotten[id] = true
		}
	}
	for id := range e.added {
		if n := seen[id]; n > 1 || (n == 0) != e.forgotten[id] {
			return fmt.Errorf("objects of %s are in %d lists, forgotten: %t", id, n, e.forgotten[id])
		}
	}
	return nil
}

// Random edits keep every rule there is, change no manifest that was handed out, find
// their own work done, and are followed by a replica that sees only some of them.
func TestRandomEdits(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for round := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, round))
		s := &memStore{conditional: true}
		w := claimed(t, s, "w")
		replica := manifest.Open(options(s, newFS(t), "replica"))
		e := &edits{rng: rng, m: w.Current(), epoch: 1, at: later, added: map[string]bool{}, forgotten: map[string]bool{}}
		for step := range 100 {
			e.at = e.at.Add(time.Duration(rng.Int64N(int64(time.Hour))))
			name, edit, want := e.edit()
			fail := func(err error) { t.Helper(); t.Fatalf("round %d, step %d: %s: %v", round, step, name, err) }
			was := clone(e.m)
			e.kept = append(e.kept, kept{e.m, was})
			next, err := edit(e.m)
			if !errors.Is(err, want) || want == nil && err != nil {
				fail(err)
			}
			if err != nil {
				continue
			}
			if again, err := edit(next); err != nil || again != next {
				fail(fmt.Errorf("done twice: another manifest, %v", err))
			}
			if err := e.check(next); err != nil {
				fail(err)
			}
			if err := w.Commit(t.Context(), edit); err != nil {
				fail(err)
			}
			e.m = w.Current()
			if !slices.Equal(e.m.Segments, next.Segments) {
				fail(errors.New("committed something else"))
			}
			switch rng.IntN(20) {
			case 0:
				w = claimed(t, s, "w")
				e.m = w.Current()
			case 1, 2, 3:
				if _, err := replica.Follow(t.Context()); err != nil {
					fail(err)
				}
				if !reflect.DeepEqual(replica.Current(), s.stored(t)) {
					fail(errors.New("the replica has something else"))
				}
			}
		}
		for _, k := range e.kept {
			if !reflect.DeepEqual(k.m, k.was) {
				t.Fatalf("round %d: a manifest has changed from %+v to %+v", round, k.was, k.m)
			}
		}
	}
}
