package partition

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the counters that all partitions of a process share. None carries
// a topic or a key as a label, so their number never grows.
type Metrics struct {
	Corruptions    *prometheus.CounterVec // tier, kind
	Uploads        *prometheus.CounterVec // outcome
	UploadedBytes  prometheus.Counter
	Evictions      prometheus.Counter
	EvictedBytes   prometheus.Counter
	AppendedBytes  prometheus.Counter
	AppendedRecord prometheus.Counter
	Replayed       prometheus.Counter
	Rebuilds       prometheus.Counter
	Moved          prometheus.Counter
	LogFailures    prometheus.Counter
	FutureRecords  prometheus.Counter
	Fenced         prometheus.Gauge
	Compactions    *prometheus.CounterVec // tier
	CompactedBytes *prometheus.CounterVec // tier
	RecordsRemoved prometheus.Counter
	Expired        prometheus.Counter
	Collected      prometheus.Counter
}

// NewMetrics registers them with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		reg.MustRegister(c)
		return c
	}
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	m := &Metrics{
		Corruptions:    vec("keyhole_corruptions_total", "Stored bytes that failed a check, or named objects that were gone.", "tier", "kind"),
		Uploads:        vec("keyhole_segment_uploads_total", "Segments offered to the bucket.", "outcome"),
		UploadedBytes:  counter("keyhole_segment_uploaded_bytes_total", "Local bytes of segments that reached the bucket."),
		Evictions:      counter("keyhole_segment_evictions_total", "Local segments removed because the bucket has them."),
		EvictedBytes:   counter("keyhole_segment_evicted_bytes_total", "Bytes of local segments removed because the bucket has them."),
		AppendedBytes:  counter("keyhole_appended_bytes_total", "Bytes of batches appended to local logs."),
		AppendedRecord: counter("keyhole_appended_records_total", "Records appended to local logs."),
		Replayed:       counter("keyhole_index_replayed_records_total", "Records read again to bring an index up to its log."),
		Rebuilds:       counter("keyhole_index_rebuilds_total", "Indexes thrown away and built anew."),
		Moved:          counter("keyhole_lookup_pointer_moves_total", "Lookups whose record had moved on and were resolved again."),
	}
	m.LogFailures = counter("keyhole_log_failures_total", "Times that a failed write or sync made a partition read-only.")
	m.FutureRecords = counter("keyhole_future_records_total", "Records appended with a timestamp more than a day ahead of the clock here.")
	m.Compactions = vec("keyhole_compacted_segments_total", "Segments rewritten, or removed, because records in them had been replaced.", "tier")
	m.CompactedBytes = vec("keyhole_compaction_freed_bytes_total", "Bytes that compaction has made segments smaller by.", "tier")
	m.RecordsRemoved = counter("keyhole_compaction_removed_records_total", "Records that compaction has removed, tombstones included.")
	m.Expired = counter("keyhole_expired_segments_total", "Segments that retention has removed.")
	m.Collected = counter("keyhole_collected_objects_total", "Objects of the bucket deleted because nobody needed them any more.")
	m.Fenced = prometheus.NewGauge(prometheus.GaugeOpts{Name: "keyhole_fenced_partitions", Help: "Partitions that a newer writer has taken over."})
	reg.MustRegister(m.Fenced)
	for _, tier := range []string{"local", "remote"} {
		m.Compactions.WithLabelValues(tier)
		m.CompactedBytes.WithLabelValues(tier)
		for _, kind := range []string{"read", "record", "index"} {
			m.Corruptions.WithLabelValues(tier, kind)
		}
	}
	for _, outcome := range []string{"ok", "error"} {
		m.Uploads.WithLabelValues(outcome)
	}
	return m
}
