package check

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"keyhole/index"
	"keyhole/locallog"
	"keyhole/manifest"
	"keyhole/record"
	"keyhole/tiered"
)

// maxKeys is how many keys of one partition are named; the others are counted.
const maxKeys = 20

// keyFindings counts what is wrong with keys.
type keyFindings struct{ n int }

// report names a key, unless enough were named.
func (k *keyFindings) report(c *checker, tier Tier, object string, key []byte, format string, args ...any) {
	if k.n++; k.n <= maxKeys {
		c.report(Damage, tier, object, 0, "key %s: %s", quote(key), fmt.Sprintf(format, args...))
	}
}

// rest counts those that were not named.
func (k *keyFindings) rest(c *checker, tier Tier, object, advice string) {
	if k.n > maxKeys {
		c.report(Damage, tier, object, 0, "%d more keys like these%s", k.n-maxKeys, advice)
	}
}

// replaySegment takes the keys of a segment of the bucket. Where the local log
// answers for an offset, it must have the record too, unless it has a newer one.
func (p *part) replaySegment(ctx context.Context, seg *manifest.Segment) error {
	if err := p.replay.commit(); err != nil {
		return fmt.Errorf("%w: %w", errScratch, err)
	}
	err := tiered.SegmentKeys(ctx, p.c.bucket, p.prefix, *seg, func(key []byte, offset int64, tombstone bool) error {
		have, err := p.replay.get(key)
		if err != nil {
			return fmt.Errorf("%w: %w", errScratch, err)
		}
		// A deletion that hides nothing is not missed.
		if have.offset < offset && (!tombstone || have.live()) && p.localAnswers(offset) {
			p.differing.report(p.c, Local, p.path(logDir), key, "the bucket has its record at offset %d, the local log, which begins at %d, has neither that nor a newer one",
				offset, p.log.LocalStart)
		}
		return p.replay.bucket(key, have, offset, tombstone)
	})
	if err != nil {
		return err
	}
	return p.replay.commit()
}

// localAnswers reports whether a lookup of an offset goes to the local log, and to
// no other place.
func (p *part) localAnswers(offset int64) bool {
	v := p.log
	return v != nil && !v.Broken && v.Files > 0 && !p.superseded() &&
		offset >= v.LocalStart && offset < v.HighWatermark && !holds(v.Unreadable, offset)
}

// compare holds the index against what both tiers have, and the bucket against
// what a reader that sees nothing else must find there.
func (p *part) compare() error {
	if p.index == nil {
		return nil
	}
	defer func() { p.differing.rest(p.c, Local, p.path(logDir), ", of which the two tiers differ") }()
	if p.discard {
		return nil
	}
	from, ok := p.comparable()
	if !ok {
		return nil
	}
	dir, start := p.path(p.indexName), p.start()
	unread := p.unreadable()
	var wrong keyFindings
	expired := 0
	keys, err := compareKeys(p.replay, p.index, func(key []byte, want state, have int64) {
		if want.offset < start {
			want = state{offset: -1} // it may be in the local log still
		}
		p.alone(key, want)
		switch {
		case want.live() && have == want.offset, !want.live() && have < 0:
			return
		case want.offset >= from:
			return
		case want.offset < 0 && have < start:
			expired++
			return
		case have >= 0 && holds(unread, have):
			return // nobody can tell, and the offsets were reported
		case have < 0 && reaches(unread, want.offset):
			return // the tombstone may be among them
		}
		wrong.report(p.c, Local, dir, key, "%s", explain(want, have))
	})
	p.c.sum.Keys += keys
	wrong.rest(p.c, Local, dir, "; remove the folder, and the next start builds the index anew")
	if expired > 0 {
		p.c.report(Note, Local, dir, 0, "%d entries of records below offset %d, which are no longer retained; a running gateway removes them", expired, start)
	}
	if errors.Is(err, errScratch) || !errors.Is(err, record.ErrCorrupt) {
		return err
	}
	if err := p.c.corrupt(Local, dir, err); err != nil {
		return err
	}
	p.c.report(Note, Local, dir, 0, "once a lookup meets the damage, the index is built anew; the folder may be removed instead")
	return nil
}

// alone judges what the bucket, without the local log, says of a key, as of where
// the bucket ends: it is all that a read replica and an empty disk have to go by.
// Of keys with a newer record nothing is known here.
func (p *part) alone(key []byte, want state) {
	m := p.bucketManifest
	if m == nil || want.offset < 0 || want.offset >= m.Next() || want.inBucket == latest ||
		reaches(p.remoteBad, want.offset-1) || reaches(p.moved, want.offset-1) {
		return
	}
	switch {
	case !want.tombstone:
		p.differing.report(p.c, Remote, p.manifestKey(), key, "its latest record at offset %d is in the local log alone, though the bucket ends at %d", want.offset, m.Next()-1)
	case want.inBucket == olderValue:
		p.differing.report(p.c, Remote, p.manifestKey(), key, "it was deleted at offset %d, and the bucket, which ends at %d, still has a value and no deletion", want.offset, m.Next()-1)
	}
}

// comparable decides whether the index is one that the next start goes on with, and
// from which offset on that replays, whatever the entries say.
func (p *part) comparable() (from int64, ok bool) {
	dir, at := p.path(p.indexName), p.index.Applied()
	v, end := p.log, p.remoteNext()
	switch {
	case p.replica() && p.c.bucket == nil:
		p.c.report(Note, Local, dir, 0, "the bucket was not looked at, so there is nothing to compare the index of a read replica with")
		p.unread = append(p.unread, locallog.Range{Next: math.MaxInt64})
		return at.NextKafka, true
	case p.replica() && p.bucketManifest == nil && !p.missing:
		return 0, false // it is damaged
	case p.replica():
		if at.NextKafka > end {
			p.c.report(Damage, Local, dir, 0, "the index was applied through offset %d and the bucket ends at %d: the bucket went back", at.NextKafka-1, end-1)
			return 0, false
		}
		return at.NextKafka, !p.mayHaveMissedDeletions(max(p.horizon(), 1))
	case v == nil, v.Broken:
		return 0, false
	}
	if at.NextLog > v.NextLog || at.NextKafka > v.HighWatermark {
		severity, lost := Note, ""
		if end := max(v.HighWatermark, end); at.NextKafka > end {
			severity, lost = Damage, fmt.Sprintf("; acknowledged records are gone, offsets %d to %d", end, at.NextKafka-1)
		}
		p.c.report(severity, Local, dir, 0, "the index was applied through offset %d and the local log ends at %d, so that the next start builds it anew%s",
			at.NextKafka-1, v.HighWatermark-1, lost)
		return 0, false
	}
	if p.mayHaveMissedDeletions(p.horizon()) {
		return 0, false
	}
	from = at.NextKafka
	if at.NextLog == 0 {
		from = min(from, v.LocalStart)
	}
	if from < v.HighWatermark {
		p.c.report(Note, Local, dir, 0, "the index is applied through offset %d; the next start adds the records up to %d", at.NextKafka-1, v.HighWatermark-1)
	}
	return from, true
}

func (p *part) horizon() int64 {
	if m := p.known(); m != nil {
		return m.DeleteHorizon
	}
	return 0
}

// mayHaveMissedDeletions reports an index that ends before an offset below which
// deletions may have left no trace.
func (p *part) mayHaveMissedDeletions(horizon int64) bool {
	at := p.index.Applied().NextKafka
	if at >= horizon || isEmpty(p.index) {
		return false
	}
	p.c.report(Note, Local, p.path(p.indexName), 0, "the index is applied through offset %d, and tombstones below %d are gone from the bucket; the next start builds it anew", at-1, horizon)
	return true
}

// isEmpty reports whether an index has no entries. One that cannot be read has some.
func isEmpty(ix *index.Index) bool {
	return ix.Scan(func([]byte, int64) error { return errEnough }) == nil
}

func explain(want state, have int64) string {
	switch {
	case want.offset < 0:
		return fmt.Sprintf("the index says offset %d, and no record has this key", have)
	case want.tombstone:
		return fmt.Sprintf("the index says offset %d, and the key was deleted at %d", have, want.offset)
	case have < 0:
		return fmt.Sprintf("not in the index, and its latest record is at offset %d", want.offset)
	}
	return fmt.Sprintf("the index says offset %d, and its latest record is at %d", have, want.offset)
}

// quote shows the beginning of a key.
func quote(key []byte) string {
	const most = 64
	if len(key) > most {
		return fmt.Sprintf("%q… (%d bytes)", key[:most], len(key))
	}
	return fmt.Sprintf("%q", key)
}

// unreadable are the offsets that neither tier can give. Those at or above the
// local start are the local log's, those below it the bucket's; what the bucket has
// stands in for the log.
func (p *part) unreadable() []locallog.Range {
	bad := slices.Concat(p.remoteBad, p.moved)
	out := append(slices.Clone(p.unread), p.moved...)
	start, end := int64(math.MaxInt64), int64(0)
	if p.c.bucket != nil {
		end = p.remoteNext()
	}
	if v := p.log; v != nil {
		start = v.LocalStart
		for _, r := range v.Unreadable {
			out = append(out, locallog.Range{From: max(r.From, end), Next: r.Next}) // may be empty
			for _, b := range bad {
				out = append(out, locallog.Range{From: max(r.From, b.From), Next: min(r.Next, b.Next)}) // likewise
			}
		}
	}
	for _, r := range p.remoteBad {
		out = append(out, locallog.Range{From: r.From, Next: min(r.Next, start)}) // likewise
	}
	return out
}

// reaches reports whether a range has an offset above the given one.
func reaches(ranges []locallog.Range, offset int64) bool {
	for _, r := range ranges {
		if r.Next > offset+1 && r.From < r.Next {
			return true
		}
	}
	return false
}
