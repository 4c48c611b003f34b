package manifest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"keyhole/record"
)

// ErrFollows is a Follow on a handle that has claimed: what the bucket holds is
// then this handle's to say.
var ErrFollows = errors.New("manifest: a writer does not follow")

// followedSuffix makes the name of a follower's copy. It is not the writer's copy,
// which proves what the disk has had: a node that only read the bucket has not had
// the partition, and must not pass for one that has when it claims later.
const followedSuffix = ".replica"

// Follow makes the bucket's manifest current if it continues the current one, and
// keeps a copy on the disk. It is for a node that only reads: it claims nothing and
// writes nothing to the bucket, and moves no bytes while nothing has changed there.
// changed says that Current is another one than before, which may be true with an
// error: that of the copy.
//
// As long as nothing has been uploaded there is no manifest, which is no error.
// A bucket that went back is record.ErrCorrupt, again each time, and Current stays:
// whoever reads here has been told of the offsets that are gone. The error matches
// ErrAbsent too where a manifest has been known and there is none any more.
func (h *Handle) Follow(ctx context.Context) (changed bool, err error) {
	if err := h.lock(ctx); err != nil {
		return false, err
	}
	defer h.unlock()
	if h.epoch != 0 {
		return false, ErrFollows
	}
	var m *Manifest
	var etag string
	if h.seen.etag == "" {
		m, etag, err = h.load(ctx)
	} else {
		m, etag, err = h.decoded(h.o.Store.LoadIfChanged(ctx, h.seen.etag))
	}
	cur := h.Current()
	switch {
	case errors.Is(err, ErrUnchanged):
		return false, errors.Join(h.seen.verdict, h.save(h.o.Path+followedSuffix))
	case err != nil:
		h.seen.etag = "" // of a damaged one: it is looked at again
		return false, err
	case m == nil:
		h.seen.etag = ""
		if !cur.Known() {
			return false, nil
		}
		return false, record.Corrupt(h.o.Object, 0, fmt.Errorf("manifest of generation %d is gone from the bucket: %w", cur.Generation, ErrAbsent))
	}
	h.seen.etag, h.seen.verdict = etag, nil
	switch {
	case m.Session == cur.Session && m.Commit == cur.Commit && m.Generation == cur.Generation:
		// The one that is on the disk already.
	default:
		if err := continues(cur, m); err != nil {
			h.seen.verdict = record.Corrupt(h.o.Object, 0, err)
			return false, h.seen.verdict
		}
		h.current.Store(m)
		h.unsaved, changed = true, true
	}
	return changed, h.save(h.o.Path + followedSuffix)
}

// continues says why next is not what became of cur, if it is not. Between the two
// may lie any number of edits and claims.
func continues(cur, next *Manifest) error {
	switch {
	case !cur.Known():
		return nil
	case next.Epoch < cur.Epoch, next.Epoch == cur.Epoch && next.Generation <= cur.Generation:
		// Where the store excludes no second writer, a late write of an older one
		// looks the same until the newer one puts its own back.
		return fmt.Errorf("bucket has epoch %d, generation %d by %s after epoch %d, generation %d by %s",
			next.Epoch, next.Generation, next.Writer, cur.Epoch, cur.Generation, cur.Writer)
	case next.Next() < cur.Next() || next.StartOffset < cur.StartOffset || next.DeleteHorizon < cur.DeleteHorizon:
		return fmt.Errorf("bucket has offsets %d to %d with tombstones removed below %d, after %d to %d and %d",
			next.StartOffset, next.Next(), next.DeleteHorizon, cur.StartOffset, cur.Next(), cur.DeleteHorizon)
	}
	// Whoever was set back and went on since has given the same offsets to other
	// records, in an epoch of its own.
	from := max(cur.StartOffset, next.StartOffset)
	if was, is := cur.epochs(from, cur.Next()), next.epochs(from, cur.Next()); !slices.Equal(was, is) {
		return fmt.Errorf("bucket has other epochs from offset %d to %d than before: %.200v, were %.200v", from, cur.Next(), is, was)
	}
	return nil
}

// epochs returns the epochs of offsets in a range, the first from its begin on.
func (m *Manifest) epochs(from, to int64) []EpochStart {
	if from >= to {
		return nil
	}
	out := []EpochStart{{Epoch: m.EpochAt(from), StartOffset: from}}
	for _, e := range m.LeaderEpochs {
		if e.StartOffset > from && e.StartOffset < to {
			out = append(out, e)
		}
	}
	return out
}
