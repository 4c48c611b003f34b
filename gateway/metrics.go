package gateway

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"keyhole/partition"
)

// Outcomes of a lookup besides the reasons of errors.go.
const (
	outcomeFound       = "found"
	outcomeNotModified = "not_modified"
	outcomeCanceled    = "canceled" // the client did not wait
)

// sourceNone is the source of an answer that has no record behind it.
const sourceNone = "none"

// lookupBuckets resolve a hot lookup (tens of microseconds) as well as one that
// waits for a slow store (seconds).
var lookupBuckets = []float64{
	50e-6, 100e-6, 200e-6, 400e-6, 800e-6, 1.6e-3, 3.2e-3, 6.4e-3, 12.5e-3,
	25e-3, 35e-3, 50e-3, 75e-3, 0.1, 0.15, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 10,
}

// codeClasses are the values of the label code, indexed by status / 100. "none"
// is a request that ended without an answer: its client had gone.
var codeClasses = [...]string{"none", "1xx", "2xx", "3xx", "4xx", "5xx"}

// metrics are all created up front, with every label value they can have: what a
// client sends cannot add a series, and counting costs no look-up of a label.
type metrics struct {
	requests *prometheus.CounterVec // route, code
	panics   prometheus.Counter
	refused  prometheus.Counter

	lookups lookupMetrics

	recordsAccepted prometheus.Counter
	recordsRefused  prometheus.Counter
	bodyBytes       prometheus.Gauge
}

// lookupMetrics hold the children of keyhole_lookups_total and
// keyhole_lookup_seconds.
type lookupMetrics struct {
	found       [3]prometheus.Counter // by partition.Source
	notModified [3]prometheus.Counter
	failed      map[string]prometheus.Counter // by reason
	seconds     [3]prometheus.Observer        // found and not modified, by partition.Source
	rest        prometheus.Observer           // everything else
}

// lookupReasons are the reasons that end a lookup.
var lookupReasons = []string{
	reasonBadRequest, reasonTopic, reasonPartition, reasonNotHosted, reasonNotIndexed, reasonNotReady,
	reasonPosition, reasonKey, reasonRemoteOff, reasonNotRetained, reasonStore, reasonOverloaded,
	reasonClosing, reasonDeadline, reasonCorrupt, reasonReadOnly, reasonInternal, reasonNoRoute,
	outcomeCanceled,
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keyhole_http_requests_total",
			Help: "Requests answered, by route and class of status.",
		}, []string{"route", "code"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "keyhole_http_panics_total",
			Help: "Requests that ran into a bug and were answered 500.",
		}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "keyhole_http_connections_refused_total",
			Help: "Connections beyond the bound, which were answered 503 and closed.",
		}),
		bodyBytes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "keyhole_http_body_bytes",
			Help: "Memory that request bodies in flight hold.",
		}),
	}
	lookups := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "keyhole_lookups_total",
		Help: "Lookups of a key, by outcome and by where the record was.",
	}, []string{"outcome", "source"})
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "keyhole_lookup_seconds",
		Help:    "Time from arrival of a lookup until its outcome is known.",
		Buckets: lookupBuckets,
	}, []string{"source"})
	records := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "keyhole_produce_records_total",
		Help: "Records that clients wrote, by outcome.",
	}, []string{"outcome"})
	reg.MustRegister(m.requests, m.panics, m.refused, m.bodyBytes, lookups, seconds, records)

	for s := range m.lookups.found {
		source := partition.Source(s).String()
		m.lookups.found[s] = lookups.WithLabelValues(outcomeFound, source)
		m.lookups.notModified[s] = lookups.WithLabelValues(outcomeNotModified, source)
		m.lookups.seconds[s] = seconds.WithLabelValues(source)
	}
	m.lookups.rest = seconds.WithLabelValues(sourceNone)
	m.lookups.failed = make(map[string]prometheus.Counter, len(lookupReasons))
	for _, reason := range lookupReasons {
		m.lookups.failed[reason] = lookups.WithLabelValues(reason, sourceNone)
	}
	m.recordsAccepted = records.WithLabelValues("accepted")
	m.recordsRefused = records.WithLabelValues("refused")
	return m
}

// forRoute gives the counters of one route by status / 100.
func (m *metrics) forRoute(route string) (byClass [len(codeClasses)]prometheus.Counter) {
	for i, class := range codeClasses {
		byClass[i] = m.requests.WithLabelValues(route, class)
	}
	return byClass
}

func (m *lookupMetrics) hit(res *partition.Result, took time.Duration) {
	if res.NotModified {
		m.notModified[res.Source].Inc()
	} else {
		m.found[res.Source].Inc()
	}
	m.seconds[res.Source].Observe(took.Seconds())
}

func (m *lookupMetrics) miss(o outcome, took time.Duration) {
	if c := m.failed[o.reason]; c != nil {
		c.Inc()
	}
	m.rest.Observe(took.Seconds())
}
