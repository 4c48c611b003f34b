package index

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
)

const (
	// memTableSize is where a memtable stops growing. Pebble starts each database
	// with firstMemTable and doubles from one memtable to the next, so that idle
	// ones stay small. A larger one would mean fewer flushes and fsyncs, and more
	// memory for every partition that has ever been busy.
	memTableSize  = 1 << 20
	firstMemTable = 256 << 10

	// blockSize is a compromise: a lookup that misses the block cache costs about
	// 10 µs with 4 KiB and half as much again with 8 KiB, and the tables are not
	// smaller with the latter.
	blockSize = 4 << 10
	// tableSize is the size of tables at level 0; each level doubles it.
	tableSize = 2 << 20
	// filterBits is the size of the Bloom filters per key: one in a hundred absent
	// keys passes.
	filterBits = 10
	// maxManifest bounds Pebble's log of table changes before it starts a new one.
	// The default of 128 MiB is not meant for a thousand databases.
	maxManifest = 1 << 20
)

// Shared is what all indexes of a process have in common: the block cache, the
// cache of open files and the slots for compactions. It must be closed after them.
type Shared struct {
	blocks  *pebble.Cache
	files   *pebble.FileCache
	limiter *limiter

	mu struct {
		sync.Mutex
		memTables int64  // bytes of memtables of all indexes
		release   func() // gives back what is set aside; see setAside
	}
	once sync.Once
}

// memTableReserve is set aside for memtables that are not there yet. Only address
// arithmetic pays for it: nothing is allocated.
const memTableReserve = 1 << 40

// NewShared returns caches for at most cacheBytes of uncompressed blocks and
// maxOpenFiles open tables.
func NewShared(cacheBytes int64, maxOpenFiles int) *Shared {
	s := &Shared{
		blocks:  pebble.NewCache(max(cacheBytes, 0) + memTableReserve),
		files:   pebble.NewFileCache(runtime.GOMAXPROCS(0), max(maxOpenFiles, 1)),
		limiter: newLimiter(max(1, runtime.GOMAXPROCS(0)/2)),
	}
	s.setAside(0)
	return s
}

// Close frees the caches. It may be called again.
func (s *Shared) Close() {
	s.once.Do(func() {
		s.files.Unref()
		s.blocks.Unref()
	})
}

// setAside counts memtables in or out. Pebble takes their memory out of the block
// cache, so that a thousand idle indexes would leave a cache of 256 MiB empty, and
// as many busy ones a larger one. The cache is therefore larger by memTableReserve,
// and all of that which is not memtables is set aside.
func (s *Shared) setAside(delta int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.memTables += delta
	if s.mu.release != nil {
		s.mu.release()
	}
	s.mu.release = s.blocks.Reserve(int(memTableReserve - s.mu.memTables))
}

// setMemTables tells the Shared the size of the index's memtables. The caller holds
// x.commit, or is the only one there is.
func (x *Index) setMemTables(size int64) {
	if size != x.memTables {
		x.shared.setAside(size - x.memTables)
		x.memTables = size
	}
}

// options returns Pebble's options for one index. What is measured, per key of 16
// bytes in ascending order, ten million of them: see docs/format/index.md.
func (x *Index) options(o Options) *pebble.Options {
	opts := &pebble.Options{
		FS:                 failingFS{o.FS, x.failure},
		Lock:               x.lock,
		Cache:              o.Shared.blocks,
		FileCache:          o.Shared.files,
		FormatMajorVersion: pebble.FormatNewest,
		DisableWAL:         true,
		ReadOnly:           o.ReadOnly,

		MemTableSize:        memTableSize,
		MaxManifestFileSize: maxManifest,
		// Commits wait in waitForRoom instead.
		MemTableStopWritesThreshold: math.MaxInt32,
		L0StopWritesThreshold:       math.MaxInt32,

		Logger:        logger{o.Logger, x},
		EventListener: x.events(),
	}
	opts.TargetFileSizes[0] = tableSize
	for i := range opts.Levels {
		level := &opts.Levels[i]
		level.BlockSize = blockSize
		level.IndexBlockSize = blockSize
		level.Compression = func() *sstable.CompressionProfile { return sstable.BalancedCompression }
		// Pebble's Get asks the filters of all levels but the last, where nine
		// tenths of the keys are. Asking them there as well makes absent keys twice
		// as fast and all others a quarter slower, as their filters (hundreds of
		// KiB each) push data out of the cache; so they are not even written.
		if i < len(opts.Levels)-1 {
			level.FilterPolicy = bloom.FilterPolicy(filterBits)
		}
	}
	opts.Experimental.CompactionScheduler = x.sched
	// Lookups start no compactions: an index at rest rests.
	opts.Experimental.ReadSamplingMultiplier = -1
	return opts
}

// logger passes Pebble's messages on at level debug. What matters among them
// arrives as events and becomes the index's error.
type logger struct {
	*slog.Logger
	x *Index
}

func (l logger) Infof(format string, args ...any)  { l.debugf(format, args...) }
func (l logger) Errorf(format string, args ...any) { l.debugf(format, args...) }

// Fatalf is called where Pebble expects the process to end. Instead the index
// fails, and Pebble goes on without being able to write.
func (l logger) Fatalf(format string, args ...any) {
	l.debugf(format, args...)
	var cause error
	for _, arg := range args {
		if err, ok := arg.(error); ok {
			cause = err
		}
	}
	if cause == nil {
		cause = fmt.Errorf(format, args...)
	}
	l.x.failure.set(l.x.classify(cause))
}

func (l logger) debugf(format string, args ...any) {
	if ctx := context.Background(); l.Enabled(ctx, slog.LevelDebug) {
		l.Debug(fmt.Sprintf(format, args...), "dir", l.x.dir)
	}
}
