package partition

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"keyhole/index"
	"keyhole/locallog"
	"keyhole/manifest"
	"keyhole/tiered"
)

// claimPatience bounds how long recovery waits for the bucket to say who owns
// the partition. A store that is away must not keep hot keys from being served.
const claimPatience = 2 * time.Second

// errTakeOver says that the bucket is ahead of this disk and the disk holds
// nothing that the bucket lacks, so the local log is to be begun anew.
var errTakeOver = errors.New("local log is behind the bucket")

// recoverUntilOpen repeats recover until it succeeds; false means that there is
// nothing more to do, because of Close or of damage.
func (p *Partition) recoverUntilOpen() bool {
	for backoff := nextBackoff(0); ; backoff = nextBackoff(backoff) {
		err := p.recover(p.ctx)
		switch {
		case err == nil:
			return true
		case p.ctx.Err() != nil:
			return false
		case errors.Is(err, errTakeOver) && p.log.Load() == nil:
			continue // at once, with a log that begins where the bucket ends
		case isCorrupt(err):
			p.damage("record", err)
			return false
		case errors.Is(err, ErrNotHosted):
			p.setReason("")
			return false
		}
		p.setReason(err.Error())
		p.o.Logger.Warn("partition not ready; will try again", "err", err, "in", backoff)
		if !p.pause(jitter(backoff)) {
			return false
		}
	}
}

// recover opens both tiers and the index, each only if it is not open yet.
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
	// Only the replay is bounded over partitions: it reads and sorts much,
	// while the claims of a thousand partitions wait for the same store.
	if p.o.Start != nil {
		if err := p.o.Start.Acquire(ctx, 1); err != nil {
			return err
		}
		defer p.o.Start.Release(1)
	}
	return p.tendIndex(ctx, s)
}

func (p *Partition) openTier() error {
	t, err := tiered.Open(tiered.Options{
		FS:          p.o.FS,
		Dir:         p.o.FS.PathJoin(p.o.Dir, "remote"),
		Bucket:      p.o.Bucket,
		Topic:       p.o.Topic,
		TopicID:     p.o.TopicID,
		Partition:   p.o.Partition,
		Writer:      p.o.Writer,
		Conditional: p.o.Conditional,
		ChunkBytes:  func() int64 { return p.settings.Load().ChunkBytes },
		Shared:      p.o.Tiers,
		Logger:      p.o.Logger,
	})
	if err != nil {
		return fmt.Errorf("open remote tier: %w", err)
	}
	p.tier = t
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
		p.claimed.Store(true)
		start = p.tier.Snapshot().Next()
	}
	// The index first: what it has durably applied was durable in the log, so a
	// bad tail below that is damage and not a torn write.
	if s.IndexMaintained {
		if err := p.openIndex(); err != nil {
			return err
		}
	}
	var epoch int32
	if p.tier != nil {
		epoch = int32(p.tier.Snapshot().Epoch)
	}
	proven := p.feed.position()
	log, err := locallog.Open(ctx, locallog.Options{
		FS:              p.o.FS,
		Dir:             dir,
		Logger:          p.o.Logger,
		Epoch:           epoch,
		StartKafka:      start,
		SegmentBytes:    func() int64 { return p.settings.Load().SegmentBytes },
		FlushInterval:   func() time.Duration { return p.settings.Load().FlushInterval },
		Apply:           p.applyGroup,
		ProvenNextLog:   proven.NextLog,
		ProvenNextKafka: proven.NextKafka,
		MaxBatchBytes:   maxUncompressed,
	})
	if err != nil {
		return fmt.Errorf("open local log: %w", err)
	}
	p.log.Store(log)
	return nil
}

func (p *Partition) logDir() string   { return p.o.FS.PathJoin(p.o.Dir, "log") }
func (p *Partition) indexDir() string { return p.o.FS.PathJoin(p.o.Dir, "kv_index") }

// makeDir makes the partition's directory durable. What is above it is the
// catalog's; what is below syncs its own names.
func (p *Partition) makeDir() error {
	if _, err := p.o.FS.Stat(p.o.Dir); err == nil {
		return nil
	}
	if err := p.o.FS.MkdirAll(p.o.Dir, 0o755); err != nil {
		return err
	}
	return manifest.SyncDir(p.o.FS, p.o.FS.PathDir(p.o.Dir))
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

// claimBriefly asks the bucket who owns the partition before anything is served,
// so that a disk that another writer has overtaken does not answer with old
// values. If the store is away the partition serves what it has and asks again
// in the background.
func (p *Partition) claimBriefly(ctx context.Context) error {
	attempt, cancel := context.WithTimeout(ctx, claimPatience)
	defer cancel()
	err := p.claim(attempt)
	switch {
	case errors.Is(err, errTakeOver):
		return errors.Join(err, p.beginAnew(err))
	case err != nil && unavailable(err):
		p.o.Logger.Warn("object store is away; serving the local log", "err", err)
		return nil
	}
	return err
}

// checkAgainstBucket compares the log with the manifest that was just claimed.
func (p *Partition) checkAgainstBucket() error {
	log := p.log.Load()
	if log == nil {
		return nil
	}
	if st := log.State(); st.HighWatermark < p.tier.Snapshot().Next() {
		return errTakeOver
	}
	return nil
}

// beginAnew throws the local log and index away; the next recover begins a log
// where the bucket ends. It is only called when the bucket has everything that
// was acknowledged here.
//
// The index goes first: its position counts in log offsets of the old log. The
// log goes by one rename, because what is left of a log that is removed file by
// file looks like one that was never uploaded.
func (p *Partition) beginAnew(why error) error {
	p.o.Logger.Warn("bucket is ahead of this disk; local log begins anew where the bucket ends", "err", why)
	p.serving.Store(nil)
	log := p.log.Swap(nil)
	p.claimed.Store(false)
	p.o.New = false
	if err := errors.Join(log.Close(), p.feed.close()); err != nil {
		return fmt.Errorf("close outdated local log: %w", err)
	}
	if err := index.Remove(p.o.FS, p.indexDir()); err != nil {
		return fmt.Errorf("remove outdated index: %w", err)
	}
	if err := p.o.FS.Rename(p.logDir(), p.outdatedDir()); err != nil {
		return fmt.Errorf("set outdated local log aside: %w", err)
	}
	if err := manifest.SyncDir(p.o.FS, p.o.Dir); err != nil {
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
