package locallog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

var (
	// ErrClosed says that the log was closed.
	ErrClosed = errors.New("log is closed")
	// ErrReadOnly says that a write or a sync failed earlier, for the reason that
	// it wraps. What was acknowledged is there and can be read; appending needs
	// the log to be opened again, or Resume if it is ErrNoSpace too.
	ErrReadOnly = errors.New("log is read-only")
	// ErrNoSpace says that the disk had no room for a write, and that no sync has
	// failed: it is known what the log holds, and Resume can make it writable.
	ErrNoSpace = errors.New("no space left for the log")
	// ErrBelowStart says that an offset lies below the log's local start.
	ErrBelowStart = errors.New("offset is below the local start")
	// ErrNotFound says that no batch holds an offset: it is in a gap, or at or
	// above the high watermark.
	ErrNotFound = errors.New("no batch at this offset")
	// ErrInvalid says that a batch cannot be appended as it is.
	ErrInvalid = errors.New("invalid batch")
	// ErrTooLarge says that a batch exceeds Options.MaxBatchBytes.
	ErrTooLarge = errors.New("batch is too large")
	// ErrNoSegment says that no segment begins at a log offset.
	ErrNoSegment = errors.New("no such segment")
)

// Options say where a log is and how it behaves. The functions are asked anew
// for every commit, so their answers may change.
type Options struct {
	FS     vfs.FS
	Dir    string       // of this log alone; made if absent, with its parents
	Logger *slog.Logger // nil: nothing is logged

	// Epoch of the partition's writer. It is part of segment names, so a segment
	// of another epoch is not appended to. One lower than the log's is raised, and
	// above the log's if that was not stopped cleanly: then records may be lost
	// that somebody has seen, and an offset that is given again must not be taken
	// for the one before.
	Epoch int32
	// StartKafka is the Kafka offset with which a log begins that has no files.
	StartKafka int64
	// SegmentBytes is the size beyond which a segment that holds data is rolled.
	// nil: never by size.
	SegmentBytes func() int64
	// FlushInterval bounds how long an answered append may stay unsynced. nil or
	// 0: every append is synced before it is answered.
	FlushInterval func() time.Duration
	// Apply is called for every group of appended batches, in offset order, after
	// they are written, synced by the flush rule and below the high watermark, and
	// before anyone is answered. It runs on an appender's goroutine and must not
	// call the log's writing methods. Its argument is valid during the call only.
	// After an error the log is read-only: the group is in the log, and whoever
	// opens it again sees it.
	Apply func(group []Appended) error
	// ProvenNextLog is a log offset below which everything was durable once: the
	// index's position. A bad tail below it is damage and not a torn write.
	// ProvenNextKafka is the Kafka offset that goes with it, 0 if not known; then
	// the log goes on behind a damaged tail at an upper bound, leaving a gap.
	ProvenNextLog, ProvenNextKafka int64
	// MaxBatchBytes bounds one appended batch. 0: no bound but the format's.
	MaxBatchBytes int64
}

// Appended is a batch of the log: its bytes, with the log offset as base offset,
// and where it stands in both ways of counting.
type Appended struct {
	Batch              []byte
	LogBase, KafkaBase int64
	// Synced says that Apply is called with the batch on disk for good. Scan
	// leaves it false.
	Synced bool
}

// State is where a log stands. All but NextLog are Kafka offsets.
type State struct {
	LocalStart         int64 // lowest offset that can be read here
	HighWatermark      int64 // exclusive: the next offset to be given
	NextLog            int64 // the next log offset to be given
	RemoteNext         int64 // exclusive: the bucket has everything below, as noted
	ManifestGeneration int64 // of the manifest that says so
	Epoch              int32
}

// SegmentInfo describes a segment. A segment holds data iff NextKafka > BaseKafka.
type SegmentInfo struct {
	BaseLog, NextLog     int64
	BaseKafka, NextKafka int64
	Bytes                int64
	Sealed               bool
	Damaged              bool  // some of its offsets answer record.ErrCorrupt, as far as known
	MaxTimestamp         int64 // largest record timestamp, Unix milliseconds
	Epoch                int32
	// FirstAppend is when the first data was appended, by the wall clock; zero if
	// there is none. After a restart the time at which the active segment was
	// begun stands in for it.
	FirstAppend time.Time
	SealedAt    time.Time // zero for the active segment
}

// Log is a partition's local log. Its methods may be called in parallel.
type Log struct {
	o    Options
	d    *directory
	view atomic.Pointer[view]

	token chan struct{} // holds one element while someone writes
	queue struct {
		sync.Mutex
		waiting []*request
	}
	failure atomic.Pointer[error] // why the log is read-only

	compacting chan struct{}   // holds one element while a segment is compacted
	life       context.Context // until Close, which calls end and waits for the compaction
	end        context.CancelFunc

	flushes   sync.WaitGroup // timers that are armed or running
	closeOnce sync.Once
	closeErr  error

	// w is the writing side, for the holder of the token.
	w struct {
		file    vfs.File // the active segment; nil until something is written
		x       indexer  // of the active segment
		dirty   bool     // written and not synced
		flusher *time.Timer
		stopped bool // the file clean-stop is there
		closed  bool
	}
}

// view is all that a reader needs, immutable. A new one replaces it whenever
// something changes, which is what makes a change visible.
type view struct {
	State
	sealed []*sealed // oldest first
	active active
	closed bool
	// truncations counts how often a suffix was taken back since Open.
	truncations int
}

// active is the part of the last segment that is committed.
type active struct {
	*segment
	size         int64
	t            table
	maxTimestamp int64
	firstAppend  int64 // Unix milliseconds; 0: no data yet, or not known
}

// hasData reports whether the active segment holds data.
func (v *view) hasData() bool { return v.HighWatermark > v.active.baseKafka }

func (v *view) tail() extent {
	return extent{
		segment: v.active.segment, size: v.active.size, t: v.active.t,
		nextLog: v.NextLog, nextKafka: v.HighWatermark,
	}
}

// State gives one consistent snapshot.
func (l *Log) State() State { return l.view.Load().State }

// EpochAt is the epoch in which the record at a Kafka offset was written: offset
// and epoch together never stand for two records, unless TruncateSuffix took one
// back. It reads nothing. The errors
// are ErrBelowStart, ErrNotFound and ErrClosed.
func (l *Log) EpochAt(offset int64) (int32, error) {
	v := l.view.Load()
	switch {
	case v.closed:
		return 0, ErrClosed
	case offset < v.LocalStart:
		return 0, ErrBelowStart
	case offset >= v.HighWatermark:
		return 0, ErrNotFound
	case offset >= v.active.baseKafka:
		return v.active.epoch, nil
	}
	if s := v.holding(offset); s != nil {
		return s.epoch, nil
	}
	return 0, ErrNotFound
}

// RaiseEpoch lets what is appended from now on be of an epoch, if that is above
// the log's.
func (l *Log) RaiseEpoch(ctx context.Context, epoch int32) error {
	return l.exclusively(ctx, func() error {
		l.publish(func(v *view) { v.Epoch = max(v.Epoch, epoch) })
		return nil
	})
}

// Err is why the log is read-only: an ErrReadOnly that wraps the cause, or nil.
func (l *Log) Err() error {
	if err := l.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// Segments lists the segments, oldest first; the last one is the active one.
func (l *Log) Segments() []SegmentInfo {
	v := l.view.Load()
	infos := make([]SegmentInfo, 0, len(v.sealed)+1)
	for _, s := range v.sealed {
		infos = append(infos, s.info())
	}
	a := v.active
	return append(infos, SegmentInfo{
		BaseLog: a.baseLog, NextLog: v.NextLog, BaseKafka: a.baseKafka, NextKafka: v.HighWatermark,
		Bytes: a.size, MaxTimestamp: a.maxTimestamp, Epoch: a.epoch, FirstAppend: milli(a.firstAppend),
	})
}

// lock waits for the token. Whoever has it is the only one who writes.
func (l *Log) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case l.token <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

func (l *Log) unlock() { <-l.token }

// usableLocked says why nothing may be written, if so.
func (l *Log) usableLocked() error {
	if l.w.closed {
		return ErrClosed
	}
	return l.Err()
}

// exclusively runs a writing operation with the token held.
func (l *Log) exclusively(ctx context.Context, fn func() error) error {
	if err := l.lock(ctx); err != nil {
		return err
	}
	defer l.unlock()
	if err := l.usableLocked(); err != nil {
		return err
	}
	return fn()
}

// failLocked makes the log read-only for good and says so to the caller.
func (l *Log) failLocked(err error) error {
	err = fmt.Errorf("%w: %w", ErrReadOnly, err)
	l.failure.Store(&err)
	l.d.logger.Error("log is read-only", "dir", l.d.path, "err", err)
	return err
}

// Sync makes everything appended so far durable, whatever the flush rule says.
func (l *Log) Sync(ctx context.Context) error {
	return l.exclusively(ctx, l.syncLocked)
}

func (l *Log) syncLocked() error {
	if !l.w.dirty {
		return nil
	}
	if err := l.w.file.SyncData(); err != nil {
		return l.failLocked(fmt.Errorf("sync %s: %w", l.view.Load().active.name, err))
	}
	l.w.dirty = false
	return nil
}

// flushLaterLocked sees to it that the log is synced within the interval.
func (l *Log) flushLaterLocked(interval time.Duration) {
	if l.w.flusher != nil {
		return
	}
	l.flushes.Add(1)
	l.w.flusher = time.AfterFunc(interval, func() {
		defer l.flushes.Done()
		l.token <- struct{}{}
		defer l.unlock()
		l.w.flusher = nil
		if l.usableLocked() == nil {
			_ = l.syncLocked() // the log says itself that it is read-only
		}
	})
}

// Close syncs the log, notes that it was stopped cleanly, and gives its files up
// once their readers have left. Calls that wait to write get ErrClosed, as do all
// later ones. It is idempotent.
func (l *Log) Close() error {
	l.closeOnce.Do(func() {
		l.end()
		l.compacting <- struct{}{} // for good
		l.token <- struct{}{}
		l.closeErr = l.closeLocked()
		l.unlock()
		l.flushes.Wait()
	})
	return l.closeErr
}

func (l *Log) closeLocked() error {
	l.w.closed = true
	if l.w.flusher != nil && l.w.flusher.Stop() {
		l.flushes.Done()
	}
	var err error
	if l.Err() == nil {
		if err = l.syncLocked(); err == nil && !l.w.stopped {
			err = l.noteStop()
		}
	}
	if l.w.file != nil {
		err = errors.Join(err, l.w.file.Close())
	}
	l.w.file = nil
	v := *l.view.Load()
	v.closed = true
	l.view.Store(&v)
	v.release()
	return err
}

// release gives up the log's own references.
func (v *view) release() {
	for _, s := range v.sealed {
		s.release()
	}
	v.active.release()
}

// noteStop writes the file clean-stop, which says where the log ends.
func (l *Log) noteStop() error {
	v := l.view.Load()
	n := v.notice(kindStop)
	n.segment, n.segmentBytes, n.prevLog = v.active.baseLog, v.active.size, n.log
	b, err := n.appendTo(nil)
	if err == nil {
		err = l.d.write(stopFile, b)
	}
	if err == nil {
		err = l.d.sync()
	}
	if err != nil {
		return fmt.Errorf("note clean stop: %w", err)
	}
	return nil
}

// notice describes the state of the log in an internal batch, to be written next.
func (v *view) notice(k kind) notice {
	return notice{
		kind: k, log: v.NextLog, time: time.Now().UnixMilli(), nextKafka: v.HighWatermark, epoch: v.Epoch,
		localStart: v.LocalStart, remoteNext: v.RemoteNext, generation: v.ManifestGeneration,
	}
}

// publish replaces the view by one that fn has changed.
func (l *Log) publish(fn func(*view)) {
	v := *l.view.Load()
	fn(&v)
	l.view.Store(&v)
}

// withSealed gives the list with one more element, leaving the old one alone.
func withSealed(list []*sealed, s *sealed) []*sealed {
	return append(slices.Clip(list), s)
}
