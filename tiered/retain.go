package tiered

import (
	"context"
	"time"

	"keyhole/manifest"
)

// Truncate has the partition begin at start: segments that lie below are named no
// more and left to Collect, at being the time of that. start must not lie inside a
// segment. The bucket ends at next then, unless it has more. It returns the
// manifest that says so; a repetition changes nothing. ErrFenced and ErrNotClaimed
// as named; after errors of the store and the disk it may be repeated.
func (t *Tier) Truncate(ctx context.Context, start, next int64, at time.Time) (m *manifest.Manifest, err error) {
	ctx, done, err := t.begin(ctx)
	if err != nil {
		return t.Snapshot(), err
	}
	defer func() { done(&err) }()
	// Not while an upload runs: where it begins was decided by the manifest before.
	if err := t.lock(ctx); err != nil {
		return t.Snapshot(), err
	}
	defer t.unlock()
	if err := t.writableLocked(); err != nil {
		return t.Snapshot(), err
	}
	err = t.commit(ctx, func(m *manifest.Manifest) (*manifest.Manifest, error) {
		return m.Advance(next).Truncate(start, at)
	})
	t.forgetPending()
	return t.Snapshot(), err
}

// Follow takes over what another node has made of the manifest since, and says
// whether that is anything. It is for a Tier that claims nothing and only reads:
// the bucket is not written to, and no bytes are moved while nothing has changed.
// Errors, which may come with a change, are those of the manifest's Follow: damage
// or a bucket that went back is record.ErrCorrupt, and the snapshot stays.
func (t *Tier) Follow(ctx context.Context) (changed bool, err error) {
	ctx, done, err := t.begin(ctx)
	if err != nil {
		return false, err
	}
	defer func() { done(&err) }()
	if err := t.lock(ctx); err != nil {
		return false, err
	}
	defer t.unlock()
	changed, err = t.manifest.Follow(ctx)
	if changed {
		t.sweep()
	}
	return changed, err
}
