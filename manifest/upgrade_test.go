package manifest_test

import (
	"testing"
	"time"

	"keyhole/manifest"
)

// What version 1 has left is taken over as it is, of version 2, and begins to age.
func TestClaimOfVersion1(t *testing.T) {
	s := &memStore{conditional: true, data: []byte(goldenOld), version: 1}
	o := options(s, newFS(t), "node-a")
	clock := later
	o.Now = func() time.Time { return clock }
	old, err := manifest.Decode("x", s.data)
	if err != nil {
		t.Fatal(err)
	}
	h := manifest.Open(o)
	if _, err := h.Claim(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		m := s.stored(t)
		if len(m.Segments) != len(old.Segments) || m.Next() != old.Next() || m.EpochAt(5) != 1 {
			t.Fatalf("stored %+v", m)
		}
		for i, got := range m.Segments {
			want := old.Segments[i]
			if want.CreatedAt != 0 {
				t.Errorf("version 1 knows the time of creation of %+v", want)
			}
			if want.CreatedAt = later.UnixMilli(); got != want {
				t.Errorf("segment %+v, want %+v", got, want)
			}
		}
	}
	check()
	clock = clock.Add(time.Hour)
	if _, err := h.Claim(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	check() // it ages from the first claim on
}
