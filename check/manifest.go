package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/record"
)

// Files of the remote folder that are not of a segment.
const (
	manifestFile = "manifest.json"
	followedFile = "manifest.json.replica" // what a read replica has seen
	rewriteFile  = "compact.tmp"
)

// loadManifest reads the manifest of the bucket and its copy on disk, and
// compares the two.
func (p *part) loadManifest(ctx context.Context) error {
	p.loaded = true
	var raw []byte
	if p.c.bucket != nil {
		m, data, err := p.fetchManifest(ctx)
		switch {
		case errors.Is(err, objstore.ErrNotFound):
			p.missing = true
		case errors.Is(err, record.ErrCorrupt):
			if err := p.c.corrupt(Remote, p.manifestKey(), err); err != nil {
				return err
			}
		case err != nil:
			return err
		}
		p.bucketManifest, raw = m, data
	}
	if p.dir == "" {
		return nil
	}
	path := p.path(remoteDir, p.copyName())
	local, err := manifest.ReadFile(p.c.fs, path, manifest.MaxBytes)
	var m *manifest.Manifest
	if err == nil {
		m, err = manifest.Decode(path, local)
	}
	if err == nil {
		err = p.identity(m)
	}
	switch {
	case notExist(err):
		if p.bucketManifest != nil {
			p.c.report(Note, Local, path, 0, "no copy of the manifest; the next start reads the bucket's")
		}
		return nil
	case err != nil:
		p.c.report(Note, Local, path, 0, "the copy of the manifest is not usable, the next start reads the bucket's: %v", err)
		return nil
	}
	p.localCopy = m
	p.compareManifests(path, raw, local)
	return nil
}

// copyName is that of the manifest's copy on this disk.
func (p *part) copyName() string {
	if p.replica() {
		return followedFile
	}
	return manifestFile
}

// fetchManifest reads and decodes the bucket's manifest.
func (p *part) fetchManifest(ctx context.Context) (*manifest.Manifest, []byte, error) {
	key := p.manifestKey()
	data, _, err := p.c.bucket.Get(ctx, key, manifest.MaxBytes)
	if errors.Is(err, objstore.ErrTooLarge) {
		err = record.Corrupt(key, 0, err)
	}
	if err != nil {
		return nil, nil, err
	}
	m, err := manifest.Decode(key, data)
	if err != nil {
		return nil, nil, err
	}
	if err := p.identity(m); err != nil {
		return nil, nil, record.Corrupt(key, 0, err)
	}
	return m, data, nil
}

func (p *part) identity(m *manifest.Manifest) error {
	if m.Topic == p.t.name && m.TopicID == p.t.id && m.Partition == p.number {
		return nil
	}
	return fmt.Errorf("manifest of %s/%s/%d", m.Topic, m.TopicID, m.Partition)
}

func (p *part) compareManifests(path string, raw, local []byte) {
	m, l := p.bucketManifest, p.localCopy
	switch {
	case p.missing:
		p.c.report(Damage, Remote, p.manifestKey(), 0, "missing, though %s has its generation %d", path, l.Generation)
	case m == nil: // damaged, or no bucket to look at
	case l.Generation > m.Generation:
		p.c.report(Damage, Remote, p.manifestKey(), 0, "generation %d, though %s has generation %d: the bucket went back", m.Generation, path, l.Generation)
	case l.Generation == m.Generation && !bytes.Equal(raw, local):
		p.c.report(Note, Local, path, 0, "differs from the bucket's manifest of the same generation %d; the next start reads that", m.Generation)
	case m.Next() < l.Next() || m.StartOffset < l.StartOffset || m.DeleteHorizon < l.DeleteHorizon:
		p.c.report(Damage, Remote, p.manifestKey(), 0, "offsets %d to %d with tombstones removed below %d, though %s has %d to %d and %d: the bucket went back and was written since",
			m.StartOffset, m.Next()-1, m.DeleteHorizon, path, l.StartOffset, l.Next()-1, l.DeleteHorizon)
	case l.Generation < m.Generation && m.Writer == p.c.dir.NodeID:
		p.c.report(Note, Local, path, 0, "generation %d, the bucket has %d; the next start reads that", l.Generation, m.Generation)
	}
	if m != nil {
		if at, ok := differingEpoch(l, m); ok {
			p.c.report(Damage, Remote, p.manifestKey(), 0, "offset %d is of epoch %d, though %s says %d: other records have been written there", at, m.EpochAt(at), path, l.EpochAt(at))
		}
	}
}

// differingEpoch finds an offset that both have and say different epochs of.
func differingEpoch(a, b *manifest.Manifest) (at int64, differs bool) {
	from, next := max(a.StartOffset, b.StartOffset), min(a.Next(), b.Next())
	for _, e := range slices.Concat([]manifest.EpochStart{{StartOffset: from}}, a.LeaderEpochs, b.LeaderEpochs) {
		at := e.StartOffset
		if at >= from && at < next && a.EpochAt(at) != b.EpochAt(at) {
			return at, true
		}
	}
	return 0, false
}

// superseded reports whether another node took the partition over since this
// disk last had it.
func (p *part) superseded() bool {
	m := p.bucketManifest
	if m == nil || m.Writer == p.c.dir.NodeID {
		return false
	}
	return p.localCopy == nil || m.Epoch > p.localCopy.Epoch
}

// remoteNext is where the bucket ends, as far as known (exclusive).
func (p *part) remoteNext() int64 {
	if m := p.known(); m != nil {
		return m.Next()
	}
	return 0
}

// start is the offset below which nothing is retained, as far as known. Without
// anything in a bucket, only retention moves the start of the local log.
func (p *part) start() int64 {
	start := int64(0)
	if m := p.known(); m != nil {
		start = m.StartOffset
	}
	if v := p.log; v != nil && v.RemoteNext == 0 {
		start = max(start, v.LocalStart)
	}
	return start
}

// segmentEpochs compares what is said of the epoch of an offset in two places: entity
// tags carry it, so it must not change when a record moves to the other tier.
func (p *part) segmentEpochs(m *manifest.Manifest) {
	for i := range m.Segments {
		seg := &m.Segments[i]
		if e := m.EpochAt(seg.LastOffset); e != seg.Epoch {
			p.c.report(Damage, Remote, p.manifestKey(), 0, "segment of offsets %d to %d is of epoch %d, the list of epochs says %d", seg.BaseOffset, seg.LastOffset, seg.Epoch, e)
		}
	}
}
