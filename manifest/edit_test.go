package manifest_test

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"keyhole/manifest"
)

var later = time.UnixMilli(1_700_000_000_000)

// filled has segments at 0-9, 10-19, 20-29, 40-49 and ends at 60. The epoch is 1 up
// to 20 and 2 from there on.
func filled(t testing.TB) *manifest.Manifest {
	t.Helper()
	m := &manifest.Manifest{Topic: "orders", TopicID: "id1", Partition: 3, Epoch: 2, Writer: "node-a",
		Generation: 7, Session: "s1", Commit: 4}
	m, err := m.With(segment(0, 9, "a"), segment(10, 19, "b"), epochSegment(20, 29, "c", 2), epochSegment(40, 49, "d", 2))
	if err != nil {
		t.Fatal(err)
	}
	return m.Advance(60)
}

// clone shares nothing with m.
func clone(m *manifest.Manifest) *manifest.Manifest {
	c := *m
	c.Segments = slices.Clone(m.Segments)
	c.LeaderEpochs = slices.Clone(m.LeaderEpochs)
	c.Removed = slices.Clone(m.Removed)
	return &c
}

func removedIDs(m *manifest.Manifest) (ids []string) {
	for _, r := range m.Removed {
		ids = append(ids, r.UploadID)
	}
	return ids
}

func TestAdvance(t *testing.T) {
	m := filled(t)
	before := clone(m)
	for _, next := range []int64{-1, 0, 50, 60} {
		if got := m.Advance(next); got != m {
			t.Errorf("Advance(%d) gave another manifest", next)
		}
	}
	got := m.Advance(61)
	if got.Next() != 61 || got.NextOffset != 61 || !reflect.DeepEqual(got.Segments, m.Segments) {
		t.Errorf("advanced to %+v", got)
	}
	if _, err := m.With(segment(59, 70, "e")); !errors.Is(err, manifest.ErrInvalid) {
		t.Errorf("a segment below the end: %v", err)
	}
	more, err := got.With(epochSegment(61, 70, "e", 3))
	if err != nil {
		t.Fatal(err)
	}
	for offset, epoch := range map[int64]int64{0: 1, 19: 1, 20: 2, 49: 2, 60: 2, 61: 3, 70: 3} {
		if e := more.EpochAt(offset); e != epoch {
			t.Errorf("offset %d has epoch %d, want %d", offset, e, epoch)
		}
	}
	if first := (&manifest.Manifest{}).Advance(5); first.Next() != 5 || first.EpochAt(3) != 0 {
		t.Errorf("empty manifest advanced to %+v", first)
	}
	if !reflect.DeepEqual(m, before) {
		t.Error("the original changed")
	}
}

func TestReplace(t *testing.T) {
	m := filled(t)
	before := clone(m)
	a, b, c, d := m.Segments[0], m.Segments[1], m.Segments[2], m.Segments[3]
	for _, tc := range []struct {
		name    string
		old, by []manifest.Segment
		horizon int64
		want    [][2]int64
	}{
		{"one by one", []manifest.Segment{b}, []manifest.Segment{segment(10, 19, "x")}, 0, [][2]int64{{0, 9}, {10, 19}, {20, 29}, {40, 49}}},
		{"many by one, over a gap and epochs", []manifest.Segment{b, c, d}, []manifest.Segment{epochSegment(12, 45, "x", 2)}, 30, [][2]int64{{0, 9}, {12, 45}}},
		{"one by two", []manifest.Segment{a}, []manifest.Segment{segment(0, 3, "x"), segment(5, 9, "y")}, 60, [][2]int64{{0, 3}, {5, 9}, {10, 19}, {20, 29}, {40, 49}}},
		{"by nothing", []manifest.Segment{c}, nil, 25, [][2]int64{{0, 9}, {10, 19}, {40, 49}}},
		{"all by nothing", []manifest.Segment{a, b, c, d}, nil, 0, nil},
		{"the last", []manifest.Segment{d}, []manifest.Segment{segment(41, 41, "x")}, 0, [][2]int64{{0, 9}, {10, 19}, {20, 29}, {41, 41}}},
	} {
		got, err := m.Replace(tc.old, tc.by, tc.horizon, later)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		wantRanges(t, got, tc.want...)
		encode(t, got)
		if got.Next() != 60 || got.DeleteHorizon != tc.horizon || !reflect.DeepEqual(got.LeaderEpochs, m.LeaderEpochs) {
			t.Errorf("%s: %+v", tc.name, got)
		}
		var removed []manifest.Removed
		for _, s := range tc.old {
			removed = append(removed, manifest.Removed{BaseOffset: s.BaseOffset, UploadID: s.UploadID, Size: 180, RemovedAt: later.UnixMilli()})
		}
		if !reflect.DeepEqual(got.Removed, removed) {
			t.Errorf("%s: removed %+v", tc.name, got.Removed)
		}
		if again, err := got.Replace(tc.old, tc.by, tc.horizon, later.Add(time.Hour)); err != nil || again != got {
			t.Errorf("%s: repeated: %v", tc.name, err)
		}
		if low, err := got.With(tc.old...); err != nil || low != got {
			t.Errorf("%s: what was replaced comes back: %v", tc.name, err)
		}
	}

	// A repetition finds its work done also where more has happened since.
	x, y := segment(0, 9, "x"), segment(0, 19, "y")
	step := func(m *manifest.Manifest, old, by []manifest.Segment) *manifest.Manifest {
		t.Helper()
		m, err := m.Replace(old, by, 20, later)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	one := step(m, []manifest.Segment{a}, []manifest.Segment{x})
	two := step(one, []manifest.Segment{x, b}, []manifest.Segment{y})
	if again, err := two.Replace([]manifest.Segment{a}, []manifest.Segment{x}, 0, later); err != nil || again != two {
		t.Errorf("repeated after another one: %v", err)
	}
	if two.DeleteHorizon != 20 {
		t.Errorf("horizon %d", two.DeleteHorizon)
	}
	if lower := step(two, []manifest.Segment{y}, nil); lower.DeleteHorizon != 20 {
		t.Errorf("horizon sank to %d", lower.DeleteHorizon)
	}
	if low, err := one.Replace([]manifest.Segment{x}, nil, 5, later); err != nil || low.DeleteHorizon != 20 {
		t.Errorf("horizon sank, %v", err)
	}
	if !reflect.DeepEqual(m, before) {
		t.Error("the original changed")
	}
}

func TestReplaceRefuses(t *testing.T) {
	m := filled(t)
	a, b, c, d := m.Segments[0], m.Segments[1], m.Segments[2], m.Segments[3]
	other := b
	other.Size++
	gone, err := m.Replace([]manifest.Segment{a}, []manifest.Segment{segment(0, 9, "x")}, 0, later)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name    string
		m       *manifest.Manifest
		old, by []manifest.Segment
		horizon int64
		want    error
	}{
		{"nothing", m, nil, nil, 0, manifest.ErrInvalid},
		{"no neighbours", m, []manifest.Segment{a, c}, nil, 0, manifest.ErrChanged},
		{"wrong order", m, []manifest.Segment{b, a}, nil, 0, manifest.ErrChanged},
		{"one that was never there", m, []manifest.Segment{segment(50, 59, "z")}, nil, 0, manifest.ErrChanged},
		{"past the end", m, []manifest.Segment{d, segment(50, 59, "z")}, nil, 0, manifest.ErrChanged},
		{"another field", m, []manifest.Segment{a, other}, nil, 0, manifest.ErrChanged},
		{"replaced by another", gone, []manifest.Segment{a}, []manifest.Segment{segment(0, 9, "y")}, 0, manifest.ErrChanged},
		{"half replaced", gone, []manifest.Segment{a, b}, nil, 0, manifest.ErrChanged},
		{"begins below", m, []manifest.Segment{b}, []manifest.Segment{segment(9, 19, "x")}, 0, manifest.ErrInvalid},
		{"ends behind", m, []manifest.Segment{b}, []manifest.Segment{segment(10, 20, "x")}, 0, manifest.ErrInvalid},
		{"overlap", m, []manifest.Segment{b}, []manifest.Segment{segment(10, 15, "x"), segment(15, 19, "y")}, 0, manifest.ErrInvalid},
		{"same objects", m, []manifest.Segment{a, b}, []manifest.Segment{segment(0, 19, "a")}, 0, manifest.ErrInvalid},
		{"objects of one removed before", gone, []manifest.Segment{segment(0, 9, "x")}, []manifest.Segment{segment(0, 9, "a")}, 0, manifest.ErrInvalid},
		{"horizon past the end", m, []manifest.Segment{b}, nil, 61, manifest.ErrInvalid},
	} {
		before := clone(tc.m)
		if got, err := tc.m.Replace(tc.old, tc.by, tc.horizon, later); !errors.Is(err, tc.want) || got != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		if !reflect.DeepEqual(tc.m, before) {
			t.Errorf("%s: the original changed", tc.name)
		}
	}
}

func TestTruncate(t *testing.T) {
	m := filled(t)
	before := clone(m)
	one, two := manifest.EpochStart{Epoch: 1}, manifest.EpochStart{Epoch: 2, StartOffset: 20}
	for _, tc := range []struct {
		start   int64
		want    [][2]int64
		removed []string
		epochs  []manifest.EpochStart
		next    int64
	}{
		{10, [][2]int64{{10, 19}, {20, 29}, {40, 49}}, []string{"a"}, []manifest.EpochStart{one, two}, 60},
		{20, [][2]int64{{20, 29}, {40, 49}}, []string{"a", "b"}, []manifest.EpochStart{two}, 60},
		{30, [][2]int64{{40, 49}}, []string{"a", "b", "c"}, []manifest.EpochStart{two}, 60},
		{35, [][2]int64{{40, 49}}, []string{"a", "b", "c"}, []manifest.EpochStart{two}, 60},
		{40, [][2]int64{{40, 49}}, []string{"a", "b", "c"}, []manifest.EpochStart{two}, 60},
		{50, nil, []string{"a", "b", "c", "d"}, []manifest.EpochStart{two}, 60},
		{60, nil, []string{"a", "b", "c", "d"}, []manifest.EpochStart{two}, 60},
		{75, nil, []string{"a", "b", "c", "d"}, []manifest.EpochStart{two}, 75},
	} {
		got, err := m.Truncate(tc.start, later)
		if err != nil {
			t.Errorf("%d: %v", tc.start, err)
			continue
		}
		wantRanges(t, got, tc.want...)
		encode(t, got)
		if got.StartOffset != tc.start || got.Next() != tc.next || !slices.Equal(got.LeaderEpochs, tc.epochs) ||
			!slices.Equal(removedIDs(got), tc.removed) {
			t.Errorf("%d: %+v", tc.start, got)
		}
		for _, start := range []int64{0, tc.start} {
			if again, err := got.Truncate(start, later); err != nil || again != got {
				t.Errorf("%d, then %d: %v", tc.start, start, err)
			}
		}
	}
	for _, start := range []int64{0, -1} {
		if got, err := m.Truncate(start, later); err != nil || got != m {
			t.Errorf("%d: %v", start, err)
		}
	}
	for _, start := range []int64{1, 9, 25, 49, math.MaxInt64} {
		if got, err := m.Truncate(start, later); !errors.Is(err, manifest.ErrInvalid) || got != nil {
			t.Errorf("%d: %v", start, err)
		}
	}
	if !reflect.DeepEqual(m, before) {
		t.Error("the original changed")
	}
}

// A writer's clock may say anything.
func TestRemovedBefore1970(t *testing.T) {
	m, err := filled(t).Truncate(10, time.UnixMilli(-5))
	if err != nil || m.Removed[0].RemovedAt != 0 {
		t.Fatalf("%+v, %v", m, err)
	}
	encode(t, m)
}

func TestForget(t *testing.T) {
	m, err := filled(t).Truncate(30, later)
	if err != nil {
		t.Fatal(err)
	}
	before := clone(m)
	for _, ids := range [][]string{nil, {"d"}, {"never there"}} {
		if got := m.Forget(ids...); got != m {
			t.Errorf("%v: another manifest", ids)
		}
	}
	got := m.Forget("a", "never there", "c")
	if !slices.Equal(removedIDs(got), []string{"b"}) {
		t.Errorf("removed %v", removedIDs(got))
	}
	if again := got.Forget("a", "c"); again != got {
		t.Error("repeated: another manifest")
	}
	if !reflect.DeepEqual(got.Segments, m.Segments) || got.StartOffset != m.StartOffset || got.Next() != m.Next() {
		t.Errorf("left %+v", got)
	}
	if !reflect.DeepEqual(m, before) {
		t.Error("the original changed")
	}
}

// Two manifests made of one do not write into each other's lists, also where those
// have room at their ends.
func TestBranchesShareNothing(t *testing.T) {
	base := filled(t)
	base.Segments = slices.Grow(base.Segments, 10)
	base.LeaderEpochs = slices.Grow(base.LeaderEpochs, 10)
	base.Removed = slices.Grow(base.Removed, 10)
	branches := map[string]func(id string) (*manifest.Manifest, error){
		"With": func(id string) (*manifest.Manifest, error) {
			return base.With(epochSegment(60, 69, id, int64(len(id)+2)))
		},
		"Replace": func(id string) (*manifest.Manifest, error) {
			return base.Replace(base.Segments[len(id):len(id)+1], nil, 0, later)
		},
		"Truncate": func(id string) (*manifest.Manifest, error) { return base.Truncate(int64(len(id))*10, later) },
	}
	for name, branch := range branches {
		one, err := branch("x")
		if err != nil {
			t.Fatal(err)
		}
		was := clone(one)
		if _, err := branch("xx"); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(one, was) {
			t.Errorf("%s: another one changed %+v to %+v", name, was, one)
		}
	}
}

// A manifest that was put together by hand says where it ends by its segments alone.
func TestEndWithoutSayingSo(t *testing.T) {
	m := &manifest.Manifest{Segments: []manifest.Segment{segment(0, 9, "a"), segment(10, 19, "b")}}
	got, err := m.Replace(m.Segments[1:], nil, 0, later)
	if err != nil || got.Next() != 20 {
		t.Errorf("the end went from %d to %d, %v", m.Next(), got.Next(), err)
	}
}
