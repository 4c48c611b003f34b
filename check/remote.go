package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"keyhole/locallog"
	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/record"
	"keyhole/tiered"
)

// remote checks everything of the partition that is in the bucket.
func (p *part) remote(ctx context.Context, objects []objstore.Object) error {
	if p.c.bucket == nil {
		return nil
	}
	m := p.known()
	if m != nil {
		p.segmentEpochs(m)
		for i := range m.Segments {
			if err := p.segment(ctx, &m.Segments[i]); err != nil {
				return err
			}
		}
	}
	p.orphans(objects, m)
	return nil
}

// orphans reports objects that are of no segment of the manifest: those that it
// has replaced and that readers may still be using, and those it does not know. An
// offset that no segment answers for is nothing to report: compaction leaves none
// of a segment in which all is dead.
func (p *part) orphans(objects []objstore.Object, m *manifest.Manifest) {
	named := map[string]bool{p.manifestKey(): true}
	removed := make(map[string]time.Time)
	if m != nil {
		for i := range m.Segments {
			seg := &m.Segments[i]
			named[tiered.LogKey(p.prefix, seg)], named[tiered.IndexKey(p.prefix, seg)] = true, true
		}
		for _, r := range m.Removed {
			seg, at := removedSegment(r), time.UnixMilli(r.RemovedAt)
			removed[tiered.LogKey(p.prefix, seg)], removed[tiered.IndexKey(p.prefix, seg)] = at, at
		}
	}
	strangers := 0
	for _, o := range objects {
		if named[o.Key] {
			continue
		}
		p.c.pass(o.Size)
		at, replaced := removed[o.Key]
		switch {
		case replaced:
			p.c.report(Note, Remote, o.Key, 0, "%d bytes, replaced at %s, waiting for deletion", o.Size, at.UTC().Format(time.RFC3339))
		case m != nil:
			p.c.report(Note, Remote, o.Key, 0, "orphan of %d bytes: no manifest names it (an upload or a rewrite that was broken off, or is under way)", o.Size)
		default:
			strangers++
		}
	}
	if strangers > 0 && p.missing {
		// A writer claims the manifest before it uploads anything.
		p.c.report(Damage, Remote, p.manifestKey(), 0, "missing, though there are %d objects of segments", strangers)
	}
}

// removedSegment has the names of a segment that the manifest has replaced.
func removedSegment(r manifest.Removed) *manifest.Segment {
	return &manifest.Segment{BaseOffset: r.BaseOffset, UploadID: r.UploadID}
}

// segment reads one segment of the bucket, and takes its keys.
func (p *part) segment(ctx context.Context, seg *manifest.Segment) error {
	type finding struct {
		object string
		pos    int64
		err    error
	}
	var found []finding
	err := tiered.VerifySegment(ctx, p.c.bucket, p.prefix, *seg, func(object string, pos int64, err error) {
		found = append(found, finding{object, pos, err})
	})
	if err != nil {
		return fmt.Errorf("segment at offset %d: %w", seg.BaseOffset, err)
	}
	p.c.step(seg.Size + seg.IndexSize)
	r := locallog.Range{From: seg.BaseOffset, Next: seg.LastOffset + 1}
	if len(found) > 0 {
		// While a gateway runs, the segment may have been replaced meanwhile.
		if current, err := p.stillNamed(ctx, seg); err != nil || !current {
			p.moved = append(p.moved, r)
			return err
		}
		p.c.sum.RemoteSegments++
		for _, f := range found {
			p.c.report(Damage, Remote, f.object, f.pos, "segment of offsets %d to %d: %v", seg.BaseOffset, seg.LastOffset, f.err)
		}
		p.remoteBad = append(p.remoteBad, r)
		return nil
	}
	err = p.table(ctx, seg)
	if err == nil && p.replay != nil {
		err = p.replaySegment(ctx, seg)
	}
	if errors.Is(err, objstore.ErrNotFound) || errors.Is(err, objstore.ErrRange) || errors.Is(err, record.ErrCorrupt) {
		// It did hold a moment ago.
		if current, nerr := p.stillNamed(ctx, seg); nerr == nil && !current {
			p.moved = append(p.moved, r)
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("segment at offset %d: %w", seg.BaseOffset, err)
	}
	p.c.sum.RemoteSegments++
	return nil
}

// stillNamed reads the manifest once more. One that cannot be read now was
// reported before, or is somebody else's to report.
func (p *part) stillNamed(ctx context.Context, seg *manifest.Segment) (bool, error) {
	m, _, err := p.fetchManifest(ctx)
	if err != nil {
		if errors.Is(err, objstore.ErrNotFound) || errors.Is(err, record.ErrCorrupt) {
			return true, nil
		}
		return false, err
	}
	return slices.ContainsFunc(m.Segments, func(s manifest.Segment) bool { return s.UploadID == seg.UploadID }), nil
}

// table compares the chunk table on disk with the one in the bucket.
func (p *part) table(ctx context.Context, seg *manifest.Segment) error {
	if p.dir == "" {
		return nil
	}
	path := p.path(remoteDir, tiered.TableName(seg))
	local, err := manifest.ReadFile(p.c.fs, path, seg.TableBytes)
	switch {
	case notExist(err):
		return nil // it is fetched when it is needed
	case err == nil:
		err = tiered.CheckTable(local, seg)
	}
	if err != nil {
		p.c.report(Note, Local, path, 0, "chunk table is not usable, it will be read from the bucket: %v", err)
		return nil
	}
	remote, err := p.c.bucket.ReadRange(ctx, tiered.IndexKey(p.prefix, seg), 0, seg.TableBytes)
	if err != nil {
		return err
	}
	if !bytes.Equal(local, remote) {
		p.c.report(Damage, Local, path, 0, "chunk table holds, but is not the one in the bucket; remove it, it will be read from there")
	}
	return nil
}

// tables reports files beside the manifest's copy that belong to no segment. Those
// of a replaced one stay as long as its objects; and the segments of the copy may
// be others than those that the bucket has by now.
func (p *part) tables() error {
	if p.dir == "" || p.known() == nil {
		return nil
	}
	names, err := p.c.fs.List(p.path(remoteDir))
	if err != nil {
		if notExist(err) {
			return nil
		}
		return err
	}
	known := map[string]bool{p.copyName(): true}
	for _, m := range []*manifest.Manifest{p.bucketManifest, p.localCopy} {
		if m == nil {
			continue
		}
		for i := range m.Segments {
			known[tiered.TableName(&m.Segments[i])] = true
		}
		for _, r := range m.Removed {
			known[tiered.TableName(removedSegment(r))] = true
		}
	}
	slices.Sort(names)
	for _, name := range names {
		path := p.path(remoteDir, name)
		switch {
		case known[name]:
		case name == rewriteFile:
			p.c.report(Note, Local, path, 0, "temporary file of a rewrite that was broken off; the next start removes it")
		case strings.HasSuffix(name, ".tmp"):
			p.c.report(Note, Local, path, 0, "temporary file of a write that was broken off")
		case name == manifestFile:
			p.c.report(Note, Local, path, 0, "a writer's copy of the manifest, on the disk of a read replica")
		case name == followedFile:
			p.c.report(Note, Local, path, 0, "a read replica's copy of the manifest, on the disk of a writer")
		default:
			p.c.report(Note, Local, path, 0, "belongs to no segment that the manifest names")
		}
	}
	return nil
}
