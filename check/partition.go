package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"keyhole/index"
	"keyhole/locallog"
	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/record"
	"keyhole/tiered"
)

// Folders of a partition's directory.
const (
	logDir    = "log"
	remoteDir = "remote"
	indexDir  = "kv_index"
)

// part is one partition while it is checked.
type part struct {
	c       *checker
	t       *topicState
	number  int32
	prefix  string // of its objects
	dir     string // empty: not on this disk
	indexed bool   // the topic has an index

	loaded bool
	// bucketManifest is nil where the bucket has none that holds; missing tells
	// that the store said plainly that there is none.
	bucketManifest, localCopy *manifest.Manifest
	missing                   bool

	index   *index.Index // nil: nothing to compare with
	log     *locallog.Verified
	replay  *replay // nil: not wanted
	discard bool    // the next start throws log and index away, or serves neither

	// Kafka offsets: of segments of the bucket that hold and that do not, and
	// those that no tier has.
	remoteOK, remoteBad, unread []locallog.Range
}

func (c *checker) newPart(t *topicState, n int32) *part {
	p := &part{c: c, t: t, number: n, prefix: tiered.Prefix(t.name, t.id, n)}
	if t.local != nil {
		p.dir = c.fs.PathJoin(t.local.Dir, strconv.Itoa(int(n)))
		if _, err := c.fs.Stat(p.dir); notExist(err) {
			p.dir = ""
		}
		p.indexed = t.local.Indexed
	}
	return p
}

func (p *part) path(elem ...string) string {
	return p.c.fs.PathJoin(append([]string{p.dir}, elem...)...)
}

func (p *part) manifestKey() string { return tiered.ManifestKey(p.prefix) }

// known is the manifest to go by: the bucket's, else the copy on disk.
func (p *part) known() *manifest.Manifest {
	if p.bucketManifest != nil {
		return p.bucketManifest
	}
	return p.localCopy
}

func (c *checker) partition(ctx context.Context, t *topicState, n int32) error {
	return c.newPart(t, n).check(ctx)
}

func (p *part) check(ctx context.Context) (err error) {
	// Objects are listed before the manifest is read, so that what a running
	// gateway uploads in between is not taken for an orphan.
	var objects []objstore.Object
	if p.c.bucket != nil {
		err := p.c.bucket.List(ctx, p.prefix, func(o objstore.Object) error {
			objects = append(objects, o)
			return nil
		})
		if err != nil {
			return err
		}
	}
	if !p.loaded {
		if err := p.loadManifest(ctx); err != nil {
			return err
		}
	}
	if p.dir != "" {
		defer func() { err = errors.Join(err, p.closeIndexes()) }()
		if err := p.local(ctx); err != nil {
			return err
		}
	}
	if err := p.remote(ctx, objects); err != nil {
		return err
	}
	if err := p.tables(); err != nil {
		return err
	}
	p.join()
	return p.compare()
}

func (p *part) closeIndexes() error {
	var errs []error
	if p.index != nil {
		if err := p.index.Close(); err != nil && !errors.Is(err, record.ErrCorrupt) {
			errs = append(errs, err)
		}
	}
	if p.replay != nil {
		errs = append(errs, p.replay.close())
	}
	return errors.Join(errs...)
}

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
	path := p.path(remoteDir, "manifest.json")
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
	case l.Generation < m.Generation && m.Writer == p.c.dir.NodeID:
		p.c.report(Note, Local, path, 0, "generation %d, the bucket has %d; the next start reads that", l.Generation, m.Generation)
	case l.Generation == m.Generation && !bytes.Equal(raw, local):
		p.c.report(Note, Local, path, 0, "differs from the bucket's manifest of the same generation %d; the next start reads that", m.Generation)
	}
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

// join checks that the two tiers fit together: every offset is in one of them.
func (p *part) join() {
	v := p.log
	if v == nil || v.Broken || v.Files == 0 {
		return
	}
	log, m, next := p.path(logDir), p.known(), p.remoteNext()
	if p.c.bucket == nil || m == nil && !p.missing {
		// Nothing is known of the bucket: it was not to be looked at, or its
		// manifest is damaged and there is no copy.
		p.unread = append(p.unread, locallog.Range{Next: v.LocalStart})
		if v.LocalStart > 0 && p.c.bucket == nil {
			p.c.report(Note, Local, log, 0, "offsets below %d are in a bucket that was not looked at", v.LocalStart)
		}
		return
	}
	generation := int64(0)
	if m != nil {
		generation = m.Generation
	}
	if p.superseded() {
		p.discard = true
		if v.HighWatermark > v.RemoteNext {
			p.c.report(Damage, Local, log, 0, "offsets %d to %d were acknowledged here and never uploaded; node %s has taken the partition over with epoch %d, and this disk no longer serves it",
				v.RemoteNext, v.HighWatermark-1, m.Writer, m.Epoch)
		} else {
			p.c.report(Note, Local, log, 0, "node %s has taken the partition over with epoch %d; the next start here begins anew where the bucket ends", m.Writer, m.Epoch)
		}
		return
	}
	switch {
	case v.LocalStart > next:
		p.c.report(Damage, Remote, p.manifestKey(), 0, "offsets %d to %d are in neither tier: the manifest ends before %d, the local log begins at %d", next, v.LocalStart-1, next, v.LocalStart)
		p.unread = append(p.unread, locallog.Range{From: next, Next: v.LocalStart})
	case v.RemoteNext > next, v.ManifestGeneration > generation && !p.missing:
		p.c.report(Damage, Remote, p.manifestKey(), 0, "generation %d ends before offset %d, though the local log noted generation %d with everything below %d",
			generation, next, v.ManifestGeneration, v.RemoteNext)
	case v.HighWatermark < next:
		p.c.report(Note, Local, log, 0, "ends at offset %d, the bucket at %d; the next start begins anew where the bucket ends", v.HighWatermark-1, next-1)
		p.discard = true
	}
}

// remote checks everything of the partition that is in the bucket.
func (p *part) remote(ctx context.Context, objects []objstore.Object) error {
	if p.c.bucket == nil {
		return nil
	}
	m := p.known()
	named := map[string]bool{p.manifestKey(): true}
	if m != nil {
		for i := range m.Segments {
			seg := &m.Segments[i]
			named[tiered.LogKey(p.prefix, seg)], named[tiered.IndexKey(p.prefix, seg)] = true, true
		}
		p.gaps(m)
		for i := range m.Segments {
			if err := p.segment(ctx, &m.Segments[i]); err != nil {
				return err
			}
		}
	}
	p.orphans(objects, named, m)
	return nil
}

// orphans reports what the manifest does not name.
func (p *part) orphans(objects []objstore.Object, named map[string]bool, m *manifest.Manifest) {
	objects = slices.DeleteFunc(objects, func(o objstore.Object) bool { return named[o.Key] })
	switch {
	case len(objects) == 0:
	case m != nil:
		for _, o := range objects {
			p.c.report(Note, Remote, o.Key, 0, "orphan of %d bytes: no manifest names it (an upload that was broken off, or is under way)", o.Size)
		}
	case p.missing:
		// A writer claims the manifest before it uploads anything.
		p.c.report(Damage, Remote, p.manifestKey(), 0, "missing, though there are %d objects of segments", len(objects))
	}
}

// gaps reports offsets between two segments. Compaction may leave such; what an
// index entry points to must not be in one.
func (p *part) gaps(m *manifest.Manifest) {
	for i := 1; i < len(m.Segments); i++ {
		from, until := m.Segments[i-1].LastOffset+1, m.Segments[i].BaseOffset
		if from < until {
			p.c.report(Note, Remote, p.manifestKey(), 0, "no segment has offsets %d to %d; that is right if compaction has removed them", from, until-1)
		}
	}
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
	if len(found) > 0 {
		// While a gateway runs, the segment may have been replaced meanwhile.
		if current, err := p.stillNamed(ctx, seg); err != nil || !current {
			return err
		}
	}
	p.c.sum.RemoteSegments++
	r := locallog.Range{From: seg.BaseOffset, Next: seg.LastOffset + 1}
	for _, f := range found {
		p.c.report(Damage, Remote, f.object, f.pos, "segment of offsets %d to %d: %v", seg.BaseOffset, seg.LastOffset, f.err)
	}
	if len(found) > 0 {
		p.remoteBad = append(p.remoteBad, r)
		return nil
	}
	if n := len(p.remoteOK); n > 0 && p.remoteOK[n-1].Next == r.From {
		p.remoteOK[n-1].Next = r.Next
	} else {
		p.remoteOK = append(p.remoteOK, r)
	}
	if err := p.table(ctx, seg); err != nil {
		return err
	}
	if p.replay == nil {
		return nil
	}
	return p.replay.segment(func(fn func(key []byte, offset int64, tombstone bool) error) error {
		return tiered.SegmentKeys(ctx, p.c.bucket, p.prefix, *seg, fn)
	})
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

// tables reports files beside the manifest's copy that belong to no segment.
func (p *part) tables() error {
	m := p.known()
	if p.dir == "" || m == nil {
		return nil
	}
	names, err := p.c.fs.List(p.path(remoteDir))
	if err != nil {
		if notExist(err) {
			return nil
		}
		return err
	}
	known := map[string]bool{"manifest.json": true}
	for i := range m.Segments {
		known[tiered.TableName(&m.Segments[i])] = true
	}
	slices.Sort(names)
	for _, name := range names {
		switch {
		case known[name]:
		case strings.HasSuffix(name, ".tmp"):
			p.c.report(Note, Local, p.path(remoteDir, name), 0, "temporary file of a write that was broken off")
		default:
			p.c.report(Note, Local, p.path(remoteDir, name), 0, "belongs to no segment that the manifest names")
		}
	}
	return nil
}
