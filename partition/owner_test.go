package partition

import (
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
)

// A node that only answers lookups learns by asking that another has taken the
// partition over. Case 7-18.
func TestCheckOwner(t *testing.T) {
	check := func(p *Partition, want bool) {
		t.Helper()
		if lost, err := p.CheckOwner(t.Context()); lost != want || err != nil {
			t.Fatalf("lost %t, %v; want %t", lost, err, want)
		}
	}
	a := newRig(t)
	pa := a.open()
	want := fill(t, pa, "a", 40)
	evict(t, pa)
	check(pa, false)
	verify(t, pa, want, nil)

	a.store.FailNext(objstoretest.OpGetIfChanged, 1, objstore.ErrUnavailable)
	if lost, err := pa.CheckOwner(t.Context()); lost || !errors.Is(err, objstore.ErrUnavailable) {
		t.Fatalf("the store does not answer: lost %t, %v", lost, err)
	}
	if err := pa.StoreTrouble(); !errors.Is(err, objstore.ErrUnavailable) {
		t.Fatalf("trouble: %v", err)
	}
	check(pa, false)
	if err := pa.StoreTrouble(); err != nil {
		t.Fatalf("still in trouble: %v", err)
	}
	verify(t, pa, want, nil)

	pb := a.other("node-b").open()
	put(t, pb, "a-000", "newer")
	a.store.ResetCalls()
	check(pa, true)
	check(pa, false) // it knows
	if n := a.store.Count(); n != 1 {
		t.Errorf("%d requests, want one", n)
	}
	if _, err := get(pa, "a-000"); !errors.Is(err, ErrNotHosted) {
		t.Fatalf("lookup at the older writer: %v", err)
	}
	if ready, reason, _ := pa.State(); !ready || pa.TakenOver() == nil || pb.TakenOver() != nil {
		t.Errorf("ready %t (%s), taken over: %v, and the newer one: %v", ready, reason, pa.TakenOver(), pb.TakenOver())
	}
	if n := testutil.ToFloat64(a.metrics.Fenced); n != 1 {
		t.Errorf("%v partitions fenced", n)
	}
	check(pb, false)
	if res := mustGet(t, pb, "a-000"); string(res.Value) != "newer" {
		t.Fatalf("the newer writer has %q", res.Value)
	}
	a.stop()
	if n := testutil.ToFloat64(a.metrics.Fenced); n != 0 {
		t.Errorf("%v partitions fenced once it is closed", n)
	}
	if lost, err := pa.CheckOwner(t.Context()); lost || err != nil {
		t.Fatalf("closed: lost %t, %v", lost, err)
	}
}

func TestCheckOwnerWithoutAStore(t *testing.T) {
	r := newRig(t)
	r.noStore = true
	if lost, err := r.open().CheckOwner(t.Context()); lost || err != nil {
		t.Fatalf("lost %t, %v", lost, err)
	}
}
