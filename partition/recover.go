package partition

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"keyhole/fsync"
	"keyhole/index"
	"keyhole/locallog"
	"keyhole/tiered"
)

// claimPatience bounds how long recovery waits for the bucket to say who owns
// the partition. A store that is away must not keep hot keys from being served.
const claimPatience = 2 * time.Second

// errTakeOver says that the bucket is ahead of this disk and the disk holds
// nothing that the bucket lacks, so the local log is to be begun anew.
var errTakeOver = errors.New("local log is behind the bucket")

// recoverUntilOpen repeats reopen until it succeeds; false means that there is
// nothing more to do, because of Close, of damage, or of another writer.
func (p *Partition) recoverUntilOpen() bool {
	for backoff := nextBackoff(0); ; backoff = nextBackoff(backoff) {
		err := p.enter(p.ctx)
		if err == nil {
			err = p.reopen(p.ctx)
			p.leave()
		}
		switch {
		case err == nil:
			return true
		case p.ctx.Err() != nil:
			return false
		case isDamaged(err):
			p.damage("record", err)
			return false
		case errors.Is(err, ErrNotHosted):
			p.setReason("")
			return false
		}
		p.setReason(err.Error())
		p.o.Logger.Warn("partition not ready; will try again", "err", err, "in", backoff)
		if !p.rest(jitter(backoff), nil) {
			return false
		}
	}
}

// reopen is recover, with a second go after the log had to be begun anew. The
// caller holds chores.
func (p *Partition) reopen(ctx context.Context) error {
	err := p.recover(ctx)
	if !errors.Is(err, errTakeOver) {
		return err
	}
	if err := p.beginAnew(err); err != nil {
		return err
	}
	return p.recover(ctx)
}

// recover opens both tiers and the index, each only if it is not open yet. The
// caller holds chores.
//
//	local manifest copy ─► index position ─► local log ─► claim ─► catch up ─► serve
func (p *Partition) recover(ctx context.Context) error {
	s := p.settings.Load()
	if err := p.makeDir(); err != nil {
		return fmt.Errorf("make partition directory: %w", err)
	}
	if p.o.remote() && p.tier == nil {
		if err := p.openTier(); err != nil {
			return err
		}
	}
	if p.log.Load() == nil {
		if err := p.openLog(ctx, s); err != nil {
			return err
		}
	}
	if p.tier != nil && !p.claimed.Load() {
		if err := p.claimBriefly(ctx); err != nil {
			return err
		}
	}
	p.writable.Store(true)
	return p.tendIndex(ctx, s)
}

func (p *Partition) openTier() error {
	t, err := tiered.Open(tiered.Options{
		FS:          p.o.FS,
		Dir:         p.tierDir(),
		Bucket:      p.o.Bucket,
		Topic:       p.o.Topic,
		TopicID:     p.o.TopicID,
		Partition:   p.o.Partition,
		Writer:      p.o.Writer,
		Conditional: p.o.Conditional,
		ChunkBytes:  func() int64 { return p.settings.Load().ChunkBytes },
		Recode: func() tiered.Recode {
			s := p.settings.Load()
			return tiered.Recode{Merge: s.RemoteMerge, Codec: s.RemoteCodec}
		},
		Now:    p.now,
		Shared: p.o.Tiers,
		Logger: p.o.Logger,
	})
	if err != nil {
		return fmt.Errorf("open remote tier: %w", err)
	}
	p.tier = t
	p.listed = t.Snapshot().Next()
	return nil
}

// openLog opens the local log, and begins one where there is none: at offset 0
// for a new topic, else where the bucket ends.
func (p *Partition) openLog(ctx context.Context, s *Settings) error {
	if err := p.removeOutdated(); err != nil {
		return err
	}
	dir := p.logDir()
	have, err := p.hasLog(dir)
	if err != nil {
		return err
	}
	var start int64
	if !have && !p.o.New && p.tier != nil {
		if _, err := p.tier.Claim(ctx, true); err != nil {
			return p.storeFailed(fmt.Errorf("no local log, and the bucket does not say where to begin: %w", err))
		}
		p.setStoreTrouble(nil)
		p.asked.Store(true)
		p.claimed.Store(true)
		start = p.tier.Snapshot().Next()
	}
	// The index first: below the log offset that it calls synced, a bad tail is
	// damage and not a torn write.
	if s.IndexMaintained {
		if err := p.openIndex(); err != nil {
			return err
		}
	}
	var epoch int32
	if p.tier != nil {
		epoch = int32(p.tier.Snapshot().Epoch)
	}
	at := p.feed.position()
	o := locallog.Options{
		FS:            p.o.FS,
		Dir:           dir,
		Logger:        p.o.Logger,
		Epoch:         epoch,
		StartKafka:    start,
		SegmentBytes:  func() int64 { return p.settings.Load().SegmentBytes },
		FlushInterval: func() time.Duration { return p.settings.Load().FlushInterval },
		Apply:         p.applyGroup,
		MaxBatchBytes: maxUncompressed,
	}
	o.ProvenNextLog, o.ProvenNextKafka = at.Proven()
	log, err := locallog.Open(ctx, o)
	if err != nil {
		return fmt.Errorf("open local log: %w", err)
	}
	// Before anybody can append: new records would hide that the log lost its
	// unsynced end in a crash and the index did not. The entries may point at
	// records that never were, so none is kept.
	if st := log.State(); at.NextLog > st.NextLog || at.NextKafka > st.HighWatermark {
		why := fmt.Sprintf("index is valid through offset %d, log ends at %d", at.NextKafka-1, st.HighWatermark-1)
		if err := p.rebuild(why); err != nil {
			return errors.Join(err, log.Close())
		}
	}
	p.log.Store(log)
	return nil
}

func (p *Partition) logDir() string   { return p.o.FS.PathJoin(p.o.Dir, "log") }
func (p *Partition) tierDir() string  { return p.o.FS.PathJoin(p.o.Dir, "remote") }
func (p *Partition) indexDir() string { return p.o.FS.PathJoin(p.o.Dir, p.indexName) }

// makeDir makes the partition's directory durable. What is above it is the
// catalog's; what is below syncs its own names.
func (p *Partition) makeDir() error {
	if _, err := p.o.FS.Stat(p.o.Dir); err == nil {
		return nil
	}
	if err := p.o.FS.MkdirAll(p.o.Dir, 0o755); err != nil {
		return err
	}
	return fsync.Dir(p.o.FS, p.o.FS.PathDir(p.o.Dir))
}

func (p *Partition) hasLog(dir string) (bool, error) {
	names, err := p.o.FS.List(dir)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list log directory: %w", err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".log") {
			return true, nil
		}
	}
	return false, nil
}

// claimBriefly asks the bucket who owns the partition before anything is served
// or written, so that a disk that another writer has overtaken does not answer
// with old values. If the store is away, or what it holds makes no sense, the
// partition serves what it has and asks again in the background.
func (p *Partition) claimBriefly(ctx context.Context) error {
	attempt, cancel := context.WithTimeout(ctx, claimPatience)
	defer cancel()
	err := p.claim(attempt)
	if err != nil && (unavailable(err) || isCorrupt(err)) {
		p.o.Logger.Warn("object store is of no use now; serving the local log", "err", err)
		return nil
	}
	return err
}

// claim makes sure that this run holds an epoch, so that no older writer can
// change the manifest any more and the snapshot in memory is the current one.
// errTakeOver says that the local log is to be begun anew.
func (p *Partition) claim(ctx context.Context) error {
	if p.claimed.Load() {
		return nil
	}
	_, err := p.tier.Claim(ctx, false)
	if errors.Is(err, tiered.ErrSuperseded) {
		return p.overtaken(err) // another writer had it since this disk last saw the bucket
	}
	if err != nil {
		return p.storeFailed(err)
	}
	p.asked.Store(true)
	m, st := p.tier.Snapshot(), p.log.Load().State()
	switch {
	case m.Next() > st.HighWatermark:
		// The same writer, on a disk that was set back to an earlier state.
		return p.overtaken(fmt.Errorf("bucket has offsets up to %d, this disk up to %d", m.Next()-1, st.HighWatermark-1))
	case m.Next() < st.RemoteNext:
		return p.storeFailed(p.notRetained(m, st))
	}
	if err := p.log.Load().RaiseEpoch(ctx, int32(m.Epoch)); err != nil && !errors.Is(err, locallog.ErrReadOnly) {
		return err
	}
	p.setStoreTrouble(nil)
	p.claimed.Store(true)
	return nil
}

// overtaken decides what becomes of a disk that the bucket has gone past: with
// records that are in no bucket it is fenced, and keeps them; without, its log
// is begun anew.
func (p *Partition) overtaken(why error) error {
	if from, to := p.tail(p.log.Load().State()); to > from {
		p.fence(p.unuploaded(why))
		return ErrNotHosted
	}
	return fmt.Errorf("%w: %w", errTakeOver, why)
}

// tail is the range of records that were acknowledged here and are in no bucket.
// The copy of the manifest that this disk began with counts too, because a crash
// may have come between the manifest and the note of it.
func (p *Partition) tail(st locallog.State) (from, to int64) {
	return max(st.RemoteNext, p.listed), st.HighWatermark
}

// beginAnew throws the local log and index away, so that the next recover begins
// a log where the bucket ends. The caller holds chores.
//
// An append may have been answered since the tail was looked at, so it is looked
// at again once the log takes no more. The index goes first: its position counts
// in log offsets of the old log. The log goes by one rename, because what is left
// of a log that is removed file by file looks like one that was never uploaded.
func (p *Partition) beginAnew(why error) error {
	p.o.Logger.Warn("bucket is ahead of this disk; local log begins anew where the bucket ends", "err", why)
	p.writable.Store(false)
	p.serving.Store(nil)
	p.setReason("local log begins anew")
	log := p.log.Load()
	if err := errors.Join(log.Close(), p.closeIndex()); err != nil {
		return fmt.Errorf("close outdated local log: %w", err)
	}
	if err := p.overtaken(why); !errors.Is(err, errTakeOver) {
		return err
	}
	p.log.Store(nil)
	p.claimed.Store(false)
	p.o.New = false
	if err := index.Remove(p.o.FS, p.indexDir()); err != nil {
		return fmt.Errorf("remove outdated index: %w", err)
	}
	if err := p.o.FS.Rename(p.logDir(), p.outdatedDir()); err != nil {
		return fmt.Errorf("set outdated local log aside: %w", err)
	}
	if err := fsync.Dir(p.o.FS, p.o.Dir); err != nil {
		return fmt.Errorf("set outdated local log aside: %w", err)
	}
	return p.removeOutdated()
}

func (p *Partition) outdatedDir() string { return p.o.FS.PathJoin(p.o.Dir, "log.outdated") }

// removeOutdated removes what beginAnew set aside, also after a crash in between.
func (p *Partition) removeOutdated() error {
	if err := p.o.FS.RemoveAll(p.outdatedDir()); err != nil {
		return fmt.Errorf("remove outdated local log: %w", err)
	}
	return nil
}
