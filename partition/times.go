package partition

import (
	"time"

	"keyhole/locallog"
	"keyhole/manifest"
)

// settled puts right, in place, the times at which segments were sealed or uploaded,
// given in the order of the segments, where they lie in the future: some clock was
// wrong then, and nothing would grow old before that time, nor what lies behind.
// Such a segment is at least as old as the next one whose time can be true, and one
// without a next one is as of now. It does not become older than those before it, in
// case another clock was behind. Zero is no time and stays.
func settled(times []time.Time, now time.Time) []time.Time {
	next, wrong := now, make([]bool, len(times))
	for i := len(times) - 1; i >= 0; i-- {
		switch {
		case times[i].IsZero():
		case times[i].After(now):
			times[i], wrong[i] = next, true
		default:
			next = times[i]
		}
	}
	for i := 1; i < len(times); i++ {
		if wrong[i] && times[i].Before(times[i-1]) {
			times[i] = times[i-1]
		}
	}
	return times
}

// segments are those of the local log, with their times settled.
func (p *Partition) segments(log *locallog.Log) []locallog.SegmentInfo {
	segs := log.Segments()
	times := make([]time.Time, len(segs))
	for i := range segs {
		times[i] = segs[i].SealedAt
	}
	for i, at := range settled(times, p.now()) {
		segs[i].SealedAt = at
	}
	return segs
}

// created says when the newest part of each segment of m was uploaded, with the times
// settled. Where that is not known yet, it counts as now.
func (p *Partition) created(m *manifest.Manifest) []time.Time {
	now := p.now()
	times := make([]time.Time, len(m.Segments))
	for i := range m.Segments {
		if times[i] = now; m.Segments[i].CreatedAt != 0 {
			times[i] = time.UnixMilli(m.Segments[i].CreatedAt)
		}
	}
	return settled(times, now)
}
