package partition

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"keyhole/index"
	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/tiered"
)

// minReplicaInterval keeps a replica whose settings name no interval from asking
// without a pause.
const minReplicaInterval = 10 * time.Millisecond

// follow is run for a read replica: it asks for the manifest again and again and
// brings the index up to it.
//
//	manifest (conditional GET) ─► key runs of what is new ─► index ─► serve
//
// Lookups never wait for it. While entries of a new manifest go into the index one
// by one, both the new manifest and the one before are looked in: what the index
// already has from the new one is in the new one, and everything else is in the
// one before, whose objects stay in the bucket for the grace period. The position
// moves only when all entries are in.
func (p *Partition) follow() {
	defer close(p.done)
	opened := sync.OnceFunc(func() { close(p.opened) })
	defer opened()
	p.loadCleaned()
	for backoff := time.Duration(0); ; {
		err := p.followOnce(p.ctx)
		pause := max(minReplicaInterval, p.settings.Load().ReplicaInterval)
		if err == nil {
			backoff = 0
		} else if p.ctx.Err() == nil {
			backoff = nextBackoff(backoff)
			pause = max(jitter(backoff), pause)
			p.o.Logger.Warn("cannot follow the bucket; will try again", "err", err, "in", pause)
			p.notFollowing(err)
		}
		if err == nil || isDamaged(err) {
			opened()
		}
		if !p.rest(pause, p.kick) {
			return
		}
	}
}

// notFollowing says what is wrong. What was served goes on being served.
func (p *Partition) notFollowing(err error) {
	p.setStoreTrouble(err)
	if isCorrupt(err) && p.serving.Load() == nil && !unavailable(err) {
		p.damage("manifest", err)
		return
	}
	if p.serving.Load() == nil {
		p.setReason(err.Error())
	}
}

// followOnce brings the replica up to the manifest that the bucket has now.
func (p *Partition) followOnce(ctx context.Context) error {
	if err := p.enter(ctx); err != nil {
		return err
	}
	defer p.leave()
	if err := p.makeDir(); err != nil {
		return fmt.Errorf("make partition directory: %w", err)
	}
	if p.tier == nil {
		if err := p.openTier(); err != nil {
			return err
		}
	}
	if err := p.mendIndex(); err != nil {
		return err
	}
	var behind error // why the manifest at hand may not be the newest
	if v := p.serving.Load(); v == nil || len(v.remote) == 1 {
		// Otherwise the manifest before this one is not applied yet.
		if _, err := p.tier.Follow(ctx); err != nil {
			behind = fmt.Errorf("read the manifest: %w", err)
		}
	}
	if !p.settings.Load().IndexMaintained {
		return errors.Join(behind, p.dropIndex())
	}
	if behind != nil && !p.tier.Snapshot().Known() {
		return behind
	}
	if err := p.pickIndexDir(); err != nil {
		return err
	}
	if err := p.openIndex(); err != nil {
		return err
	}
	err := p.applyManifest(ctx, p.tier.Snapshot())
	if errors.Is(err, tiered.ErrMoved) || errors.Is(err, objstore.ErrNotFound) {
		// If what it names was replaced and is gone, there is a newer one.
		if _, err = p.tier.Follow(ctx); err == nil {
			err = p.applyManifest(ctx, p.tier.Snapshot())
		}
	}
	if errors.Is(err, index.ErrFailed) {
		p.indexFailed(p.serving.Load(), err)
	}
	if err = errors.Join(behind, err); err == nil {
		p.setStoreTrouble(nil)
	}
	return err
}

// applyManifest brings the index up to m and serves by it.
func (p *Partition) applyManifest(ctx context.Context, m *manifest.Manifest) error {
	v, ix := p.serving.Load(), p.feed.open()
	if v != nil && len(v.remote) == 1 && v.remote[0] == m {
		return nil
	}
	at := ix.Applied().NextKafka
	if at > m.Next() || at < max(m.DeleteHorizon, 1) && !isEmpty(ix) {
		return p.rebuildBeside(ctx, m)
	}
	if v != nil && v.remote[0] != m {
		p.serving.Store(&view{ix: ix, remote: append([]*manifest.Manifest{m}, v.remote...)})
	}
	if at < m.Next() {
		replay := func() error { return p.replayKeyRuns(ctx, ix, at, m.Next()) }
		var err error
		if v != nil && newRunBytes(m, at) <= littleNew {
			err = replay() // whoever asks here wants it soon
		} else {
			err = p.inTurn(ctx, replay)
		}
		if err != nil {
			return err
		}
	}
	return p.serveReplica(ctx, ix, m)
}

// littleNew is how many bytes of key runs a replica that serves reads at once. More
// is what an outage has left, of all its partitions; they take turns then, as at a
// start, because each of them has as much of it in memory as there is.
const littleNew = 256 << 10

// newRunBytes is how many bytes of key runs m has for who knows all below an offset.
func newRunBytes(m *manifest.Manifest, next int64) (n int64) {
	for _, seg := range m.Segments[m.After(next):] {
		n += seg.IndexSize - seg.TableBytes
	}
	return n
}

// serveReplica lets lookups go by ix and m alone.
func (p *Partition) serveReplica(ctx context.Context, ix *index.Index, m *manifest.Manifest) error {
	v := &view{ix: ix, remote: []*manifest.Manifest{m}}
	p.publish(v)
	p.applied.beat()
	ctx, end, err := p.compactions.begin(ctx, false)
	if err != nil {
		return err
	}
	defer end()
	return p.purge(ctx, v)
}

// The two directories that a replica's index may be in. The second one is used when
// an index has to be built anew beside one that serves.
const (
	indexName      = "kv_index"
	otherIndexName = "kv_index.next"
)

// pickIndexDir finds the index of an earlier run. If there are two, the run ended
// while the second was being built or had just taken over; the first is as good.
func (p *Partition) pickIndexDir() error {
	if p.feed.open() != nil {
		return nil
	}
	first, other := p.o.FS.PathJoin(p.o.Dir, indexName), p.o.FS.PathJoin(p.o.Dir, otherIndexName)
	p.indexName = indexName
	if _, err := p.o.FS.Stat(other); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if _, err := p.o.FS.Stat(first); errors.Is(err, os.ErrNotExist) {
		p.indexName = otherIndexName
		return nil
	}
	return index.Remove(p.o.FS, other)
}

// rebuildBeside builds a new index from m while the old one serves on, and then
// lets it take over: the old one may point at records that were deleted, of which
// the bucket says nothing any more.
func (p *Partition) rebuildBeside(ctx context.Context, m *manifest.Manifest) error {
	p.o.Logger.Info("building the index anew beside the one in use", "next_offset", m.Next(), "tombstones_removed_below", m.DeleteHorizon)
	old, oldDir := p.feed.open(), p.indexDir()
	name := otherIndexName
	if p.indexName == otherIndexName {
		name = indexName
	}
	dir := p.o.FS.PathJoin(p.o.Dir, name)
	if err := index.Remove(p.o.FS, dir); err != nil {
		return err
	}
	ix, err := index.Open(dir, index.Options{FS: p.o.FS, Shared: p.o.Indexes, Logger: p.o.Logger})
	if err != nil {
		return fmt.Errorf("open second index: %w", err)
	}
	err = p.inTurn(ctx, func() error { return p.replayKeyRuns(ctx, ix, 0, m.Next()) })
	if err == nil {
		err = ix.Flush(ctx)
	}
	if errors.Is(err, index.ErrFailed) {
		err = fmt.Errorf("second index: %v", err) // the first one has not failed, and serves on
	}
	if err != nil {
		return errors.Join(err, ix.Close())
	}
	p.o.Metrics.Rebuilds.Inc()
	p.feed.mu.Lock()
	p.feed.ix = ix
	p.feed.mu.Unlock()
	p.indexName = name
	// From here on nobody goes by the old one, whatever else fails.
	err = p.serveReplica(ctx, ix, m)
	if err := old.Close(); err != nil {
		p.o.Logger.Warn("closing the outdated index", "err", err)
	}
	return errors.Join(err, index.Remove(p.o.FS, oldDir))
}

// resolveReplica reads the record at res.Offset from the bucket, by the newest
// manifest that has it.
func (p *Partition) resolveReplica(ctx context.Context, s *Settings, v *view, key []byte, q Query, res *Result) error {
	if !s.RemoteRead {
		return ErrRemoteReadDisabled
	}
	err := errMoved
	for _, m := range v.remote {
		if _, ok := m.Find(res.Offset); !ok {
			continue
		}
		err = p.resolveRemote(ctx, m, key, q, res)
		switch {
		case errors.Is(err, errMoved), errors.Is(err, errReplaced):
			continue
		case errors.Is(err, objstore.ErrNotFound) && p.outdated(ctx, m):
			return fmt.Errorf("%w: this replica may be further behind than the bucket keeps what it replaced", ErrNotReady)
		case isCorrupt(err):
			p.corrupted("remote", err)
		}
		return err
	}
	switch {
	case p.serving.Load() != v:
		return errReplaced
	case errors.Is(err, errMoved) && res.Offset < v.remote[0].StartOffset:
		return ErrNotRetained
	}
	return err
}

// outdated asks the bucket whether there is, or may be, a newer manifest than m, and
// has it applied if so.
func (p *Partition) outdated(ctx context.Context, m *manifest.Manifest) bool {
	if _, err := p.tier.Follow(ctx); err != nil {
		return true // then nobody can say
	}
	if p.tier.Snapshot() == m {
		return false
	}
	p.wake()
	return true
}
