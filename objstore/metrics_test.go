package objstore_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
)

func TestMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m, err := objstore.NewMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	series := func() int {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, f := range families {
			n += len(f.Metric)
		}
		return n
	}
	before := series()

	f := objstoretest.NewFaulty(nil)
	b := objstore.WithRetry(objstore.WithMetrics(f, m), objstore.RetryOptions{OnRetry: m.CountRetry, BaseDelay: 1, MaxDelay: 1})
	put(t, b, "k", "12345")
	f.FailNext(objstoretest.OpReadRange, 2, unavailable)
	if _, err := b.ReadRange(t.Context(), "k", 1, 3); err != nil {
		t.Fatal(err)
	}
	f.Before(nil)
	_, _, err = b.Get(t.Context(), "absent", 10)
	wantIs(t, "get", err, objstore.ErrNotFound)
	stop := errors.New("enough")
	wantIs(t, "list", b.List(t.Context(), "", func(objstore.Object) error { return stop }), stop)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	wantIs(t, "delete", b.Delete(cancelled, "k"), context.Canceled)

	want := `
# HELP keyhole_object_store_bytes_total Bytes of objects read from and written to the object store.
# TYPE keyhole_object_store_bytes_total counter
keyhole_object_store_bytes_total{direction="read"} 3
keyhole_object_store_bytes_total{direction="written"} 5
# HELP keyhole_object_store_retries_total Requests to the object store that repeat a failed one.
# TYPE keyhole_object_store_retries_total counter
keyhole_object_store_retries_total{op="delete"} 0
keyhole_object_store_retries_total{op="get"} 0
keyhole_object_store_retries_total{op="list"} 0
keyhole_object_store_retries_total{op="look"} 0
keyhole_object_store_retries_total{op="put"} 0
keyhole_object_store_retries_total{op="read"} 2
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want),
		"keyhole_object_store_bytes_total", "keyhole_object_store_retries_total"); err != nil {
		t.Error(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "keyhole_object_store_requests_total" {
			continue
		}
		for _, metric := range f.Metric {
			if v := metric.Counter.GetValue(); v != 0 {
				counted[metric.Label[0].GetValue()+" "+metric.Label[1].GetValue()] = v
			}
		}
	}
	for name, want := range map[string]float64{"put ok": 1, "read ok": 1, "read unavailable": 2, "get not_found": 1, "list ok": 1, "delete cancelled": 1} {
		if counted[name] != want {
			t.Errorf("%s: %v, want %v", name, counted[name], want)
		}
	}
	if len(counted) != 6 {
		t.Errorf("counted %v", counted)
	}
	// case 8-11: all series are there from the start, and no more come.
	if after := series(); after != before {
		t.Errorf("%d series at first, %d in the end", before, after)
	}
	if _, err := objstore.NewMetrics(reg); err == nil {
		t.Error("registered twice")
	}
}
