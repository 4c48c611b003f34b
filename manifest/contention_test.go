package manifest_test

import (
	"errors"
	"testing"

	"keyhole/manifest"
)

// A store that is changed under every attempt does not keep a commit for ever.
func TestEndlessContentionEnds(t *testing.T) {
	s := &memStore{conditional: true}
	h := claimed(t, s, "a")
	var bump func(*memStore)
	bump = func(s *memStore) {
		s.mu.Lock()
		s.version++ // another ETag for the same bytes
		s.mu.Unlock()
		s.before = bump
	}
	s.before = bump
	if err := h.Commit(t.Context(), adding(segment(0, 9, "x"))); !errors.Is(err, manifest.ErrContended) {
		t.Fatalf("commit: %v", err)
	}
	s.before = nil
	if err := h.Commit(t.Context(), adding(segment(0, 9, "x"))); err != nil {
		t.Fatal(err)
	}
}
