package manifest_test

import (
	"errors"
	"math"
	"reflect"
	"testing"

	"keyhole/manifest"
)

func TestFindToleratesGaps(t *testing.T) { // case 7-15
	m, err := (&manifest.Manifest{}).With(segment(10, 19, "a"), segment(20, 20, "b"), segment(35, 40, "c"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		offset int64
		i      int
		ok     bool
	}{
		{-1, 0, false}, {9, 0, false}, {10, 0, true}, {19, 0, true}, {20, 1, true},
		{21, 2, false}, {34, 2, false}, {35, 2, true}, {40, 2, true}, {41, 3, false}, {math.MaxInt64, 3, false},
	} {
		if i, ok := m.Find(tc.offset); i != tc.i || ok != tc.ok {
			t.Errorf("Find(%d) = %d, %t, want %d, %t", tc.offset, i, ok, tc.i, tc.ok)
		}
	}
	if m.Start() != 10 || m.Next() != 41 {
		t.Errorf("start %d, next %d", m.Start(), m.Next())
	}
	empty := &manifest.Manifest{}
	if i, ok := empty.Find(0); i != 0 || ok {
		t.Errorf("empty manifest found %d, %t", i, ok)
	}
	if empty.Start() != 0 || empty.Next() != 0 {
		t.Errorf("empty manifest spans %d to %d", empty.Start(), empty.Next())
	}
}

func TestWithLeavesTheOriginalAlone(t *testing.T) {
	one, err := (&manifest.Manifest{Topic: "orders"}).With(segment(0, 9, "a"))
	if err != nil {
		t.Fatal(err)
	}
	two, err := one.With(segment(10, 19, "b"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := one.With(segment(10, 29, "c"))
	if err != nil {
		t.Fatal(err)
	}
	wantRanges(t, one, [2]int64{0, 9})
	wantRanges(t, two, [2]int64{0, 9}, [2]int64{10, 19})
	wantRanges(t, other, [2]int64{0, 9}, [2]int64{10, 29})
	if two.Topic != "orders" {
		t.Errorf("topic %q", two.Topic)
	}
	same, err := two.With(segment(0, 9, "a"), segment(10, 19, "b"))
	if err != nil || same != two {
		t.Errorf("adding what is there gave another manifest, %v", err)
	}
}

func TestWithRefusesContradictions(t *testing.T) {
	base, err := (&manifest.Manifest{}).With(segment(0, 50, "a"))
	if err != nil {
		t.Fatal(err)
	}
	bad := map[string]func(*manifest.Segment){
		"overlap, case 7-14": func(s *manifest.Segment) { s.BaseOffset, s.LastOffset = 14, 150 },
		"same range twice":   func(s *manifest.Segment) { s.BaseOffset, s.LastOffset = 0, 50 },
		"ends early":         func(s *manifest.Segment) { s.LastOffset = s.BaseOffset - 1 },
		"no next offset":     func(s *manifest.Segment) { s.LastOffset = math.MaxInt64 },
		"no upload id":       func(s *manifest.Segment) { s.UploadID = "" },
		"path in upload id":  func(s *manifest.Segment) { s.UploadID = "../x" },
		"empty object":       func(s *manifest.Segment) { s.Size = 0 },
		"table beyond index": func(s *manifest.Segment) { s.TableBytes = s.IndexSize + 1 },
		"no table":           func(s *manifest.Segment) { s.TableBytes = 0 },
		"negative records":   func(s *manifest.Segment) { s.Records = -1 },
		"negative epoch":     func(s *manifest.Segment) { s.Epoch = -1 },
	}
	for name, spoil := range bad {
		s := segment(51, 60, "b")
		spoil(&s)
		if _, err := base.With(s); !errors.Is(err, manifest.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	negative := segment(-1, 3, "n")
	if _, err := (&manifest.Manifest{}).With(negative); !errors.Is(err, manifest.ErrInvalid) {
		t.Errorf("negative base: %v", err)
	}
	if got, err := base.With(segment(51, 60, "b"), segment(100, 100, "c")); err != nil || len(got.Segments) != 3 {
		t.Errorf("good segments refused: %v", err)
	}
	if !reflect.DeepEqual(base.Segments, []manifest.Segment{segment(0, 50, "a")}) {
		t.Error("the original changed")
	}
}
