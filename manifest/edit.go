package manifest

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// ErrChanged says that segments to be replaced are not, or no longer, neighbours
// in the manifest.
var ErrChanged = errors.New("manifest: segments have changed")

// With returns a manifest that also has the given segments, each at or after
// the end of what is there. A segment that is in the manifest already, field
// by field, is left as it is, and so is one that has been removed since, so that
// a repeated commit adds nothing; when that is true of all, m itself is returned. Anything else that overlaps is
// ErrInvalid.
func (m *Manifest) With(segs ...Segment) (*Manifest, error) {
	out := *m
	out.Segments = slices.Clone(m.Segments)
	out.LeaderEpochs = slices.Clone(m.LeaderEpochs)
	added := false
	for _, s := range segs {
		if i, ok := m.Find(s.BaseOffset); ok && m.Segments[i] == s {
			continue
		}
		if err := s.validate(out.Next()); err != nil {
			if m.removed(s) {
				continue
			}
			return nil, err
		}
		if n := len(out.LeaderEpochs); n == 0 || out.LeaderEpochs[n-1].Epoch != s.Epoch {
			out.LeaderEpochs = append(out.LeaderEpochs, EpochStart{Epoch: s.Epoch, StartOffset: s.BaseOffset})
		}
		out.Segments = append(out.Segments, s)
		out.NextOffset = s.LastOffset + 1
		added = true
	}
	if !added {
		return m, nil
	}
	return &out, nil
}

// Advance returns a manifest that ends at next: below, there is nothing more to
// come. It returns m itself if that is so already.
func (m *Manifest) Advance(next int64) *Manifest {
	if next <= m.Next() {
		return m
	}
	out := *m
	out.NextOffset = next
	return &out
}

// Replace returns a manifest in which the given neighbours are replaced by the
// segments in by, which lie within their range; none says that nothing of them is
// alive. The old ones go to Removed as of at. horizon raises DeleteHorizon. A
// repetition finds its work done and returns m. ErrChanged if the manifest does not
// have old as it is given.
func (m *Manifest) Replace(old, by []Segment, horizon int64, at time.Time) (*Manifest, error) {
	if len(old) == 0 {
		return nil, fmt.Errorf("%w: nothing to replace", ErrInvalid)
	}
	if horizon > m.Next() {
		return nil, fmt.Errorf("%w: tombstones removed below %d, the end is %d", ErrInvalid, horizon, m.Next())
	}
	i := slices.Index(m.Segments, old[0])
	if i < 0 || len(m.Segments)-i < len(old) || !slices.Equal(m.Segments[i:i+len(old)], old) {
		if m.replaced(old, by) {
			return m, nil
		}
		return nil, fmt.Errorf("%w: %d of them from offset %d on", ErrChanged, len(old), old[0].BaseOffset)
	}
	next, last := old[0].BaseOffset, old[len(old)-1].LastOffset
	for _, s := range by {
		if err := s.validate(next); err != nil {
			return nil, err
		}
		if s.LastOffset > last {
			return nil, fmt.Errorf("%w: segment at %d ends at %d, what it replaces at %d", ErrInvalid, s.BaseOffset, s.LastOffset, last)
		}
		if m.removed(s) || slices.ContainsFunc(old, s.sameObjects) {
			return nil, fmt.Errorf("%w: segment at %d has the objects of one that is removed", ErrInvalid, s.BaseOffset)
		}
		next = s.LastOffset + 1
	}
	out := *m
	out.NextOffset = m.Next()
	out.DeleteHorizon = max(m.DeleteHorizon, horizon)
	out.Segments = slices.Replace(slices.Clone(m.Segments), i, i+len(old), by...)
	out.Removed = removing(m.Removed, old, at)
	return &out, nil
}

// replaced reports whether m is what Replace has made, or what became of that.
func (m *Manifest) replaced(old, by []Segment) bool {
	for _, s := range old {
		if !m.removed(s) {
			return false
		}
	}
	for _, s := range by {
		if !slices.Contains(m.Segments, s) && !m.removed(s) {
			return false
		}
	}
	return true
}

// removed reports whether s has been in the manifest once. It is forgotten with its
// objects.
func (m *Manifest) removed(s Segment) bool {
	return slices.ContainsFunc(m.Removed, func(r Removed) bool {
		return r.UploadID == s.UploadID && r.BaseOffset == s.BaseOffset
	})
}

// sameObjects reports whether the two have one name in the bucket.
func (s *Segment) sameObjects(t Segment) bool {
	return s.BaseOffset == t.BaseOffset && s.UploadID == t.UploadID
}

func removing(list []Removed, segs []Segment, at time.Time) []Removed {
	list = slices.Clone(list)
	for _, s := range segs {
		list = append(list, Removed{
			BaseOffset: s.BaseOffset, UploadID: s.UploadID, Size: s.Size + s.IndexSize, RemovedAt: max(0, at.UnixMilli()),
		})
	}
	return list
}

// Truncate returns a manifest of a partition that begins at start: segments wholly
// below go to Removed as of at. start must not lie inside a segment. Where the
// bucket ends below start, it ends at start then. It returns m itself if the
// partition begins there or behind already.
func (m *Manifest) Truncate(start int64, at time.Time) (*Manifest, error) {
	if start <= m.StartOffset {
		return m, nil
	}
	if start == math.MaxInt64 {
		return nil, fmt.Errorf("%w: start %d", ErrInvalid, start)
	}
	n := m.After(start)
	if n < len(m.Segments) && m.Segments[n].BaseOffset < start {
		return nil, fmt.Errorf("%w: start %d lies inside the segment at %d", ErrInvalid, start, m.Segments[n].BaseOffset)
	}
	out := *m
	out.StartOffset, out.NextOffset = start, max(start, m.Next())
	out.Segments = slices.Clone(m.Segments[n:])
	out.Removed = removing(m.Removed, m.Segments[:n], at)
	first := 0 // the epoch that holds at start stays
	for first+1 < len(m.LeaderEpochs) && m.LeaderEpochs[first+1].StartOffset <= start {
		first++
	}
	out.LeaderEpochs = slices.Clone(m.LeaderEpochs[first:])
	return &out, nil
}

// Forget returns a manifest without the given entries of Removed, whose objects are
// gone; m itself if it has none of them.
func (m *Manifest) Forget(uploadIDs ...string) *Manifest {
	out := *m
	out.Removed = slices.DeleteFunc(slices.Clone(m.Removed), func(r Removed) bool { return slices.Contains(uploadIDs, r.UploadID) })
	if len(out.Removed) == len(m.Removed) {
		return m
	}
	return &out
}

// dated returns the segments with at in place of times of creation that are not
// known. It is m's own list if all are.
func (m *Manifest) dated(at time.Time) []Segment {
	segs, copied := m.Segments, false
	for i := range m.Segments {
		if m.Segments[i].CreatedAt != 0 {
			continue
		}
		if !copied {
			segs, copied = slices.Clone(m.Segments), true
		}
		segs[i].CreatedAt = max(0, at.UnixMilli())
	}
	return segs
}
