package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The kinds of call, as metric labels and in errors.
const (
	opRead   = "read" // one ranged GET
	opGet    = "get"  // a whole object
	opLook   = "look" // a whole object, unless it is unchanged
	opPut    = "put"
	opDelete = "delete"
	opList   = "list" // one listing, over however many pages
)

var operations = []string{opRead, opGet, opLook, opPut, opDelete, opList}

// Metrics are the counters of one bucket. All series exist from the start, so
// a rate over a failure that has never happened is zero and not missing.
type Metrics struct {
	requests *prometheus.CounterVec   // op, outcome
	bytes    *prometheus.CounterVec   // direction
	seconds  *prometheus.HistogramVec // op
	repeats  *prometheus.CounterVec   // op
}

// NewMetrics registers the object store metrics:
//
//	keyhole_object_store_requests_total{op,outcome}   attempts
//	keyhole_object_store_bytes_total{direction}       bodies of attempts that succeeded
//	keyhole_object_store_request_seconds{op}          attempts
//	keyhole_object_store_retries_total{op}            attempts that repeat a failed one
//
// It fails if they are registered already.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keyhole_object_store_requests_total",
			Help: "Requests to the object store, repetitions included, by kind and outcome.",
		}, []string{"op", "outcome"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keyhole_object_store_bytes_total",
			Help: "Bytes of objects read from and written to the object store.",
		}, []string{"direction"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "keyhole_object_store_request_seconds",
			Help:    "Duration of requests to the object store, body included.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 17), // 0.5 ms … 33 s
		}, []string{"op"}),
		repeats: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keyhole_object_store_retries_total",
			Help: "Requests to the object store that repeat a failed one.",
		}, []string{"op"}),
	}
	for _, c := range []prometheus.Collector{m.requests, m.bytes, m.seconds, m.repeats} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("object store metrics: %w", err)
		}
	}
	names := []string{outcomeOK, outcomeOther}
	for _, o := range outcomes {
		names = append(names, o.name)
	}
	for _, op := range operations {
		m.seconds.WithLabelValues(op)
		m.repeats.WithLabelValues(op)
		for _, name := range names {
			m.requests.WithLabelValues(op, name)
		}
	}
	m.bytes.WithLabelValues("read")
	m.bytes.WithLabelValues("written")
	return m, nil
}

// CountRetry is meant as RetryOptions.OnRetry.
func (m *Metrics) CountRetry(op string, _ error) { m.repeats.WithLabelValues(op).Inc() }

// WithMetrics counts and times every call to b. Put it inside of WithRetry to
// see each attempt.
func WithMetrics(b Bucket, m *Metrics) Bucket { return &metered{inner: b, m: m} }

type metered struct {
	inner Bucket
	m     *Metrics
}

// done books one call that began at start.
func (b *metered) done(op string, start time.Time, err error) {
	b.m.seconds.WithLabelValues(op).Observe(time.Since(start).Seconds())
	if errors.Is(err, errStopListing) {
		err = nil // the caller had enough: no failure
	}
	b.m.requests.WithLabelValues(op, outcome(err)).Inc()
}

func (b *metered) ReadRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	start := time.Now()
	data, err := b.inner.ReadRange(ctx, key, off, n)
	b.done(opRead, start, err)
	b.m.bytes.WithLabelValues("read").Add(float64(len(data)))
	return data, err
}

func (b *metered) Get(ctx context.Context, key string, maxBytes int64) ([]byte, string, error) {
	start := time.Now()
	data, etag, err := b.inner.Get(ctx, key, maxBytes)
	b.done(opGet, start, err)
	b.m.bytes.WithLabelValues("read").Add(float64(len(data)))
	return data, etag, err
}

func (b *metered) GetIfChanged(ctx context.Context, key, etag string, maxBytes int64) ([]byte, string, error) {
	start := time.Now()
	data, newETag, err := b.inner.GetIfChanged(ctx, key, etag, maxBytes)
	b.done(opLook, start, err)
	b.m.bytes.WithLabelValues("read").Add(float64(len(data)))
	return data, newETag, err
}

func (b *metered) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond Condition) (string, error) {
	start := time.Now()
	etag, err := b.inner.Put(ctx, key, body, size, cond)
	b.done(opPut, start, err)
	if err == nil {
		b.m.bytes.WithLabelValues("written").Add(float64(size))
	}
	return etag, err
}

func (b *metered) Delete(ctx context.Context, key string) error {
	start := time.Now()
	err := b.inner.Delete(ctx, key)
	b.done(opDelete, start, err)
	return err
}

func (b *metered) List(ctx context.Context, prefix string, fn func(Object) error) error {
	start := time.Now()
	err := b.inner.List(ctx, prefix, fn)
	b.done(opList, start, err)
	return err
}

func (b *metered) ListPrefixes(ctx context.Context, prefix string, fn func(string) error) error {
	start := time.Now()
	err := b.inner.ListPrefixes(ctx, prefix, fn)
	b.done(opList, start, err)
	return err
}

func (b *metered) Close() error { return b.inner.Close() }
