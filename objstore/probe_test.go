package objstore_test

import (
	"bytes"
	"testing"
	"time"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
)

// What a probe left behind whose process was ended goes, but not what may be of one
// that is under way, nor anything else.
func TestRemoveProbes(t *testing.T) {
	b := objstoretest.NewMemory()
	for _, key := range []string{"~probe/A", "~probe/B", "topic/object"} {
		if _, err := b.Put(t.Context(), key, bytes.NewReader([]byte("x")), 1, objstore.Condition{}); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := objstore.RemoveProbes(t.Context(), b, time.Now().Add(-time.Hour)); n != 0 || err != nil {
		t.Errorf("%d young ones removed: %v", n, err)
	}
	if n, err := objstore.RemoveProbes(t.Context(), b, time.Now().Add(time.Hour)); n != 2 || err != nil {
		t.Errorf("%d removed: %v", n, err)
	}
	var left []string
	if err := b.List(t.Context(), "", func(o objstore.Object) error { left = append(left, o.Key); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(left) != 1 || left[0] != "topic/object" {
		t.Errorf("left: %v", left)
	}
}
