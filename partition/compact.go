package partition

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"keyhole/index"
	"keyhole/locallog"
	"keyhole/manifest"
	"keyhole/tiered"
)

// Compaction is what one call of Compact has done, and the status behind it.
type Compaction struct {
	Status
	Done CompactionStats `json:"compaction"`
}

// CompactionStats count what was removed. Bytes are those of the segments that were
// rewritten or removed, before and after.
type CompactionStats struct {
	LocalSegments     int   `json:"local_segments"` // rewritten
	LocalBytesBefore  int64 `json:"local_bytes_before"`
	LocalBytesAfter   int64 `json:"local_bytes_after"`
	CloudSegments     int   `json:"cloud_segments"` // rewritten or removed
	CloudBytesBefore  int64 `json:"cloud_bytes_before"`
	CloudBytesAfter   int64 `json:"cloud_bytes_after"`
	RecordsRemoved    int64 `json:"records_removed"`
	TombstonesRemoved int64 `json:"tombstones_removed"` // of those
	SegmentsExpired   int   `json:"segments_expired"`   // by retention
	BytesExpired      int64 `json:"bytes_expired"`      // of those
}

// compactions admits one compaction of a partition at a time, and ends it for
// whoever closes what it reads.
type compactions struct {
	turn chan struct{} // holds one token while a compaction runs, or must not
	mu   struct {
		sync.Mutex
		cancel     context.CancelFunc // of the running one
		background bool               // nobody waits for the running one
		halting    int                // how many want none to run
	}
}

// begin waits for the turn. The caller calls end, which may be called twice.
func (c *compactions) begin(ctx context.Context, background bool) (_ context.Context, end func(), err error) {
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.halting > 0 {
		<-c.turn
		return nil, nil, ErrNotReady
	}
	ctx, cancel := context.WithCancel(ctx)
	c.mu.cancel, c.mu.background = cancel, background
	return ctx, sync.OnceFunc(func() {
		cancel()
		c.mu.Lock()
		c.mu.cancel = nil
		c.mu.Unlock()
		<-c.turn
	}), nil
}

// preempt ends the running compaction if nobody waits for it.
func (c *compactions) preempt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.background && c.mu.cancel != nil {
		c.mu.cancel()
	}
}

// halt ends the running compaction and keeps others from beginning until resume.
func (c *compactions) halt() (resume func()) {
	c.mu.Lock()
	c.mu.halting++
	if c.mu.cancel != nil {
		c.mu.cancel()
	}
	c.mu.Unlock()
	c.turn <- struct{}{}
	return func() {
		c.mu.Lock()
		c.mu.halting--
		c.mu.Unlock()
		<-c.turn
	}
}

// closeIndex closes the index, and ends the compaction that goes by it first.
func (p *Partition) closeIndex() error {
	defer p.compactions.halt()()
	return p.feed.close()
}

// Compact compacts both tiers and applies retention now, whatever the dirty ratio
// says: it rolls, uploads, rewrites what holds anything dead, deletes what is no
// longer retained and what the grace period is over for. It answers when done.
// Without an index nothing says what is dead; then only retention is applied.
// Errors: those of Evict.
func (p *Partition) Compact(ctx context.Context) (Compaction, error) {
	if p.fenced.Load() || p.o.Replica {
		return Compaction{}, ErrNotHosted
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)() // Close does not wait for a compaction
	s := *p.settings.Load()
	s.DirtyRatio = 0
	var c Compaction
	if err := p.sealAndUpload(ctx, &s, &c.Done); err != nil {
		return Compaction{}, p.compactionTrouble(ctx, err)
	}
	if s.IndexMaintained {
		if err := p.compact(ctx, &s, true, &c.Done); err != nil {
			return Compaction{}, p.compactionTrouble(ctx, err)
		}
	}
	if err := p.expire(ctx, &s, &c.Done); err != nil {
		return Compaction{}, p.compactionTrouble(ctx, err)
	}
	if s.RemoteWrite && p.tier != nil {
		if _, err := p.collect(ctx, tiered.CollectOptions{Grace: s.GCGrace}); err != nil {
			return Compaction{}, p.compactionTrouble(ctx, err)
		}
	}
	p.sayCompacted(&c.Done)
	c.Status = p.Status()
	return c, nil
}

// sayCompacted notes in the log what a compaction has done, if anything.
func (p *Partition) sayCompacted(stats *CompactionStats) {
	if *stats == (CompactionStats{}) {
		return
	}
	p.o.Logger.Info("compacted", "local_segments", stats.LocalSegments, "cloud_segments", stats.CloudSegments,
		"records_removed", stats.RecordsRemoved, "local_bytes_freed", stats.LocalBytesBefore-stats.LocalBytesAfter,
		"cloud_bytes_freed", stats.CloudBytesBefore-stats.CloudBytesAfter, "segments_expired", stats.SegmentsExpired)
}

// compactionTrouble names what ended a compaction: this partition's end is no
// fault of the caller's.
func (p *Partition) compactionTrouble(ctx context.Context, err error) error {
	switch {
	case p.ctx.Err() != nil:
		return ErrClosed
	case errors.Is(err, tiered.ErrFenced):
		return p.storeFailed(err)
	case ctx.Err() == nil && errors.Is(err, context.Canceled), errors.Is(err, tiered.ErrNotClaimed):
		return fmt.Errorf("%w: %w", ErrNotReady, err) // the index is being mended, or the store was away
	case errors.Is(err, errTakeOver):
		p.wake() // the next chore begins the log anew
		return fmt.Errorf("%w: %w", ErrNotReady, err)
	case unavailable(err):
		return p.storeFailed(err) // also if it is a folder on a disk that is full
	case errors.Is(err, ErrDiskFull), errors.Is(err, ErrReadOnly):
		return err
	case errors.Is(err, locallog.ErrReadOnly):
		return p.appendTrouble(err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %w", ErrDiskFull, err)
	}
	for _, passing := range []error{index.ErrFailed, index.ErrClosed, locallog.ErrClosed, locallog.ErrTruncated, tiered.ErrMoved, errBacklog} {
		if errors.Is(err, passing) {
			return fmt.Errorf("%w: %w", ErrNotReady, err)
		}
	}
	return err
}

// sealAndUpload rolls, and brings what is sealed to the bucket.
func (p *Partition) sealAndUpload(ctx context.Context, s *Settings, stats *CompactionStats) error {
	if err := p.enterSoon(ctx); err != nil {
		return err
	}
	defer p.leave()
	log := p.log.Load()
	if log == nil {
		return p.notServing()
	}
	if err := log.Roll(ctx); err != nil {
		return p.appendTrouble(err)
	}
	if p.tier == nil || !s.RemoteWrite {
		return nil
	}
	return p.uploadPatiently(ctx, log, s, stats)
}

// compact compacts both tiers, the local one first.
func (p *Partition) compact(ctx context.Context, s *Settings, forced bool, stats *CompactionStats) error {
	p.compactions.preempt() // the background may take its time; what it has done stays done
	ctx, end, err := p.compactions.begin(ctx, false)
	if err != nil {
		return err
	}
	defer end()
	v := p.serving.Load()
	if v == nil {
		return p.notServing()
	}
	return p.compactTiers(ctx, v, s, dueNow{local: true, remote: s.RemoteWrite && p.tier != nil}, forced, stats)
}

// compactTiers compacts what is due. Damage in one tier does not keep the other from
// being compacted, and is looked at again only once there is more.
func (p *Partition) compactTiers(ctx context.Context, v *view, s *Settings, due dueNow, forced bool, stats *CompactionStats) error {
	cleaned := p.cleaned
	var damage error
	if due.local {
		_, next := p.ripeLocal(v, s)
		if damage = p.compactLocal(ctx, v, s, stats); damage != nil && !isDamaged(damage) {
			return damage
		}
		cleaned.Local = max(cleaned.Local, next)
	}
	if due.remote {
		_, _, next := p.ripeRemote(s)
		if err := p.compactRemoteFully(ctx, v, s, forced, stats); err != nil {
			damage = errors.Join(damage, err)
			if !isDamaged(err) {
				return damage
			}
		}
		cleaned.Remote = max(cleaned.Remote, next)
	}
	p.noteCleaned(cleaned)
	return damage
}

// maxPasses bounds how often an operator's compaction goes over the bucket.
const maxPasses = 3

// compactRemoteFully is compactRemote, and for an operator once more as long as that
// changes something: a tombstone can go once the group before its own has lost what
// it hid.
func (p *Partition) compactRemoteFully(ctx context.Context, v *view, s *Settings, forced bool, stats *CompactionStats) error {
	for pass := 1; ; pass++ {
		before := stats.CloudSegments
		err := p.compactRemote(ctx, v, s, forced, stats)
		if err != nil && !isDamaged(err) || !forced || stats.CloudSegments == before || pass == maxPasses {
			return err
		}
	}
}

// ripeLocal are the segments of the local log that may be compacted, and the offset
// behind them: they grow no more, do not wait for their upload, and are old enough.
func (p *Partition) ripeLocal(v *view, s *Settings) (segs []locallog.SegmentInfo, next int64) {
	for _, seg := range p.segments(v.log) {
		waiting := s.RemoteWrite && p.tier != nil && seg.NextKafka > p.tier.Snapshot().Next()
		if !seg.Sealed || waiting || p.now().Sub(seg.SealedAt) < s.CompactionLag {
			break
		}
		segs, next = append(segs, seg), seg.NextKafka
	}
	return segs, next
}

// ripeRemote is ripeLocal for the bucket, with the times at which the segments were
// uploaded.
func (p *Partition) ripeRemote(s *Settings) (segs []manifest.Segment, created []time.Time, next int64) {
	m := p.tier.Snapshot()
	created = p.created(m)
	for i := range m.Segments {
		if p.now().Sub(created[i]) < s.CompactionLag {
			return m.Segments[:i], created, m.Segments[i].BaseOffset
		}
	}
	return m.Segments, created, m.Next()
}

// dueNow says which tiers have gathered enough since they were compacted.
type dueNow struct{ local, remote bool }

// due compares what each tier has gathered since its last compaction with all that
// it has, which is what Kafka's dirty ratio means. It bounds how often a byte is
// looked at again.
func (p *Partition) due(v *view, s *Settings) (due dueNow) {
	if s.DirtyRatio > 1 {
		return due
	}
	var all, dirty int64
	local, _ := p.ripeLocal(v, s)
	for _, seg := range local {
		all += seg.Bytes
		if seg.NextKafka > p.cleaned.Local {
			dirty += seg.Bytes
		}
	}
	due.local = dirty > 0 && float64(dirty) >= s.DirtyRatio*float64(all)
	if p.tier == nil || !s.RemoteWrite || !p.claimed.Load() {
		return due
	}
	all, dirty = 0, 0
	var records, tombstones int64
	remote, created, _ := p.ripeRemote(s)
	for i := range remote {
		seg := &remote[i]
		all += seg.Size
		records += seg.Records
		switch {
		case seg.LastOffset >= p.cleaned.Remote:
			dirty += seg.Size
		case p.now().Sub(created[i]) >= s.DeleteRetention:
			tombstones += seg.Tombstones
		}
	}
	due.remote = dirty > 0 && float64(dirty) >= s.DirtyRatio*float64(all) ||
		tombstones > 0 && float64(tombstones) >= s.DirtyRatio*float64(records) && p.now().Sub(p.tombstonesTried) > time.Hour
	return due
}

// compactWhenDue is the goroutine of background compaction.
func (p *Partition) compactWhenDue() {
	for backoff := time.Duration(0); p.pause(jitter(choreInterval) + backoff); {
		err := p.compactDue(p.ctx)
		backoff = compactionBackoff(backoff, err)
		if err != nil && p.ctx.Err() == nil && !errors.Is(err, errBacklog) {
			p.o.Logger.Warn("compaction did not come through; will try again", "err", err, "in", backoff)
		}
	}
}

// maxCompactionBackoff bounds the pause behind compactions that failed. Each attempt
// reads the whole index again, and all that is not in the bucket.
const maxCompactionBackoff = 10 * time.Minute

func compactionBackoff(d time.Duration, err error) time.Duration {
	if err == nil {
		return 0
	}
	return min(max(2*d, choreInterval), maxCompactionBackoff)
}

func (p *Partition) compactDue(ctx context.Context) error {
	s, v := p.settings.Load(), p.serving.Load()
	if v == nil || p.fenced.Load() || !s.IndexMaintained || v.log.Err() != nil {
		return nil
	}
	ctx, end, err := p.compactions.begin(ctx, true)
	if err != nil {
		return nil // the index is being mended
	}
	defer end()
	if err := p.purge(ctx, v); err != nil {
		return err
	}
	due := p.due(v, s)
	if due == (dueNow{}) || p.o.Space.Low() {
		return nil
	}
	if p.o.Compactions != nil {
		if err := p.o.Compactions.Acquire(ctx, 1); err != nil {
			return nil
		}
		defer p.o.Compactions.Release(1)
	}
	if due.remote {
		p.tombstonesTried = p.now()
	}
	var stats CompactionStats
	err = p.compactTiers(ctx, v, s, due, false, &stats)
	switch {
	case err == nil:
		p.sayCompacted(&stats)
	case errors.Is(err, context.Canceled), errors.Is(err, locallog.ErrClosed):
		return nil
	case isCorrupt(err):
		p.corrupted("compaction", err)
	case errors.Is(err, tiered.ErrFenced):
		return p.storeFailed(err)
	}
	return err
}

// cleaned says through where each tier was compacted, below which offset the index was
// purged, and through where the local log was compacted as a whole and not for its
// upload: Kafka offsets, exclusive. It is kept in a file so that a restart
// does not do all of that again; without the file it begins at 0. Whoever holds the
// turn of compactions has it.
type cleaned struct{ Local, Remote, Purged, Together int64 }

const cleanedFormat = "local=%d remote=%d purged=%d together=%d\n"

func (p *Partition) cleanedPath() string { return p.o.FS.PathJoin(p.o.Dir, "compacted") }

func (p *Partition) loadCleaned() {
	data, err := manifest.ReadFile(p.o.FS, p.cleanedPath(), 128)
	if err != nil {
		return
	}
	var c cleaned
	if _, err := fmt.Sscanf(string(data), cleanedFormat, &c.Local, &c.Remote, &c.Purged, &c.Together); err == nil && min(c.Local, c.Remote, c.Purged, c.Together) >= 0 {
		p.cleaned = c
		p.together.Store(c.Together)
	}
}

func (p *Partition) noteCleaned(c cleaned) {
	c.Together = p.together.Load()
	if c == p.cleaned {
		return
	}
	if err := p.writeCleaned(c); err != nil {
		p.o.Logger.Warn("cannot note how far the tiers are compacted", "err", err)
	}
	p.cleaned = c
}

// noteTogether notes that the local log below next goes to the bucket with one
// manifest, or not at all: what lies in between it may not show.
func (p *Partition) noteTogether(next int64) error {
	if next <= p.together.Load() {
		return nil
	}
	c := p.cleaned
	c.Together = next
	if err := p.writeCleaned(c); err != nil {
		return fmt.Errorf("note how far the local log is compacted: %w", err)
	}
	p.cleaned = c
	p.together.Store(next)
	return nil
}

func (p *Partition) writeCleaned(c cleaned) error {
	return manifest.WriteFile(p.o.FS, p.cleanedPath(), fmt.Appendf(nil, cleanedFormat, c.Local, c.Remote, c.Purged, c.Together))
}
