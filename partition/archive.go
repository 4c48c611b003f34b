package partition

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"keyhole/locallog"
	"keyhole/objstore"
	"keyhole/tiered"
)

const (
	// uploadGroup is how many segments share one write of the manifest.
	uploadGroup = 8
	// evictPatience is how long Evict goes on without progress while the store
	// is in trouble. Whoever asked is promised an answer within ten seconds, and
	// an attempt that begins just before the end takes a moment to fail.
	evictPatience = 8 * time.Second
)

// chore does what is due: claim the partition, roll, upload, evict, and mend the
// index. It is called again after a pause, sooner after an error.
func (p *Partition) chore(ctx context.Context) error {
	if err := p.enter(ctx); err != nil {
		return err
	}
	defer p.leave()
	if p.fenced.Load() {
		return nil
	}
	s := p.settings.Load()
	log := p.log.Load()
	if log == nil {
		return p.reopen(ctx) // an attempt to begin anew did not come through
	}
	p.mendLog(ctx, log)
	err := p.work(ctx, log, s)
	if errors.Is(err, errTakeOver) {
		if err = p.beginAnew(err); err == nil {
			return p.recover(ctx)
		}
	}
	return err
}

// work is what a chore does while the log is there.
func (p *Partition) work(ctx context.Context, log *locallog.Log, s *Settings) error {
	if err := p.tendIndex(ctx, s); err != nil {
		return err
	}
	if s.SegmentAge > 0 && log.Err() == nil {
		if err := p.rollByAge(ctx, log, s.SegmentAge); err != nil {
			return err
		}
	}
	if p.tier == nil {
		return p.retain(ctx, log, s, new(CompactionStats))
	}
	// What is sealed goes to the bucket even if the log cannot note that.
	err := p.uploadSealed(ctx, log, s, new(CompactionStats))
	if log.Err() != nil || err != nil && !errors.Is(err, tiered.ErrSource) {
		return err
	}
	// Each for itself, and also if a segment is damaged and keeps those behind it from
	// the bucket: what is there already must not fill the local disk as well.
	return errors.Join(err,
		p.trim(ctx, log, s, dueForEviction(p.segments(log), s, time.Now())),
		p.retain(ctx, log, s, new(CompactionStats)),
	)
}

func (p *Partition) rollByAge(ctx context.Context, log *locallog.Log, age time.Duration) error {
	segs := log.Segments()
	active := segs[len(segs)-1]
	if active.FirstAppend.IsZero() || time.Since(active.FirstAppend) < age {
		return nil
	}
	return log.Roll(ctx)
}

// storeFailed notes a failure of the bucket and fences the partition when that
// is what the failure says.
func (p *Partition) storeFailed(err error) error {
	if errors.Is(err, tiered.ErrFenced) {
		p.fence(p.unuploaded(err))
		return ErrNotHosted
	}
	p.setStoreTrouble(err)
	return err
}

// uploadSealed brings every sealed segment to the bucket, in order. The order of
// one group is: objects → manifest → note in the log; only after the note may a
// segment be evicted, so a failure leaves no hole, only work to do again.
func (p *Partition) uploadSealed(ctx context.Context, log *locallog.Log, s *Settings, stats *CompactionStats) error {
	if err := p.claim(ctx); err != nil {
		return err
	}
	// What is sealed from now on is left to the next round: a store that is slower
	// than the writers would keep whoever waits for this one for ever.
	until := log.State().HighWatermark
	for more := s.RemoteWrite; more && p.tier.Snapshot().Next() < until; {
		var err error
		if more, err = p.uploadGroup(ctx, log, s, stats); err != nil {
			return err
		}
	}
	if s.RemoteWrite { // also of a round whose reply was lost
		if err := p.noteRemote(ctx, log); err != nil {
			return err
		}
	}
	p.setStoreTrouble(nil)
	return nil
}

// uploadGroup uploads the next few segments, or as many as were compacted as a whole,
// and reports whether more may follow.
func (p *Partition) uploadGroup(ctx context.Context, log *locallog.Log, s *Settings, stats *CompactionStats) (more bool, err error) {
	next, together := p.tier.Snapshot().Next(), p.together.Load()
	whole := min(together, log.State().HighWatermark) // what is behind was lost in a crash
	var segs []locallog.SegmentInfo
	for _, seg := range p.segments(log) {
		if !seg.Sealed || seg.NextKafka <= next || seg.BaseKafka == seg.NextKafka {
			continue
		}
		if more = len(segs) >= uploadGroup && seg.BaseKafka >= whole; more {
			break
		}
		segs = append(segs, seg)
	}
	if n := len(segs); n > 0 && segs[n-1].NextKafka < whole {
		return false, nil // a crash came before the rest was sealed; it will be
	}
	if err := p.compactBeforeUpload(ctx, segs, s, stats); err != nil {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		// Uploading goes on without: it only takes more room.
		p.o.Logger.Warn("segments are uploaded without being compacted", "err", err)
	}
	var sources []tiered.Source
	var size int64
	defer func() {
		for _, src := range sources {
			src.(*source).Close()
		}
	}()
	for _, seg := range segs {
		r, err := log.OpenSegment(seg.BaseLog)
		if isCorrupt(err) {
			err = fmt.Errorf("%w: %w", tiered.ErrSource, err)
		}
		if err != nil {
			return false, fmt.Errorf("open segment at log offset %d for upload: %w", seg.BaseLog, err)
		}
		sources = append(sources, &source{SegmentReader: r, moved: &p.moved})
		size += r.Size()
	}
	if p.together.Load() != together {
		return true, nil // uploads were off meanwhile, and some of these may lack what others have
	}
	if len(sources) > 0 {
		if _, err := p.tier.Upload(ctx, sources, whole); err != nil {
			p.o.Metrics.Uploads.WithLabelValues("error").Add(float64(len(sources)))
			if isCorrupt(err) {
				p.corrupted("local", err)
				return false, errors.Join(err, p.noteRemote(ctx, log)) // those before it are in the bucket
			}
			return false, p.storeFailed(err)
		}
		p.moved.Store(time.Now().UnixNano())
		p.o.Metrics.Uploads.WithLabelValues("ok").Add(float64(len(sources)))
		p.o.Metrics.UploadedBytes.Add(float64(size))
	}
	return more, p.noteRemote(ctx, log)
}

// noteRemote writes down in the log how far the bucket has it. A crash between
// the manifest and the note leaves the note behind; the next round mends it.
func (p *Partition) noteRemote(ctx context.Context, log *locallog.Log) error {
	m := p.tier.Snapshot()
	if st := log.State(); st.RemoteNext >= m.Next() || log.Err() != nil {
		return nil
	}
	return log.Note(ctx, locallog.Note{RemoteNext: m.Next(), ManifestGeneration: m.Generation})
}

// source is a sealed segment on its way to the bucket. Reading it is progress:
// an upload whose body moves is not stuck, however long it takes.
type source struct {
	*locallog.SegmentReader
	moved *atomic.Int64
}

func (s *source) ReadAt(b []byte, off int64) (int, error) {
	s.moved.Store(time.Now().UnixNano())
	return s.SegmentReader.ReadAt(b, off)
}

// dueForEviction gives the offset below which the local target wants segments
// gone: oldest first, while there are too many bytes or they are too old. Age is
// counted from sealing, not from record timestamps, which a producer may date as
// it likes.
func dueForEviction(segs []locallog.SegmentInfo, s *Settings, now time.Time) int64 {
	total, cut := totalBytes(segs), int64(0)
	for _, seg := range segs {
		tooMany := s.LocalTargetBytes >= 0 && total > s.LocalTargetBytes
		tooOld := s.LocalTargetAge >= 0 && seg.Sealed && now.Sub(seg.SealedAt) > s.LocalTargetAge
		if !seg.Sealed || !tooMany && !tooOld {
			break
		}
		cut = seg.NextKafka
		total -= seg.Bytes
	}
	return cut
}

// trim removes local segments below cut, but none that the bucket or the
// durable index cannot do without.
func (p *Partition) trim(ctx context.Context, log *locallog.Log, s *Settings, cut int64) error {
	st := log.State()
	cut = min(cut, st.RemoteNext)
	if cut <= st.LocalStart {
		return nil
	}
	if s.IndexMaintained {
		v := p.serving.Load()
		if v == nil {
			return ErrNotReady
		}
		if err := p.flush(ctx, v); err != nil {
			return err
		}
		cut = min(cut, v.ix.Durable().NextKafka)
	}
	before := log.Segments()
	if err := log.TrimPrefix(ctx, cut); err != nil {
		return err
	}
	for _, seg := range before {
		if seg.Sealed && seg.NextKafka <= cut {
			p.o.Metrics.Evictions.Inc()
			p.o.Metrics.EvictedBytes.Add(float64(seg.Bytes))
		}
	}
	return nil
}

// flush makes the index durable, after the log, which it must not be ahead of. The
// caller holds chores.
func (p *Partition) flush(ctx context.Context, v *view) error {
	if err := v.log.Sync(ctx); err != nil {
		return p.appendTrouble(err)
	}
	if err := v.ix.Flush(ctx); err != nil {
		return p.flushTrouble(v, err)
	}
	return nil
}

// Evict rolls, uploads and evicts whole segments, oldest first, until at most
// localTargetBytes of records remain on local disk; 0 leaves none. It answers
// when done, or with the store's error within ten seconds without progress.
func (p *Partition) Evict(ctx context.Context, localTargetBytes int64) (Status, error) {
	s := *p.settings.Load()
	switch {
	case p.fenced.Load(), p.o.Replica:
		return Status{}, ErrNotHosted
	case !p.o.remote():
		return Status{}, ErrNoStore
	case !s.RemoteWrite:
		return Status{}, ErrRemoteWriteDisabled
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)() // Close does not wait for an eviction
	if err := p.enterSoon(ctx); err != nil {
		return Status{}, err
	}
	defer p.leave()
	log := p.log.Load()
	if log == nil {
		return Status{}, p.notServing()
	}
	s.LocalTargetBytes, s.LocalTargetAge = localTargetBytes, -1
	for range evictRounds {
		err := p.evictOnce(ctx, log, &s)
		if errors.Is(err, errTakeOver) {
			p.wake() // the next chore begins the log anew
			return Status{}, fmt.Errorf("%w: %w", ErrNotReady, err)
		}
		if err != nil {
			return Status{}, err
		}
		if segs := log.Segments(); totalBytes(segs) <= localTargetBytes || len(segs) == 1 {
			break
		}
	}
	return p.Status(), nil
}

// evictRounds bounds how often an eviction begins again because of what was written
// meanwhile: records, or its own notes.
const evictRounds = 3

func (p *Partition) evictOnce(ctx context.Context, log *locallog.Log, s *Settings) error {
	if err := log.Roll(ctx); err != nil {
		return p.appendTrouble(err)
	}
	if err := p.uploadPatiently(ctx, log, s, new(CompactionStats)); err != nil {
		return err
	}
	return p.trim(ctx, log, s, dueForEviction(log.Segments(), s, time.Now()))
}

func totalBytes(segs []locallog.SegmentInfo) (n int64) {
	for _, seg := range segs {
		n += seg.Bytes
	}
	return n
}

// enterSoon is enter for a caller who is promised an answer: background work in
// which nothing moves for evictPatience is most likely waiting for the store.
func (p *Partition) enterSoon(ctx context.Context) error {
	ctx, cancel := p.patiently(ctx)
	defer cancel()
	err := p.enter(ctx)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, objstore.ErrUnavailable) {
		return fmt.Errorf("background work has not ended: %w", cause)
	}
	return err
}

// patiently derives a context that ends once nothing has moved towards the bucket
// for evictPatience: not of this partition, nor of another one that it may have to
// wait for. context.Cause says so.
func (p *Partition) patiently(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	begun := time.Now()
	left := func() time.Duration {
		moved := time.Unix(0, max(p.moved.Load(), begun.UnixNano()))
		if other := p.o.Tiers.UploadMoved(); other.After(moved) {
			moved = other
		}
		return evictPatience - time.Since(moved)
	}
	var watch *time.Timer
	known := make(chan struct{})
	watch = time.AfterFunc(evictPatience, func() {
		<-known
		if d := left(); d > 0 {
			watch.Reset(d)
			return
		}
		cancel(fmt.Errorf("%w: no progress for %v", objstore.ErrUnavailable, evictPatience))
	})
	close(known)
	return ctx, func() {
		watch.Stop()
		cancel(nil)
	}
}

// uploadPatiently repeats uploadSealed with back-off until it succeeds, or until
// nothing has moved towards the bucket for evictPatience. Inside an attempt every
// byte read counts as movement; over several attempts only what arrived does,
// because a store that refuses everything has each body read to it again.
func (p *Partition) uploadPatiently(ctx context.Context, log *locallog.Log, s *Settings, stats *CompactionStats) error {
	ctx, cancel := p.patiently(ctx)
	defer cancel()
	arrived, since := p.o.Tiers.Stored(), time.Now()
	for backoff := nextBackoff(0); ; backoff = nextBackoff(backoff) {
		err := p.uploadSealed(ctx, log, s, stats)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		if !unavailable(err) {
			return err
		}
		if n := p.o.Tiers.Stored(); n > arrived {
			arrived, since = n, time.Now()
		}
		if backoff > evictPatience-time.Since(since) || !p.pause(backoff) {
			return err
		}
	}
}
