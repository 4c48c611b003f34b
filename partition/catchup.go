package partition

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"keyhole/index"
	"keyhole/locallog"
	"keyhole/record"
	"keyhole/tiered"
)

// feed is the index's intake: the one place through which entries go in, in log
// order, either from the committing goroutine of an append or from a replay.
type feed struct {
	mu       sync.Mutex
	ix       *index.Index // nil: none is open
	caughtUp bool         // appends go straight in; else a replay is on its way
}

func (f *feed) position() index.Position {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ix == nil {
		return index.Position{}
	}
	return f.ix.Applied()
}

// open gives the index, nil if there is none.
func (f *feed) open() *index.Index {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ix
}

// close closes the index and keeps its files.
func (f *feed) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ix == nil {
		return nil
	}
	err := f.ix.Close()
	f.ix, f.caughtUp = nil, false
	return err
}

// applyGroup is the log's hook: the group is durable and below the high
// watermark, and nobody who waits for it has been answered yet.
func (p *Partition) applyGroup(group []locallog.Appended) error {
	p.feed.mu.Lock()
	defer p.feed.mu.Unlock()
	if p.feed.ix == nil || !p.feed.caughtUp {
		return nil // a replay reads the group from the log
	}
	if err := p.feed.applyLocked(group); err != nil {
		// The records are durable, so their writers get their answer. Lookups
		// stop before that, and go on once a replay has put the group in.
		p.feed.caughtUp = false
		p.indexFailed(p.serving.Load(), err)
		return nil
	}
	p.applied.beat()
	return nil
}

// staged is an index commit in the making: entries, and the position behind them.
type staged struct {
	b       *index.Batch
	at      index.Position
	records int
}

func (f *feed) stageLocked() staged {
	return staged{b: f.ix.NewBatch(), at: f.ix.Applied()}
}

// add stages the records of one batch of the log, unless they are already in.
func (st *staged) add(r *record.Reader, a locallog.Appended) error {
	if err := r.Reset(a.Batch, maxUncompressed); err != nil {
		return err
	}
	h := r.Header()
	if a.LogBase+int64(h.LastOffsetDelta) < st.at.NextLog {
		return nil
	}
	// A batch that compaction has merged may reach from below the position to above
	// it: what is in already is left out.
	skip := st.at.NextLog - a.LogBase + h.BaseOffset
	for !h.IsControl() && r.Next() {
		rec := r.Record()
		if rec.Offset < skip {
			continue
		}
		st.records++
		switch {
		case rec.Key == nil:
		case rec.Value == nil:
			st.b.Delete(rec.Key)
		default:
			st.b.Set(rec.Key, a.KafkaBase+rec.Offset-h.BaseOffset)
		}
	}
	st.at.NextLog = a.LogBase + int64(h.LastOffsetDelta) + 1
	st.at.NextKafka = a.KafkaBase + int64(h.LastOffsetDelta) + 1
	if a.Synced {
		st.at.SyncedLog = st.at.NextLog
	}
	return r.Err()
}

// applyLocked puts a group and the position behind it into the index in one commit.
func (f *feed) applyLocked(group []locallog.Appended) error {
	st := f.stageLocked()
	defer st.b.Close()
	r := readers.Get().(*record.Reader)
	defer readers.Put(r)
	for _, a := range group {
		if err := st.add(r, a); err != nil {
			return err
		}
	}
	return st.b.Commit(st.at)
}

// tendIndex opens, catches up, mends or removes the index as the settings want.
func (p *Partition) tendIndex(ctx context.Context, s *Settings) error {
	if !s.IndexMaintained {
		return p.dropIndex()
	}
	if p.serving.Load() != nil {
		if !p.starved || !p.probeRoom() {
			return nil
		}
		p.indexFailed(p.serving.Load(), errStarved)
	}
	p.starved = false
	p.setReason(reasonCatchUp)
	if err := p.mendIndex(); err != nil {
		return err
	}
	if err := p.openIndex(); err != nil {
		return err
	}
	err := p.inTurn(ctx, func() error { return p.catchUp(ctx) })
	switch {
	case errors.Is(err, index.ErrFailed), errors.Is(err, index.ErrClosed):
		p.indexFailed(nil, err)
		return err
	case isDamaged(err):
		p.damage("record", err)
		return nil
	case err != nil:
		return fmt.Errorf("bring the index up to the log: %w", err)
	}
	return nil
}

// inTurn calls fn once there is room for one more replay into an index.
func (p *Partition) inTurn(ctx context.Context, fn func() error) error {
	if p.o.Start != nil {
		if err := p.o.Start.Acquire(ctx, 1); err != nil {
			return err
		}
		defer p.o.Start.Release(1)
	}
	return fn()
}

// mendIndex closes an index that failed, and removes it if it failed because its
// bytes are damaged.
func (p *Partition) mendIndex() error {
	p.mu.Lock()
	failure := p.mu.indexErr
	p.mu.indexErr = nil
	p.mu.Unlock()
	if failure == nil {
		return nil
	}
	if err := p.closeIndex(); err != nil {
		p.o.Logger.Warn("closing the failed index", "err", err)
	}
	if !isCorrupt(failure) {
		return nil
	}
	p.o.Metrics.Corruptions.WithLabelValues("local", "index").Inc()
	p.o.Metrics.Rebuilds.Inc()
	return index.Remove(p.o.FS, p.indexDir())
}

// openIndex opens the index unless it is open. A damaged one is thrown away: it
// can be built again from the two tiers.
func (p *Partition) openIndex() error {
	p.feed.mu.Lock()
	defer p.feed.mu.Unlock()
	if p.feed.ix != nil {
		return nil
	}
	o := index.Options{FS: p.o.FS, Shared: p.o.Indexes, Logger: p.o.Logger}
	ix, err := index.Open(p.indexDir(), o)
	if isCorrupt(err) {
		p.o.Metrics.Corruptions.WithLabelValues("local", "index").Inc()
		p.o.Logger.Error("index is damaged; building it anew", "err", err)
		if ix, err = p.emptyIndex(o); err != nil {
			return err
		}
	}
	if err != nil {
		return fmt.Errorf("open index: %w", err)
	}
	p.feed.ix = ix
	return nil
}

func (p *Partition) emptyIndex(o index.Options) (*index.Index, error) {
	p.o.Metrics.Rebuilds.Inc()
	if err := index.Remove(p.o.FS, p.indexDir()); err != nil {
		return nil, fmt.Errorf("remove index: %w", err)
	}
	return index.Open(p.indexDir(), o)
}

// rebuild swaps the open index for an empty one.
func (p *Partition) rebuild(why string) error {
	p.o.Logger.Warn("building the index anew", "why", why)
	if err := p.closeIndex(); err != nil {
		p.o.Logger.Warn("closing the outdated index", "err", err)
	}
	ix, err := p.emptyIndex(index.Options{FS: p.o.FS, Shared: p.o.Indexes, Logger: p.o.Logger})
	if err != nil {
		return fmt.Errorf("open empty index: %w", err)
	}
	p.feed.mu.Lock()
	defer p.feed.mu.Unlock()
	p.feed.ix = ix
	return nil
}

// dropIndex removes the index of a topic that does not ask for one.
func (p *Partition) dropIndex() error {
	p.serving.Store(nil)
	p.setReason("")
	if err := p.closeIndex(); err != nil {
		p.o.Logger.Warn("closing an index that is no longer wanted", "err", err)
	}
	if _, err := p.o.FS.Stat(p.indexDir()); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return index.Remove(p.o.FS, p.indexDir())
}

// catchUp replays into the index what it lacks, then lets appends in.
//
//	position ──► [ bucket: key runs ] ──► local start ──► [ local log ] ──► high watermark
//
// Where the local log is damaged and the bucket has the segment, its key run
// stands in.
func (p *Partition) catchUp(ctx context.Context) error {
	log := p.log.Load()
	if start := log.State().LocalStart; p.feed.position().NextKafka < start {
		if err := p.replayBucket(ctx, start); err != nil {
			return err
		}
	}
	err := p.replayLog(ctx, log, false)
	if at, next := p.feed.position(), log.State().RemoteNext; isCorrupt(err) && p.tier != nil && at.NextKafka < next {
		p.corrupted("local", err)
		if err = p.replayBucket(ctx, next); err == nil {
			err = p.replayLog(ctx, log, false)
		}
	}
	if err != nil {
		return err
	}
	// The last stretch with the intake closed to appends.
	if err := p.replayLog(ctx, log, true); err != nil {
		return err
	}
	p.applied.beat()
	return nil
}

// replayBatchRecords bounds the records of one index commit during a replay.
const replayBatchRecords = 16 << 10

// replayBucket applies the key runs of remote segments until the local log takes
// over at until.
func (p *Partition) replayBucket(ctx context.Context, until int64) error {
	if p.tier == nil && p.log.Load().State().RemoteNext == 0 {
		return p.skipTo(until) // what was there is no longer retained
	}
	from := p.feed.position().NextKafka
	if p.tier == nil {
		return record.Corrupt(p.indexDir(), from, fmt.Errorf("index ends at offset %d, the local log begins at %d, and no object store is configured", from, until))
	}
	if !p.claimed.Load() {
		if err := p.claim(ctx); err != nil {
			return err
		}
	}
	m := p.tier.Snapshot()
	if next := m.Next(); next < until {
		return record.Corrupt(p.indexDir(), next, fmt.Errorf("the bucket ends at offset %d, the local log begins at %d", next, until))
	}
	if from < m.DeleteHorizon && !isEmpty(p.feed.open()) {
		// Deletions that it has not seen may have left no trace in the bucket. That
		// goes for what it has from the local log, too.
		if err := p.rebuild(fmt.Sprintf("tombstones below offset %d are gone, and it ends at offset %d", m.DeleteHorizon, from-1)); err != nil {
			return err
		}
		from = 0
	}
	return p.replayKeyRuns(ctx, p.feed.open(), from, until)
}

// isEmpty reports whether an index has no entries. One that was being filled from
// the bucket when the process ended has some, and no position yet.
func isEmpty(ix *index.Index) bool {
	found := errors.New("found")
	return ix.Scan(func([]byte, int64) error { return found }) == nil
}

// progressInterval is how often a long replay says in the log how far it is.
const progressInterval = 5 * time.Second

// showProgress makes the reading of key runs visible: in the reason why the
// partition is not ready, and in the log if it takes long.
func (p *Partition) showProgress() func(tiered.KeyRunProgress) {
	said := time.Now()
	return func(at tiered.KeyRunProgress) {
		if p.serving.Load() == nil {
			p.setReason(fmt.Sprintf("%s: %d of %d segments of the bucket", reasonCatchUp, at.Segments, at.Of))
		}
		if time.Since(said) >= progressInterval {
			said = time.Now()
			p.o.Logger.Info("building the index from the bucket", "segments", at.Segments, "of", at.Of, "bytes", at.Bytes, "of_bytes", at.OfBytes)
		}
	}
}

// skipTo moves the position of the index over offsets that no tier has.
func (p *Partition) skipTo(next int64) error {
	ix := p.feed.open()
	b := ix.NewBatch()
	defer b.Close()
	return b.Commit(index.Position{NextKafka: next})
}

// replayKeyRuns brings ix from offset from to next by what the bucket has.
func (p *Partition) replayKeyRuns(ctx context.Context, ix *index.Index, from, next int64) error {
	b, n := ix.NewBatch(), 0
	defer func() { b.Close() }()
	// No log offset is known for what is in the bucket; 0 makes the replay of the
	// local log begin at the segment that holds the Kafka offset. Entries of one
	// remote segment come by key, so the position moves only at the end: a crash
	// in between begins again at from, and applying an entry twice in order
	// changes nothing.
	commit := func(next int64) error {
		err := b.Commit(index.Position{NextKafka: next})
		b.Close()
		b, n = ix.NewBatch(), 0
		return err
	}
	err := p.tier.KeyRuns(ctx, from, p.showProgress(), func(key []byte, offset int64, tombstone bool) error {
		if tombstone {
			b.Delete(key)
		} else {
			b.Set(key, offset)
		}
		p.o.Metrics.Replayed.Inc()
		if n++; n < replayBatchRecords {
			return nil
		}
		return commit(from)
	})
	if err != nil {
		return fmt.Errorf("read key runs from the bucket: %w", err)
	}
	return commit(next)
}

// replayLog applies what the index lacks of the local log. The closing pass
// holds the intake, so that no append slips between its end and the first append
// that feeds the index itself; the pass before it keeps that moment short.
func (p *Partition) replayLog(ctx context.Context, log *locallog.Log, closing bool) error {
	p.feed.mu.Lock()
	defer p.feed.mu.Unlock()
	st := p.feed.stageLocked()
	defer func() { st.b.Close() }()
	commit := func() error {
		p.o.Metrics.Replayed.Add(float64(st.records))
		if err := st.b.Commit(st.at); err != nil {
			return err
		}
		st.b.Close()
		if !closing {
			// Appends that wait for the intake are let through; they find the
			// replay not finished and leave their group to it.
			p.feed.mu.Unlock()
			p.feed.mu.Lock()
		}
		st = p.feed.stageLocked()
		return nil
	}
	r := readers.Get().(*record.Reader)
	defer readers.Put(r)
	err := log.Scan(ctx, replayStart(log, st.at), func(a locallog.Appended) error {
		if err := st.add(r, a); err != nil {
			return err
		}
		if st.records < replayBatchRecords {
			return nil
		}
		return commit()
	})
	if err != nil {
		return err
	}
	if err := commit(); err != nil || !closing {
		return err
	}
	p.feed.caughtUp = true
	p.publish(&view{log: log, ix: p.feed.ix})
	return nil
}

// replayStart is the log offset from which the log has what an index at
// position at lacks.
func replayStart(log *locallog.Log, at index.Position) int64 {
	for _, seg := range log.Segments() {
		if seg.NextKafka > at.NextKafka || !seg.Sealed {
			return max(seg.BaseLog, at.NextLog)
		}
	}
	return at.NextLog
}

// indexTrouble turns a failing index into an answer and has it mended.
func (p *Partition) indexTrouble(v *view, err error) error {
	if p.ctx.Err() != nil || errors.Is(err, index.ErrClosed) && p.serving.Load() != v {
		return p.notServing()
	}
	p.indexFailed(v, err)
	return fmt.Errorf("%w: index: %w", ErrNotReady, err)
}

var errStarved = errors.New("index ran out of space")

// flushTrouble is indexTrouble for a flush. An index that found no room lacks
// nothing that was appended, so it serves on until there is room to reopen it.
func (p *Partition) flushTrouble(v *view, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		p.starved = true
		return fmt.Errorf("index: %w", err)
	}
	return p.indexTrouble(v, err)
}

// indexFailed takes the index out of service; the background work reopens it,
// and builds it anew if it is damaged. v is the view that failed: a newer one
// stays. Lookups stop only once the reason is written down.
func (p *Partition) indexFailed(v *view, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.serving.Load() != v {
		return
	}
	p.mu.reason = "index failed: " + err.Error()
	p.mu.indexErr = err
	p.serving.Store(nil)
	p.o.Logger.Error("index failed; reopening it", "err", err)
	p.wake()
}
