package tiered

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"keyhole/manifest"
	"keyhole/objstore"
)

// CollectOptions say what is garbage.
type CollectOptions struct {
	// Grace is how long an object stays after the manifest has stopped naming it, and
	// how old an orphan must be. It must be longer than any read takes, and than a
	// replica goes on with a manifest that it has.
	Grace   time.Duration
	Now     func() time.Time // nil: that of the Tier
	Orphans bool             // look for objects that no manifest names, too: a listing of the partition
	DryRun  bool             // delete nothing
}

// Collected says what Collect has deleted, or would have.
type Collected struct {
	Objects []Garbage
	Deleted bool // false: this was a dry run
}

// Bytes is the size of all objects together, as far as it is known.
func (c Collected) Bytes() (n int64) {
	for _, g := range c.Objects {
		n += g.Size
	}
	return n
}

// Values of Garbage.Why.
const (
	whyReplaced = "replaced"
	whyOrphan   = "orphan"
)

// Garbage is an object that nobody needs any more.
type Garbage struct {
	Key string
	// Size is in bytes. Of a replaced segment the manifest knows the size of both
	// objects only; it stands with the first of them, the .log object.
	Size int64
	Age  time.Duration // since it was replaced, or, of an orphan, stored
	Why  string        // "replaced" or "orphan"
}

// orphan is a candidate of a listing.
type orphan struct {
	objstore.Object
	base     int64
	uploadID string
}

// Collect deletes the objects of segments that were replaced or truncated longer
// ago than the grace period, and then strikes them off the manifest. With Orphans
// it also lists the partition's objects and deletes those of segments that the
// manifest does not name, unless an upload of this process is about to have it name
// them. Only names that a segment's objects can have are looked at; everything else
// in the bucket is left alone.
//
// Before anything is deleted the manifest is looked at anew, so a node that was
// fenced deletes nothing: ErrFenced; ErrNotClaimed before a claim. What was deleted
// is returned also with an error, and Collect may be repeated after any.
func (t *Tier) Collect(ctx context.Context, o CollectOptions) (c Collected, err error) {
	ctx, done, err := t.begin(ctx)
	if err != nil {
		return c, err
	}
	defer func() { done(&err) }()
	if o.Now == nil {
		o.Now = t.o.Now
	}
	c.Deleted = !o.DryRun
	// The order counts: what is listed was put under a name that is among the begun
	// uploads by now, or in the manifest by then, or else is an orphan, whatever the
	// clocks say.
	var listed []orphan
	if o.Orphans {
		if listed, err = t.unnamed(ctx); err != nil {
			return c, err
		}
	}
	begun, err := t.begun(ctx, o)
	if err != nil {
		return c, err
	}
	if err := t.manifest.Look(ctx); err != nil {
		return c, err
	}
	// A claim that ran meanwhile kept Look from looking; it has looked itself.
	if err := t.writable(ctx); err != nil {
		return c, err
	}
	m := t.Snapshot()
	err = t.collectReplaced(ctx, m, o, &c)
	if err == nil {
		err = t.collectOrphans(ctx, m, listed, begun, o, &c)
	}
	return c, err
}

// begun are the upload ids that the manifest may come to name. A Rewrite that failed
// long ago and was not repeated is forgotten, unless this is a dry run.
func (t *Tier) begun(ctx context.Context, o CollectOptions) (map[string]bool, error) {
	if err := t.lock(ctx); err != nil {
		return nil, err
	}
	defer t.unlock()
	if err := t.writableLocked(); err != nil {
		return nil, err
	}
	ids := make(map[string]bool)
	for _, p := range t.pending {
		ids[p.uploadID] = true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch r := t.mu.rewriting; {
	case r == nil:
	case r.failed.IsZero() || o.Now().Sub(r.failed) <= max(o.Grace, rewritePatience):
		ids[r.uploadID] = true
	case !o.DryRun:
		t.mu.rewriting = nil // a repetition takes a new name, as what has this one goes
	}
	return ids, nil
}

// collectReplaced deletes what the manifest says was removed long enough ago.
func (t *Tier) collectReplaced(ctx context.Context, m *manifest.Manifest, o CollectOptions, c *Collected) error {
	var gone []string
	var failure error
	now := o.Now()
	inUse := make(map[string]bool, len(m.Segments))
	for i := range m.Segments {
		inUse[m.Segments[i].UploadID] = true
	}
	for _, r := range m.Removed {
		age := now.Sub(time.UnixMilli(r.RemovedAt))
		if age <= o.Grace || inUse[r.UploadID] { // the latter cannot be
			continue
		}
		seg := &manifest.Segment{BaseOffset: r.BaseOffset, UploadID: r.UploadID}
		pair := []Garbage{
			{Key: LogKey(t.prefix, seg), Size: r.Size, Age: age, Why: whyReplaced},
			{Key: IndexKey(t.prefix, seg), Age: age, Why: whyReplaced},
		}
		if failure = t.delete(ctx, pair, o, c); failure != nil {
			break
		}
		gone = append(gone, r.UploadID)
		if !o.DryRun {
			t.dropTable(seg)
		}
	}
	if o.DryRun || len(gone) == 0 {
		return failure
	}
	err := t.commit(ctx, func(m *manifest.Manifest) (*manifest.Manifest, error) { return m.Forget(gone...), nil })
	return errors.Join(failure, err)
}

// collectOrphans deletes those of the listed objects that turned out to be orphans
// and are old enough.
func (t *Tier) collectOrphans(ctx context.Context, m *manifest.Manifest, listed []orphan, begun map[string]bool, o CollectOptions, c *Collected) error {
	named := names(m)
	now := o.Now()
	for _, g := range listed {
		age := now.Sub(g.ModTime)
		if named[segmentID{g.base, g.uploadID}] || begun[g.uploadID] || age <= o.Grace {
			continue
		}
		if err := t.delete(ctx, []Garbage{{Key: g.Key, Size: g.Size, Age: age, Why: whyOrphan}}, o, c); err != nil {
			return err
		}
	}
	return nil
}

// delete deletes objects, unless in a dry run, and notes them in c.
func (t *Tier) delete(ctx context.Context, list []Garbage, o CollectOptions, c *Collected) error {
	for _, g := range list {
		if !o.DryRun {
			if err := t.o.Bucket.Delete(ctx, g.Key); err != nil {
				return fmt.Errorf("delete %s: %w", g.Key, err)
			}
		}
		c.Objects = append(c.Objects, g)
	}
	return nil
}

// segmentID is what the names of a segment's objects are made of.
type segmentID struct {
	base     int64
	uploadID string
}

// names are the segments that m names or has not forgotten yet.
func names(m *manifest.Manifest) map[segmentID]bool {
	out := make(map[segmentID]bool, len(m.Segments)+len(m.Removed))
	for i := range m.Segments {
		out[segmentID{m.Segments[i].BaseOffset, m.Segments[i].UploadID}] = true
	}
	for _, r := range m.Removed {
		out[segmentID{r.BaseOffset, r.UploadID}] = true
	}
	return out
}

// unnamed lists the objects with the name of a segment that the manifest, as last
// known, does not name.
func (t *Tier) unnamed(ctx context.Context) (list []orphan, err error) {
	named := names(t.Snapshot())
	err = t.o.Bucket.List(ctx, t.prefix, func(o objstore.Object) error {
		base, uploadID, ok := parseSegmentName(strings.TrimPrefix(o.Key, t.prefix))
		if ok && !named[segmentID{base, uploadID}] {
			list = append(list, orphan{o, base, uploadID})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the objects of the partition: %w", err)
	}
	return list, nil
}

// dropTable removes the local table of a segment that is gone.
func (t *Tier) dropTable(seg *manifest.Segment) {
	t.files.Lock()
	defer t.files.Unlock()
	path := t.o.FS.PathJoin(t.o.Dir, tableFile(seg))
	if err := t.o.FS.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.o.Logger.Warn("chunk table cannot be removed", "path", path, "err", err)
	}
}
