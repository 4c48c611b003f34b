package partition

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"keyhole/locallog"
	"keyhole/manifest"
	"keyhole/record"
	"keyhole/tiered"
)

const (
	// smallShare says which segments are small: at most one part in so many of
	// segment.bytes. They are merged with their neighbours.
	smallShare = 4
	// smallRun is how many small neighbours are worth a rewrite of their own in the
	// background.
	smallRun = 8
)

// remotePass rewrites segments of the bucket, group by group, each with a commit of
// its own, so that what was done stays done.
type remotePass struct {
	p      *Partition
	v      *view
	live   *liveness
	s      *Settings
	now    time.Time
	forced bool // any dead record is to go, not only from segments that are mostly dead
	stats  *CompactionStats

	// first has, for deleted keys, the base offset of the first segment with a
	// record of theirs; deleted keys that it lacks may have records anywhere.
	// By hashes: two keys in one only keep a tombstone longer.
	first map[uint64]int64

	left leftOut
}

// leftOut are segments that are damaged and stay as they are, while what lies on
// either side of them is compacted.
type leftOut struct {
	n     int
	first error
}

func (l *leftOut) add(err error) {
	if l.n++; l.first == nil {
		l.first = err
	}
}

// err is record.ErrCorrupt if there are any.
func (l *leftOut) err() error {
	if l.n == 0 {
		return nil
	}
	return fmt.Errorf("%d times a damaged segment was left out, first: %w", l.n, l.first)
}

// candidate is a segment and what the index says of it.
type candidate struct {
	manifest.Segment
	live    int64     // records that the index points at
	created time.Time // when its newest part was uploaded
	due     bool      // its tombstones are old enough to go
}

// dead estimates how many records can go.
func (c *candidate) dead() int64 {
	dead := c.Records - c.live
	if !c.due {
		dead -= c.Tombstones
	}
	return max(0, dead)
}

// after estimates the bytes of the .log object without them.
func (c *candidate) after() int64 {
	return c.Size * (c.Records - c.dead()) / max(1, c.Records)
}

// compactRemote compacts the bucket. Only what the bucket itself replaces goes.
func (p *Partition) compactRemote(ctx context.Context, v *view, s *Settings, forced bool, stats *CompactionStats) error {
	m := p.tier.Snapshot()
	live, err := newLiveness(ctx, v, m.Next(), func() {})
	for range maxMoves {
		if !errors.Is(err, locallog.ErrBelowStart) {
			break
		}
		// What was being read has been uploaded and evicted meanwhile.
		m = p.tier.Snapshot()
		live, err = newLiveness(ctx, v, m.Next(), func() {})
	}
	if err != nil {
		return err
	}
	defer live.close()
	pass := remotePass{p: p, v: v, live: live, s: s, now: p.now(), forced: forced, stats: stats}
	list, err := pass.count(ctx, m)
	if err != nil {
		return err
	}
	groups := pass.groups(list)
	if err := pass.survey(ctx, m, groups); err != nil {
		return err
	}
	for _, group := range groups {
		if err := pass.rewriteAll(ctx, group); err != nil {
			return err
		}
	}
	return pass.left.err()
}

// rewriteAll rewrites a group, but for those of its segments that are damaged.
func (pass *remotePass) rewriteAll(ctx context.Context, group []candidate) error {
	for len(group) > 0 {
		n, err := pass.rewrite(ctx, group)
		switch {
		case errors.Is(err, tiered.ErrChanged):
			return nil // retention took some of it
		case isDamaged(err):
			i := pass.damaged(group, err)
			if i < 0 {
				return err
			}
			pass.left.add(err)
			if err := pass.rewriteAll(ctx, group[:i]); err != nil {
				return err
			}
			n = i + 1
		case err != nil:
			return err
		}
		group = group[n:]
	}
	return nil
}

// damaged is the index of the segment whose objects err is about, or -1.
func (pass *remotePass) damaged(group []candidate, err error) int {
	var damage *record.CorruptError
	if !errors.As(err, &damage) {
		return -1
	}
	prefix := tiered.Prefix(pass.p.o.Topic, pass.p.o.TopicID, pass.p.o.Partition)
	return slices.IndexFunc(group, func(c candidate) bool {
		return damage.Object == tiered.LogKey(prefix, &c.Segment) || damage.Object == tiered.IndexKey(prefix, &c.Segment)
	})
}

// keys is Keys of the tier, at the pace of the pass.
func (pass *remotePass) keys(ctx context.Context, seg *manifest.Segment, fn func(key []byte, offset int64, tombstone bool) error) error {
	began := time.Now()
	if err := pass.p.tier.Keys(ctx, seg, fn); err != nil {
		return err
	}
	return pass.pace(ctx, time.Since(began))
}

// count asks the index how many records of each segment are alive. It reads
// nothing from the bucket.
func (pass *remotePass) count(ctx context.Context, m *manifest.Manifest) ([]candidate, error) {
	list := make([]candidate, len(m.Segments))
	created := pass.p.created(m)
	for i, seg := range m.Segments {
		list[i] = candidate{Segment: seg, created: created[i]}
		list[i].due = pass.age(&list[i]) >= pass.s.DeleteRetention
	}
	n := 0
	err := pass.live.at.Scan(func(_ []byte, offset int64) error {
		if i, ok := m.Find(offset); ok {
			list[i].live++
		}
		if n++; n%(1<<12) == 0 {
			return ctx.Err()
		}
		return nil
	})
	return list, err
}

// age is not negative: the pass may have begun before the times were looked at.
func (pass *remotePass) age(c *candidate) time.Duration {
	return max(0, pass.now.Sub(c.created))
}

// groups picks the runs of neighbours that are worth a rewrite: those that begin
// with a segment that is mostly dead, and those of many small ones. A group becomes
// one segment of at most segment.bytes, of one age.
func (pass *remotePass) groups(list []candidate) [][]candidate {
	var groups [][]candidate
	for i := 0; i < len(list); {
		n := pass.group(list[i:])
		if n > 0 {
			groups = append(groups, list[i:i+n])
		}
		i += max(1, n)
	}
	return groups
}

// group says how many segments from the first on belong together, 0 if the first
// is best left alone.
func (pass *remotePass) group(list []candidate) int {
	n, dirty, size := 0, false, int64(0)
	for n < len(list) {
		c := &list[n]
		if pass.age(c) < pass.s.CompactionLag {
			break
		}
		dead := c.dead()
		if pass.forced {
			dead = c.Records - c.live // among the tombstones may be some that were replaced
		}
		d := dead > 0 && float64(dead) >= pass.ratio()*float64(c.Records)
		small := pass.small(c)
		if !d && !small || n > 0 && (size+c.after() > pass.s.SegmentBytes || !pass.coeval(list[:n], c)) {
			break
		}
		dirty = dirty || d
		size += c.after()
		n++
	}
	if dirty || n >= pass.many() {
		return n
	}
	return 0
}

// many is how many small neighbours are worth a rewrite of their own.
func (pass *remotePass) many() int {
	if pass.forced {
		return 2
	}
	return smallRun
}

func (pass *remotePass) small(c *candidate) bool {
	return c.after() <= pass.s.SegmentBytes/smallShare
}

// ages is into how many parts a limit of age is divided. Only what was created within
// the same part becomes one segment, so nothing stays for longer than a part beyond
// its time.
const ages = 4

// coeval reports whether c may become one segment with those before it. The new one
// is as young as the youngest of them, so what is merged with newer segments again
// and again would not reach the age at which its tombstones go, or its records.
func (pass *remotePass) coeval(list []candidate, c *candidate) bool {
	same := func(limit time.Duration) bool {
		part := max(limit/ages, time.Millisecond)
		return list[0].created.Truncate(part).Equal(c.created.Truncate(part))
	}
	if pass.s.RetentionAge > 0 && !same(pass.s.RetentionAge) {
		return false
	}
	waiting := slices.ContainsFunc(list, func(c candidate) bool { return c.Tombstones > 0 && !c.due })
	return !waiting || same(pass.s.DeleteRetention)
}

func (pass *remotePass) ratio() float64 {
	if pass.forced {
		return 0
	}
	return pass.s.DirtyRatio
}

// maxFirst bounds the memory for where deleted keys appear first, to some 64 MiB.
const maxFirst = 2 << 20

// survey finds out where deleted keys appear first, for the tombstones of the
// groups that are old enough to go. It reads the key runs up to the last of them.
func (pass *remotePass) survey(ctx context.Context, m *manifest.Manifest, groups [][]candidate) error {
	end := 0
	for _, group := range groups {
		for _, c := range group {
			if c.due && c.Tombstones > 0 {
				end = m.After(c.BaseOffset) + 1
			}
		}
	}
	pass.first = make(map[uint64]int64)
	for i := range m.Segments[:end] {
		seg := &m.Segments[i]
		err := pass.keys(ctx, seg, func(key []byte, _ int64, _ bool) error {
			hash := pass.live.hash(key)
			if _, known := pass.first[hash]; known || pass.live.isRecent(key) || len(pass.first) >= maxFirst {
				return nil
			}
			_, ok, err := pass.live.at.Get(key)
			if err == nil && !ok {
				pass.first[hash] = seg.BaseOffset
			}
			return err
		})
		if isDamaged(err) && pass.damaged([]candidate{{Segment: *seg}}, err) == 0 {
			pass.left.add(err)
			return nil // what first appears from here on is not known, and its tombstones stay
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rewrite replaces one group, or its first n segments. What a segment has in its key
// run says exactly what will be left of it, so segments with nothing alive go without
// being read, and a group that would stay as it is, is not rewritten.
func (pass *remotePass) rewrite(ctx context.Context, group []candidate) (n int, err error) {
	old := make([]manifest.Segment, len(group))
	pass.live.begin()
	for i := range group {
		old[i] = group[i].Segment
		if err := pass.keys(ctx, &old[i], pass.live.note); err != nil {
			return 0, err
		}
	}
	horizon := int64(0)
	for _, c := range group {
		if !c.due {
			continue
		}
		pass.live.deleted(func(key string, offset int64) bool {
			first, known := pass.first[pass.live.hash([]byte(key))]
			goes := known && first >= old[0].BaseOffset && offset >= c.BaseOffset && offset <= c.LastOffset
			if goes {
				horizon = max(horizon, offset+1)
			}
			return goes
		})
	}
	n, left, err := pass.remaining(ctx, old)
	if err != nil {
		return 0, err
	}
	old = old[:n]
	var before, records int64
	for i := range old {
		before += old[i].Size + old[i].IndexSize
		records += old[i].Records
	}
	if large := slices.ContainsFunc(group[:n], func(c candidate) bool { return !pass.small(&c) }); left == records && (large || n < pass.many()) {
		return n, nil // nothing would go, and nothing small would become one
	}
	tombstones := int64(0)
	m, err := pass.p.tier.Rewrite(ctx, old, tiered.RewriteOptions{
		Empty: left == 0,
		Keep: func(key []byte, offset int64, tombstone bool) (bool, error) {
			keep, err := pass.live.keep(key, offset, tombstone)
			if !keep && tombstone {
				tombstones++
			}
			return keep, err
		},
		Horizon: horizon,
		Settle:  func(ctx context.Context) error { return pass.p.settle(ctx, pass.v) },
		Now:     pass.p.now,
		Pace:    pass.pace,
	})
	if err != nil {
		return 0, err
	}
	var after, remain int64
	for i := m.After(old[0].BaseOffset); i < len(m.Segments) && m.Segments[i].LastOffset <= old[len(old)-1].LastOffset; i++ {
		after += m.Segments[i].Size + m.Segments[i].IndexSize
		remain += m.Segments[i].Records
	}
	pass.stats.CloudSegments += len(old)
	pass.stats.CloudBytesBefore += before
	pass.stats.CloudBytesAfter += after
	pass.p.dropped(pass.stats, records-remain, tombstones)
	pass.p.o.Metrics.Compactions.WithLabelValues("remote").Add(float64(len(old)))
	pass.p.o.Metrics.CompactedBytes.WithLabelValues("remote").Add(float64(max(0, before-after)))
	return n, nil
}

// remaining counts the records that will be left of the first n of the segments, which
// are as many as make one of about segment.bytes. The estimate by which they were
// put together takes records for dead whose keys have newer ones behind the bound.
func (pass *remotePass) remaining(ctx context.Context, old []manifest.Segment) (n int, left int64, err error) {
	size := int64(0)
	for i := range old {
		seg, stay := &old[i], int64(0)
		err := pass.keys(ctx, seg, func(key []byte, offset int64, tombstone bool) error {
			keep, err := pass.live.keep(key, offset, tombstone)
			if keep {
				stay++
			}
			return err
		})
		if err != nil {
			return 0, 0, err
		}
		size += seg.Size * stay / max(1, seg.Records)
		if i > 0 && size > pass.s.SegmentBytes {
			return i, left, nil
		}
		left += stay
	}
	return len(old), left, nil
}

// pace leaves at least half of the store's bandwidth to others, unless an operator
// waits for the end.
func (pass *remotePass) pace(ctx context.Context, took time.Duration) error {
	if pass.forced {
		return ctx.Err()
	}
	timer := time.NewTimer(took)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
