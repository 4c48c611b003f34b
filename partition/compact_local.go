package partition

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"keyhole/locallog"
	"keyhole/record"
	"keyhole/tiered"
)

// localPass rewrites sealed segments of the local log. all says that every dead
// record is to go; otherwise a segment is left alone until ratio of its records is
// dead.
type localPass struct {
	p     *Partition
	v     *view
	live  *liveness
	s     *Settings
	now   time.Time
	ratio float64 // 0: any
	stats *CompactionStats

	progress func() // called again and again

	left leftOut
}

// errDamaged marks damage of the segment at hand.
var errDamaged = errors.New("local segment is damaged")

// damaged adds errDamaged to what reading a segment ended with. others is what was
// returned by those whom the segment's records were given to.
func damaged(err, others error) error {
	if others == nil && isDamaged(err) {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return err
}

// maxBehind is how many times a segment's size may lie behind it before it is
// uploaded as it is: all of that is read to know what it replaces. What is dead is
// found in the bucket then.
const maxBehind = 4

// compactBeforeUpload takes out of segments that are about to be uploaded what they
// replace themselves or was replaced before. What only a segment behind replaces
// stays: the bucket may end with any of them, and whoever reads it does not see the
// one behind.
func (p *Partition) compactBeforeUpload(ctx context.Context, segs []locallog.SegmentInfo, s *Settings, stats *CompactionStats) error {
	v := p.serving.Load()
	if v == nil || s.DirtyRatio > 1 || len(segs) == 0 {
		return nil
	}
	// Whoever waits for the upload waits for this, too, and it is not stuck.
	progress := func() {
		p.moved.Store(time.Now().UnixNano())
		p.o.Tiers.NoteMoved()
	}
	if p.o.Judgements != nil { // else, after an outage, all partitions take down keys at once
		if err := p.o.Judgements.Acquire(ctx, 1); err != nil {
			return err
		}
		defer p.o.Judgements.Release(1)
	}
	for _, seg := range segs {
		behind := int64(0)
		for _, other := range v.log.Segments() {
			if other.BaseKafka >= seg.NextKafka {
				behind += other.Bytes
			}
		}
		if behind > maxBehind*seg.Bytes || p.now().Sub(seg.SealedAt) < s.CompactionLag || v.ix.Applied().NextKafka < seg.NextKafka {
			continue
		}
		live, err := newLiveness(ctx, v, seg.NextKafka, progress)
		if errors.Is(err, errBacklog) {
			continue
		}
		if err != nil {
			return err
		}
		pass := localPass{p: p, v: v, live: live, s: s, now: p.now(), ratio: s.DirtyRatio, stats: stats, progress: progress}
		err = pass.run(ctx, []locallog.SegmentInfo{seg}, false)
		live.close()
		if err != nil {
			return err
		}
	}
	return nil
}

// compactLocal compacts what is sealed and does not wait for its upload. Of what the
// bucket has, whatever has been replaced anywhere goes: only this node reads the local
// log, and its index is at the head. What the bucket does not have, because uploads
// are switched off or there is no store, it may get at any time; that is compacted by
// itself, and goes to the bucket as a whole if it does.
func (p *Partition) compactLocal(ctx context.Context, v *view, s *Settings, stats *CompactionStats) error {
	segs, next := p.ripeLocal(v, s)
	n := 0
	if p.tier != nil {
		have := p.tier.Snapshot().Next()
		for n < len(segs) && segs[n].NextKafka <= have {
			n++
		}
	}
	var damage error
	if n > 0 {
		damage = p.compactSealed(ctx, v, s, segs[:n], v.ix.Applied().NextKafka, stats)
	}
	if n == len(segs) || damage != nil && !isDamaged(damage) {
		return damage
	}
	if err := p.noteTogether(next); err != nil {
		return errors.Join(damage, err)
	}
	return errors.Join(damage, p.compactSealed(ctx, v, s, segs[n:], next, stats))
}

// compactSealed removes from segs what has been replaced below bound.
func (p *Partition) compactSealed(ctx context.Context, v *view, s *Settings, segs []locallog.SegmentInfo, bound int64, stats *CompactionStats) error {
	live, err := newLiveness(ctx, v, bound, func() {})
	if err != nil {
		return err
	}
	defer live.close()
	pass := localPass{p: p, v: v, live: live, s: s, now: p.now(), stats: stats, progress: func() {}}
	return pass.run(ctx, segs, p.bucketIsEmpty(v.log, s))
}

// bucketIsEmpty reports whether no bucket has anything of the partition, nor is about
// to get it. Otherwise what a tombstone hides there goes first, and the tombstone
// with it.
func (p *Partition) bucketIsEmpty(log *locallog.Log, s *Settings) bool {
	if p.tier == nil {
		return !p.hadStore(log)
	}
	return p.claimed.Load() && !s.RemoteWrite && p.tier.Snapshot().Next() == 0
}

// hadStore reports whether a bucket may have some of the partition, though none is
// configured now. The note in the log may lag behind the bucket, so what an upload
// cannot do without counts, too.
func (p *Partition) hadStore(log *locallog.Log) bool {
	_, err := p.o.FS.Stat(p.tierDir())
	return log.State().RemoteNext > 0 || !errors.Is(err, os.ErrNotExist)
}

// run looks at all segments first, then rewrites, oldest first. With dropping, a
// tombstone goes once no segment before its own has a dead record left. A segment that
// is damaged stays as it is, and so does every tombstone behind it.
func (pass *localPass) run(ctx context.Context, segs []locallog.SegmentInfo, dropping bool) error {
	pass.live.begin()
	unread := make(map[int64]bool)
	for _, seg := range segs {
		err := pass.read(ctx, seg, pass.live.note)
		if errors.Is(err, errDamaged) {
			pass.left.add(err)
			unread[seg.BaseLog] = true
		} else if err != nil {
			return err
		}
	}
	clean := dropping && segs[0].BaseKafka <= pass.v.log.State().LocalStart
	for i, seg := range segs {
		if i > 0 && seg.BaseKafka != segs[i-1].NextKafka {
			clean = false // one in between is not looked at
		}
		if unread[seg.BaseLog] {
			clean = false
			continue
		}
		if clean && pass.now.Sub(seg.SealedAt) >= pass.s.DeleteRetention {
			pass.live.deleted(func(_ string, offset int64) bool {
				return offset >= seg.BaseKafka && offset < seg.NextKafka
			})
		}
		done, err := pass.compact(ctx, seg, clean)
		if errors.Is(err, errDamaged) {
			pass.left.add(err)
		} else if err != nil {
			return err
		}
		clean = clean && done
	}
	return pass.left.err()
}

// compact rewrites one segment if it is worth it, and reports whether nothing dead
// is left in it. dropping says that tombstones which hide nothing may go from it.
func (pass *localPass) compact(ctx context.Context, seg locallog.SegmentInfo, dropping bool) (clean bool, err error) {
	total, dead := 0, 0
	err = pass.read(ctx, seg, func(key []byte, offset int64, tombstone bool) error {
		keep, err := pass.live.keep(key, offset, tombstone)
		total++
		if !keep {
			dead++
		}
		return err
	})
	if err != nil || dead == 0 {
		return err == nil, err
	}
	if float64(dead) < pass.ratio*float64(total) {
		return false, nil
	}
	tombstones := int64(0)
	var others error // of those who are asked on the way
	o := locallog.CompactOptions{
		Codec:     pass.s.Codec,
		KeepCodec: pass.s.KeepCodec,
		Target:    batchTarget,
		Keep: func(key []byte, offset int64, tombstone bool) (bool, error) {
			pass.progress()
			keep, err := pass.live.keep(key, offset, tombstone)
			if !keep && tombstone {
				tombstones++
			}
			others = err
			return keep, err
		},
		Settle: func(ctx context.Context) error {
			if others = pass.p.settle(ctx, pass.v); others == nil && dropping && !pass.p.bucketIsEmpty(pass.v.log, pass.p.settings.Load()) {
				// Uploads were switched on meanwhile. One that has begun may have a
				// segment in hand as it was, and must not get this one without what
				// hides records of that one.
				others = ErrNotReady
			}
			return others
		},
	}
	if pass.s.Codec != record.None {
		o.Target = compressedBatchTarget
	}
	done, err := pass.v.log.CompactSegment(ctx, seg.BaseLog, o)
	if errors.Is(err, locallog.ErrNoSegment) {
		return true, nil // evicted meanwhile
	}
	if err != nil {
		return false, damaged(err, others)
	}
	if !done.Swapped {
		return false, nil
	}
	pass.stats.LocalSegments++
	pass.stats.LocalBytesBefore += done.Before
	pass.stats.LocalBytesAfter += done.After
	pass.p.dropped(pass.stats, done.RecordsBefore-done.RecordsAfter, tombstones)
	pass.p.o.Metrics.Compactions.WithLabelValues("local").Inc()
	pass.p.o.Metrics.CompactedBytes.WithLabelValues("local").Add(float64(max(0, done.Before-done.After)))
	return true, nil
}

// dropped counts records that are gone.
func (p *Partition) dropped(stats *CompactionStats, records, tombstones int64) {
	stats.RecordsRemoved += records
	stats.TombstonesRemoved += tombstones
	p.o.Metrics.RecordsRemoved.Add(float64(records))
}

// read calls fn with the records of a segment that have a key. A segment that is
// gone has none.
func (pass *localPass) read(ctx context.Context, seg locallog.SegmentInfo, fn func(key []byte, offset int64, tombstone bool) error) error {
	src, err := pass.v.log.OpenSegment(seg.BaseLog)
	if errors.Is(err, locallog.ErrNoSegment) {
		return nil
	}
	if err != nil {
		return damaged(err, nil)
	}
	defer src.Close()
	r := readers.Get().(*record.Reader)
	defer readers.Put(r)
	var others error // what fn returned
	err = src.Batches(func(_ int64, batch []byte, base int64) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		pass.progress()
		if err := r.Reset(batch, maxUncompressed); err != nil {
			return err
		}
		h := r.Header()
		for !h.IsControl() && r.Next() {
			rec := r.Record()
			if rec.Key == nil {
				continue
			}
			if others = fn(rec.Key, base+rec.Offset-h.BaseOffset, rec.Value == nil); others != nil {
				return others
			}
		}
		return r.Err()
	})
	return damaged(err, others)
}

// settle makes durable what replaced the records that are about to go: the log
// first, then the index that no longer points at them.
func (p *Partition) settle(ctx context.Context, v *view) error {
	if v.log != nil {
		if err := v.log.Sync(ctx); err != nil {
			return err
		}
	}
	if err := v.ix.Flush(ctx); err != nil {
		return err
	}
	if p.serving.Load() != v {
		return ErrNotReady
	}
	if p.fenced.Load() {
		return tiered.ErrFenced
	}
	return nil
}
