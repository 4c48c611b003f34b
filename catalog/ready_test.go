package catalog

import (
	"errors"
	"slices"
	"testing"

	"keyhole/objstore/objstoretest"
	"keyhole/partition"
)

// Partitions that another node has taken over are named, and do not make the
// node unready: nothing brings them back.
func TestReadyNamesWhatIsTakenOver(t *testing.T) {
	bucket := objstoretest.NewFaulty(nil)
	c := newNode(t, bucket).start()
	known(t, c)
	allOn(t, c)
	cold(t, c, "t")
	if r := c.Ready(); !r.Ready || len(r.Degraded) != 0 {
		t.Fatalf("%+v", r)
	}
	other := newNode(t, bucket).start()
	known(t, other)
	allOn(t, other)
	adopted, err := other.Topic("t")
	if err != nil {
		t.Fatal(err)
	}
	serving(t, adopted, 0)

	topic, err := c.Topic("t")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range topic.Hosted() {
		appendKeys(t, p, 0, 5)
		if _, err := p.Evict(t.Context(), 0); !errors.Is(err, partition.ErrNotHosted) {
			t.Fatalf("evict at the older node: %v", err)
		}
	}
	r := c.Ready()
	if want := []string{"taken over by another node: t/0"}; !r.Ready || !slices.Equal(r.Degraded, want) {
		t.Fatalf("%+v, want degraded %q", r, want)
	}
	if r := other.Ready(); !r.Ready || len(r.Degraded) != 0 {
		t.Fatalf("the newer node: %+v", r)
	}
}
