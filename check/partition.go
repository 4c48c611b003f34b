package check

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"keyhole/index"
	"keyhole/locallog"
	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/record"
	"keyhole/tiered"
)

// What is in a partition's directory.
const (
	logDir       = "log"
	remoteDir    = "remote"
	indexDir     = "kv_index"
	nextIndexDir = "kv_index.next" // a read replica's, every other time it builds one anew
	outdatedLog  = "log.outdated"
	cleanedFile  = "compacted" // how far the tiers are compacted; of no use to a reader
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

	index     *index.Index // nil: nothing to compare with
	indexName string
	log       *locallog.Verified // nil: not on this disk, or this is a read replica's
	replay    *replay            // nil: not wanted
	discard   bool               // the next start throws log and index away, or serves neither

	// Kafka offsets: of segments of the bucket that do not hold, of those that were
	// replaced while they were read, and those that no tier has.
	remoteBad, moved, unread []locallog.Range

	differing keyFindings // between the tiers
	epochs    struct {    // of the local segment at hand
		file  string
		epoch int64
		ok    bool // and there is something to compare
	}
}

func (c *checker) newPart(t *topicState, n int32) *part {
	p := &part{c: c, t: t, number: n, prefix: tiered.Prefix(t.name, t.id, n), indexName: indexDir}
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

// replica reports whether the disk is that of a read replica, which has no log.
func (p *part) replica() bool { return p.c.dir.ReadReplica }

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

// join checks that the two tiers fit together: every offset is in one of them, or
// is no longer retained.
func (p *part) join() {
	v := p.log
	if v == nil || v.Broken || v.Files == 0 {
		return
	}
	log, m, next := p.path(logDir), p.known(), p.remoteNext()
	if p.c.bucket == nil || m == nil && !p.missing {
		// Nothing is known of the bucket: it was not to be looked at, or its
		// manifest is damaged and there is no copy.
		if start := p.start(); start < v.LocalStart {
			p.unread = append(p.unread, locallog.Range{From: start, Next: v.LocalStart})
			if p.c.bucket == nil {
				p.c.report(Note, Local, log, 0, "offsets below %d are in a bucket that was not looked at", v.LocalStart)
			}
		}
		return
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
	generation := int64(0)
	if m != nil {
		generation = m.Generation
	}
	// Where the bucket never had anything, retention alone has moved the local start.
	never := m == nil && v.RemoteNext == 0
	switch {
	case v.LocalStart > next && !never:
		p.c.report(Damage, Remote, p.manifestKey(), 0, "offsets %d to %d are in neither tier: the manifest ends before %d, the local log begins at %d", next, v.LocalStart-1, next, v.LocalStart)
		p.unread = append(p.unread, locallog.Range{From: next, Next: v.LocalStart})
	case v.RemoteNext > next, v.ManifestGeneration > generation && !p.missing:
		p.c.report(Damage, Remote, p.manifestKey(), 0, "generation %d ends before offset %d, though the local log noted generation %d with everything below %d",
			generation, next, v.ManifestGeneration, v.RemoteNext)
	case v.HighWatermark < next:
		p.c.report(Note, Local, log, 0, "ends at offset %d, the bucket at %d; the next start begins anew where the bucket ends", v.HighWatermark-1, next-1)
		p.discard = true
	case v.LocalStart < p.start():
		p.c.report(Note, Local, log, 0, "begins at offset %d, though nothing below %d is retained: what goes by then has not been removed here yet", v.LocalStart, p.start())
	}
}

// epoch compares the epoch of a batch of the local log with the one that the
// manifest says of its first record.
func (p *part) epoch(file string, offset int64) {
	m := p.known()
	if m == nil || offset < m.StartOffset || offset >= m.Next() || p.superseded() {
		return
	}
	if p.epochs.file != file {
		p.epochs.file, p.epochs.ok = file, false
		var base int64
		n, err := fmt.Sscanf(file, "%d-%d.log", &base, &p.epochs.epoch)
		p.epochs.ok = n == 2 && err == nil
	}
	if e := m.EpochAt(offset); p.epochs.ok && e != p.epochs.epoch {
		p.epochs.ok = false // once per segment
		p.c.report(Damage, Remote, p.manifestKey(), 0, "offset %d is of epoch %d, the local log has it in %s, of epoch %d", offset, e, file, p.epochs.epoch)
	}
}
