package tiered

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"

	"keyhole/cache"
)

// tableCacheBytes bounds the chunk tables in memory: some 2 million chunks.
const tableCacheBytes = 64 << 20

// maxUploads bounds how many segments of a process are on their way to the bucket
// at once: the keys of each are in memory, as is its index object until the
// bucket has it. Others wait, however many partitions there are.
const maxUploads = 2

// ErrOverloaded says that as many reads of the bucket run as are allowed. A
// later call may succeed.
var ErrOverloaded = errors.New("too many reads of the object store at once")

// Shared is what all tiers of a process have in common: the chunk cache, the
// table cache, the bounds on concurrent reads and uploads, and the metrics.
type Shared struct {
	chunks *cache.Cache
	tables *cache.Cache

	// uploads holds a token for each segment that is being uploaded.
	uploads chan struct{}
	// rewrites holds a token while one Rewrite runs.
	rewrites chan struct{}
	encoders sync.Pool // of *zstd.Encoder, for key runs

	moved  atomic.Int64 // of UploadMoved, Unix nanoseconds
	stored atomic.Int64

	maxReads atomic.Int64
	reads    atomic.Int64 // running

	rejected prometheus.Counter
	bytes    prometheus.Counter
	repairs  *prometheus.CounterVec
}

// Values of the label "part" of keyhole_remote_repairs_total.
const (
	partTable = "chunk_table"
	partRun   = "key_run"
)

// NewShared makes the caches, the chunk cache with a limit of cacheBytes, and
// registers their metrics with reg. At most maxReads reads of chunks and tables
// run at once.
func NewShared(cacheBytes int64, maxReads int, reg prometheus.Registerer) *Shared {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	s := &Shared{
		chunks:   cache.New(cacheBytes),
		tables:   cache.New(tableCacheBytes),
		uploads:  make(chan struct{}, maxUploads),
		rewrites: make(chan struct{}, 1),
		rejected: counter("keyhole_remote_reads_rejected_total", "Reads of the bucket refused because too many were running."),
		bytes:    counter("keyhole_remote_chunk_bytes_total", "Bytes of chunks read from the bucket for lookups."),
		repairs: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "keyhole_remote_repairs_total",
			Help: "Damaged or missing pieces for which there was a substitute."}, []string{"part"}),
	}
	s.maxReads.Store(int64(maxReads))
	s.repairs.WithLabelValues(partTable)
	s.repairs.WithLabelValues(partRun)
	reg.MustRegister(s.rejected, s.bytes, s.repairs,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "keyhole_remote_reads_running",
			Help: "Reads of the bucket that are running for lookups."}, func() float64 { return float64(s.reads.Load()) }))
	for _, m := range []struct {
		name, help string
		value      func(cache.Stats) uint64
	}{
		{"keyhole_chunk_cache_hits_total", "Chunks answered from memory.", func(st cache.Stats) uint64 { return st.Hits }},
		{"keyhole_chunk_cache_misses_total", "Chunks not in memory.", func(st cache.Stats) uint64 { return st.Misses }},
		{"keyhole_chunk_cache_evictions_total", "Chunks dropped to make room.", func(st cache.Stats) uint64 { return st.Evictions }},
	} {
		reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: m.name, Help: m.help},
			func() float64 { return float64(m.value(s.chunks.Stats())) }))
	}
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "keyhole_chunk_cache_bytes", Help: "Bytes of chunks in memory."},
		func() float64 { return float64(s.chunks.Stats().Bytes) }))
	return s
}

// TrimCache empties the chunk cache.
func (s *Shared) TrimCache() { s.chunks.Trim() }

// SetCacheSize sets the limit of the chunk cache in bytes, at once.
func (s *Shared) SetCacheSize(bytes int64) { s.chunks.Resize(bytes) }

// SetMaxReads sets how many reads may run at once. Those that run go on.
func (s *Shared) SetMaxReads(n int) { s.maxReads.Store(int64(n)) }

// Close ends running reads and waits for them, or for ctx. It may be called
// again.
func (s *Shared) Close(ctx context.Context) error {
	return errors.Join(s.chunks.Close(ctx), s.tables.Close(ctx))
}

// startRead takes one of the places for reads, without waiting for one: behind
// a slow store a queue would only grow. endRead gives it back.
func (s *Shared) startRead() error {
	if s.reads.Add(1) > s.maxReads.Load() {
		s.endRead()
		s.rejected.Inc()
		return ErrOverloaded
	}
	return nil
}

func (s *Shared) endRead() { s.reads.Add(-1) }

// runEncoder takes a compressor for key runs out of the pool or makes one. It goes
// back with encoders.Put.
func (s *Shared) runEncoder() (*zstd.Encoder, error) {
	if zip, ok := s.encoders.Get().(*zstd.Encoder); ok {
		return zip, nil
	}
	return newRunEncoder()
}

// UploadMoved is when a segment last arrived in the bucket, or visibly got further on
// its way, in whichever tier; zero if none did yet.
func (s *Shared) UploadMoved() time.Time {
	if ns := s.moved.Load(); ns != 0 {
		return time.Unix(0, ns)
	}
	return time.Time{}
}

// Stored counts the segments whose batches have arrived in the bucket, of all tiers.
func (s *Shared) Stored() int64 { return s.stored.Load() }

func (s *Shared) noteStored() {
	s.stored.Add(1)
	s.noteMoved()
}

// NoteMoved is told of each step towards an upload.
func (s *Shared) NoteMoved() { s.noteMoved() }

// noteMoved is told of each step of an upload.
func (s *Shared) noteMoved() { s.moved.Store(time.Now().UnixNano()) }

// startUpload waits for one of the places for uploads; endUpload gives it back.
func (s *Shared) startUpload(ctx context.Context) error { return take(ctx, s.uploads) }

func (s *Shared) endUpload() { <-s.uploads }

// startRewrite waits for the one place for a Rewrite; endRewrite gives it back.
func (s *Shared) startRewrite(ctx context.Context) error { return take(ctx, s.rewrites) }

func (s *Shared) endRewrite() { <-s.rewrites }

// take puts a token into places, or waits for ctx.
func take(ctx context.Context, places chan struct{}) error {
	select {
	case places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
