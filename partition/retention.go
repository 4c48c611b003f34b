package partition

import (
	"context"
	"errors"
	"time"

	"keyhole/index"
	"keyhole/locallog"
	"keyhole/manifest"
	"keyhole/tiered"
)

// guardedClock tells the time for whatever deletes by age: the earlier of the wall
// clock and of what it must be by the time that has passed since the start. A clock
// that is set ahead deletes nothing that is fresh.
func guardedClock() func() time.Time {
	start := time.Now()
	return func() time.Time {
		return earlier(time.Now().Round(0), start.Round(0).Add(time.Since(start)))
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (p *Partition) now() time.Time { return p.o.Now() }

// piece is a segment of either tier as retention sees it.
type piece struct {
	next   int64 // Kafka offset behind it
	bytes  int64
	sealed time.Time
	keep   bool // it is not to be deleted yet, whatever its age
}

// pieces lists the partition's segments, oldest first. A segment that both tiers
// have counts as the bucket's.
func (p *Partition) pieces(log *locallog.Log, s *Settings) (list []piece) {
	next := int64(0)
	if p.tier != nil {
		m := p.tier.Snapshot()
		next = m.Next()
		created := p.created(m)
		for i, seg := range m.Segments {
			list = append(list, piece{next: seg.LastOffset + 1, bytes: seg.Size, sealed: created[i]})
		}
	}
	for _, seg := range p.segments(log) {
		if seg.NextKafka <= next {
			continue
		}
		waiting := p.tier != nil && s.RemoteWrite // for its upload, after which it is looked at again
		list = append(list, piece{next: seg.NextKafka, bytes: seg.Bytes, sealed: seg.SealedAt, keep: !seg.Sealed || waiting})
	}
	return list
}

// expired is the offset below which nothing is to be retained, and how many
// segments of how many bytes lie below. As in Kafka, a size limit takes a segment only if what is
// left still reaches the limit. Age counts from when a segment was sealed: the
// timestamps in it are the producers', who may be in seconds or in the next century.
func expired(list []piece, s *Settings, now time.Time) (start int64, n int, bytes int64) {
	if s.RetentionBytes < 0 && s.RetentionAge < 0 {
		return 0, 0, 0
	}
	var total int64
	for _, seg := range list {
		total += seg.bytes
	}
	for _, seg := range list {
		tooMany := s.RetentionBytes >= 0 && total-seg.bytes >= s.RetentionBytes
		tooOld := s.RetentionAge >= 0 && now.Sub(seg.sealed) >= s.RetentionAge
		if seg.keep || !tooMany && !tooOld {
			break
		}
		start, n, bytes = seg.next, n+1, bytes+seg.bytes
		total -= seg.bytes
	}
	return start, n, bytes
}

// retain deletes what is no longer retained: first the bucket's manifest says so,
// then the local log lets go of it. The caller holds chores.
func (p *Partition) retain(ctx context.Context, log *locallog.Log, s *Settings, stats *CompactionStats) error {
	if log.Err() != nil || p.tier != nil && !p.claimed.Load() {
		return nil // else the bucket's segments are not known for sure
	}
	start := p.start(log)
	var before *manifest.Manifest
	if p.tier != nil {
		before = p.tier.Snapshot()
	}
	if to, n, bytes := expired(p.pieces(log, s), s, p.now()); to > start {
		if p.tier != nil {
			m, err := p.tier.Truncate(ctx, to, to, p.now())
			if errors.Is(err, manifest.ErrInvalid) && p.tier.Snapshot() != before {
				return p.retain(ctx, log, s, stats) // compaction has made one segment of some on either side
			}
			if err != nil {
				return p.storeFailed(err)
			}
			if err := p.noteRemote(ctx, log); err != nil {
				return err
			}
			to = m.StartOffset
		}
		start = to
		stats.SegmentsExpired += n
		stats.BytesExpired += bytes
		p.o.Metrics.Expired.Add(float64(n))
		p.o.Logger.Info("records are no longer retained", "below_offset", start, "segments", n, "bytes", bytes)
	}
	if start <= log.State().LocalStart {
		return nil
	}
	// An index that a crash leaves behind the local log has to ask the bucket.
	if v := p.serving.Load(); v != nil {
		if err := p.flush(ctx, v); err != nil {
			return err
		}
	}
	return log.TrimPrefix(ctx, start) // also what a crash came before
}

// start is the offset below which nothing is retained, as far as known.
func (p *Partition) start(log *locallog.Log) int64 {
	if p.tier != nil {
		return p.tier.Snapshot().StartOffset
	}
	if st := log.State(); st.RemoteNext == 0 {
		return st.LocalStart
	}
	return 0 // a bucket that is not configured now has what is below the local start
}

// expire is retain for an operator, and removes the index entries of what is gone.
func (p *Partition) expire(ctx context.Context, s *Settings, stats *CompactionStats) error {
	if err := p.retainSoon(ctx, s, stats); err != nil {
		return err
	}
	v := p.serving.Load()
	if v == nil {
		return nil
	}
	p.compactions.halt()()
	ctx, end, err := p.compactions.begin(ctx, false)
	if err != nil {
		return err
	}
	defer end()
	return p.purge(ctx, v)
}

func (p *Partition) retainSoon(ctx context.Context, s *Settings, stats *CompactionStats) error {
	if err := p.enterSoon(ctx); err != nil {
		return err
	}
	defer p.leave()
	log := p.log.Load()
	if log == nil {
		return p.notServing()
	}
	return p.retain(ctx, log, s, stats)
}

// purgeBatch is how many entries are removed from the index at once.
const purgeBatch = 1 << 10

// purge removes the index entries of records that are no longer retained. Until
// then lookups say that the record is not retained; afterwards the index is what a
// rebuild would make. The caller has the turn of compactions.
func (p *Partition) purge(ctx context.Context, v *view) error {
	var start int64
	if v.log != nil {
		start = p.start(v.log)
	} else {
		start = v.remote[0].StartOffset // and not that of a manifest that is not applied yet
	}
	if start <= p.cleaned.Purged {
		return nil
	}
	at, err := v.ix.Snapshot()
	if err != nil {
		return err
	}
	defer at.Close()
	var keys [][]byte
	forget := func() error {
		err := p.forget(v.ix, keys, start)
		keys = keys[:0]
		return errors.Join(err, ctx.Err())
	}
	n := 0
	err = at.Scan(func(key []byte, offset int64) error {
		if offset < start {
			keys = append(keys, append([]byte(nil), key...))
		}
		if n++; len(keys) < purgeBatch && n%(1<<12) != 0 {
			return nil
		}
		return forget()
	})
	if err = errors.Join(err, forget()); err != nil {
		return err
	}
	// What is noted must not be undone by a crash.
	if err := p.settle(ctx, v); err != nil {
		return err
	}
	done := p.cleaned
	done.Purged = start
	p.noteCleaned(done)
	return nil
}

// forget removes the entries of keys that still point below start. Appends wait
// meanwhile, so that an entry that has moved on is left alone.
func (p *Partition) forget(ix *index.Index, keys [][]byte, start int64) error {
	if len(keys) == 0 {
		return nil
	}
	p.feed.mu.Lock()
	defer p.feed.mu.Unlock()
	if p.feed.ix != ix {
		return ErrNotReady
	}
	b := ix.NewBatch()
	defer b.Close()
	for _, key := range keys {
		offset, ok, err := ix.Get(key)
		if err != nil {
			return err
		}
		if ok && offset < start {
			b.Delete(key)
		}
	}
	return b.Commit(ix.Applied())
}

// orphanInterval is how often the bucket is listed for objects that nobody names.
const orphanInterval = 6 * time.Hour

// tidyWhenDue is the goroutine that deletes from the bucket. It does not hold chores:
// thousands of objects take their time, and uploads must not wait for that.
func (p *Partition) tidyWhenDue() {
	for backoff := time.Duration(0); p.pause(jitter(choreInterval) + backoff); {
		if p.fenced.Load() {
			continue
		}
		if err := p.tidy(p.ctx, p.settings.Load()); err != nil && p.ctx.Err() == nil {
			backoff = nextBackoff(backoff)
			p.o.Logger.Warn("bucket is not all cleaned up; will try again", "err", err)
			continue
		}
		backoff = 0
	}
}

// tidy deletes what the bucket has of this partition and nobody needs any more.
func (p *Partition) tidy(ctx context.Context, s *Settings) error {
	if !s.RemoteWrite || !p.claimed.Load() {
		return nil
	}
	o := tiered.CollectOptions{Grace: s.GCGrace, Orphans: p.now().Sub(p.listedOrphans) >= orphanInterval}
	if !o.Orphans && !overdue(p.tier.Snapshot(), s.GCGrace, p.now()) {
		return nil
	}
	_, err := p.collect(ctx, o)
	if err == nil && o.Orphans {
		p.listedOrphans = p.now()
	}
	return err
}

func overdue(m *manifest.Manifest, grace time.Duration, now time.Time) bool {
	for _, r := range m.Removed {
		if now.Sub(time.UnixMilli(r.RemovedAt)) >= grace {
			return true
		}
	}
	return false
}

func (p *Partition) collect(ctx context.Context, o tiered.CollectOptions) (tiered.Collected, error) {
	o.Now = p.now
	done, err := p.tier.Collect(ctx, o)
	if err != nil {
		return done, p.storeFailed(err)
	}
	if !o.DryRun && len(done.Objects) > 0 {
		p.o.Metrics.Collected.Add(float64(len(done.Objects)))
		p.o.Logger.Info("objects deleted that nobody needed", "objects", len(done.Objects), "bytes", done.Bytes())
	}
	return done, nil
}

// Collect deletes what the bucket has of this partition and nobody needs any more:
// objects that were replaced longer ago than the grace period, and orphans older
// than it. A dry run only says what it would delete. Errors: those of Evict.
func (p *Partition) Collect(ctx context.Context, dryRun bool) (tiered.Collected, error) {
	s := p.settings.Load()
	switch {
	case p.fenced.Load(), p.o.Replica:
		return tiered.Collected{}, ErrNotHosted
	case !p.o.remote():
		return tiered.Collected{}, ErrNoStore
	case p.log.Load() == nil:
		return tiered.Collected{}, p.notServing()
	case !p.claimed.Load():
		return tiered.Collected{}, ErrNotReady
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	return p.collect(ctx, tiered.CollectOptions{Grace: s.GCGrace, Orphans: true, DryRun: dryRun})
}
