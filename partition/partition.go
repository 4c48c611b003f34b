// Package partition is one topic-partition over two tiers: the recent log on
// local disk, older segments in a bucket, and one index over both.
//
// It promises that an answered append is durable and visible to the next lookup
// on this node, that a lookup never gives another record's value or an older
// one, and that a local segment goes only when the bucket and the index can do
// without it.
//
//	Append ─► locallog ─► sync ─► high watermark ─► index ─► answer
//	             │ sealed
//	             ▼
//	          tiered.Upload ─► manifest ─► note in the log ─► trim
//
//	Lookup ─► index ─► offset ─► locallog, else tiered
//
// A lookup is told in lookup.go, appending and the feeding of the index in
// append.go and catchup.go, uploading and evicting in archive.go, and the way
// from a directory to a serving partition in recover.go. What is removed is decided
// in liveness.go, by compact_local.go and compact_remote.go, and by retention.go. A
// read replica is a partition without a local log: replica.go.
package partition

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"keyhole/index"
	"keyhole/locallog"
	"keyhole/manifest"
	"keyhole/record"
	"keyhole/tiered"
)

// view is what lookups need; it exists once the index has caught up with the log.
type view struct {
	log *locallog.Log // nil on a read replica
	ix  *index.Index
	// remote are the manifests in which the index's entries are found, the newest
	// first, where that is not simply the tier's own: see follow.
	remote []*manifest.Manifest
}

// Partition is one topic-partition. All methods may be called in parallel.
type Partition struct {
	o        Options
	settings atomic.Pointer[Settings]
	tier     *tiered.Tier // nil without a store

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	opened chan struct{} // closed when recovery is through, well or not
	done   chan struct{} // closed when run has left
	kick   chan struct{} // wakes run; holds one wish

	log     atomic.Pointer[locallog.Log] // nil until recovered
	serving atomic.Pointer[view]         // nil until the index has caught up
	applied pulse                        // beats when the applied position moves
	moved   atomic.Int64                 // when an upload last made progress, Unix nanoseconds
	waiting atomic.Int64                 // bytes appended since the chores were last woken
	fenced  atomic.Bool
	asked   atomic.Bool // this run has read the bucket's manifest
	claimed atomic.Bool // this run holds an epoch, so the manifest is current
	// writable: whose partition this is has been asked, so appends are taken.
	writable atomic.Bool
	listed   int64 // what the manifest's local copy listed at the start; set before log

	future   atomic.Bool // a record dated in the future was logged
	readOnly atomic.Bool // the log has failed, and that was counted
	starved  bool        // the index ran out of space and serves on as it is; for the holder of chores

	feed feed // the index's intake

	// chores admits one roll, upload or eviction at a time. A channel and not a
	// mutex, because the wait for it ends with the caller's context.
	chores chan struct{}

	compactions     compactions
	cleaned         cleaned      // for the holder of a compaction's turn
	together        atomic.Int64 // cleaned.Together, for the holder of chores
	tombstonesTried time.Time    // when they alone were last a reason to compact; likewise
	listedOrphans   time.Time    // for tidy
	indexName       string       // of the index's directory

	mu struct {
		sync.Mutex
		reason   string // why lookups are not served; empty: they are
		damaged  error  // what cannot be served because it is damaged
		indexErr error  // why the index was taken out of service; nil: it was not
		storeErr error  // the last failure of the bucket; nil once it worked again
		ownerErr error  // the same of CheckOwner alone
		takenBy  error  // why the partition was fenced; nil: it was not
		closed   bool
	}
}

// Open starts a partition and returns at once: recovery, the claim on the bucket
// and the catching up of the index run in a goroutine of its own, and lookups
// give ErrNotReady until they are through. Close ends it.
func Open(o Options) *Partition {
	ctx, cancel := context.WithCancel(context.Background())
	o.Logger = o.Logger.With("topic", o.Topic, "partition", o.Partition)
	p := &Partition{
		o:         o,
		ctx:       ctx,
		cancel:    cancel,
		opened:    make(chan struct{}),
		done:      make(chan struct{}),
		kick:      make(chan struct{}, 1),
		indexName: indexName,
		chores:    make(chan struct{}, 1),
	}
	p.compactions.turn = make(chan struct{}, 1)
	if p.o.Now == nil {
		p.o.Now = guardedClock()
	}
	p.listedOrphans = p.now().Add(-rand.N(orphanInterval)) // not all partitions at once
	p.settings.Store(&o.Settings)
	p.mu.reason = "starting"
	if o.Replica {
		go p.follow()
	} else {
		go p.run()
	}
	return p
}

// ID is the partition's number.
func (p *Partition) ID() int32 { return p.o.Partition }

// Configure swaps the settings; requests that began earlier end under the old ones.
func (p *Partition) Configure(s Settings) {
	p.settings.Store(&s)
	p.wake()
}

// State reports whether lookups are served, else why not, and what damage keeps
// parts from being served.
func (p *Partition) State() (ready bool, reason string, damaged error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.takenBy != nil {
		return true, "", nil // there is nothing to wait for
	}
	if p.mu.damaged != nil {
		return true, "", p.mu.damaged
	}
	reason = p.mu.reason
	if reason == "" && p.settings.Load().IndexMaintained && p.serving.Load() == nil {
		// The index was asked for a moment ago, and the background work has not
		// come round to it.
		reason = reasonCatchUp
	}
	return reason == "", reason, nil
}

const reasonCatchUp = "index is catching up"

// StoreTrouble is the last failure of the bucket, nil once it worked again.
func (p *Partition) StoreTrouble() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.storeErr != nil {
		return p.mu.storeErr
	}
	return p.mu.ownerErr
}

// TakenOver is why the partition was fenced: a newer writer has it, or this disk
// holds records that the bucket has moved past. nil: it was not.
func (p *Partition) TakenOver() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.takenBy
}

// Opened is closed when recovery is through: the partition serves, or State says
// what keeps it from serving for good.
func (p *Partition) Opened() <-chan struct{} { return p.opened }

func (p *Partition) setReason(reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.reason = reason
}

func (p *Partition) setStoreTrouble(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.storeErr = err
}

// notServing says why there is no view.
func (p *Partition) notServing() error {
	if p.ctx.Err() != nil {
		return ErrClosed
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.damaged != nil {
		return p.mu.damaged
	}
	return ErrNotReady
}

func (p *Partition) wake() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// Intervals of the background work.
const (
	choreInterval = 10 * time.Second
	choreGap      = time.Second // between two rounds, so that the manifest is written at most that often
	minBackoff    = 500 * time.Millisecond
	maxBackoff    = 60 * time.Second
)

// run recovers the partition, then does its chores until Close.
func (p *Partition) run() {
	defer close(p.done)
	p.loadCleaned()
	open := p.recoverUntilOpen()
	close(p.opened)
	if !open {
		return
	}
	var others sync.WaitGroup
	others.Go(p.compactWhenDue)
	others.Go(p.tidyWhenDue)
	defer others.Wait()
	backoff := time.Duration(0)
	for {
		if err := p.chore(p.ctx); err != nil && p.ctx.Err() == nil {
			backoff = nextBackoff(backoff)
			p.o.Logger.Warn("background work failed; will try again", "err", err, "in", backoff)
			if !p.rest(jitter(backoff), nil) {
				return
			}
			continue
		}
		backoff = 0
		if !p.rest(choreGap, nil) || !p.rest(jitter(choreInterval), p.kick) {
			return
		}
	}
}

// rest is the pause of run: it also ends with a kick, and when the index fails.
// One that fails because it is damaged is taken out of service at once, although
// nobody may be using it; one that cannot be written any more still answers.
func (p *Partition) rest(d time.Duration, kick <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	ix := p.feed.open()
	var failed <-chan struct{}
	if ix != nil {
		failed = ix.Failed()
	}
	for {
		select {
		case <-timer.C:
			return true
		case <-kick:
			return true
		case <-failed:
			if isCorrupt(ix.Err()) {
				p.indexFailed(p.serving.Load(), ix.Err())
				return true
			}
			failed = nil
		case <-p.ctx.Done():
			return false
		}
	}
}

// pause waits and reports whether the partition is still open.
func (p *Partition) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.ctx.Done():
		return false
	}
}

func nextBackoff(d time.Duration) time.Duration {
	return min(max(2*d, minBackoff), maxBackoff)
}

// jitter spreads d over 50 … 100 % so that partitions do not act in step.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d/2+1)
}

// enter waits for the turn to do a chore; the caller calls leave afterwards.
func (p *Partition) enter(ctx context.Context) error {
	select {
	case p.chores <- struct{}{}:
		return nil
	case <-p.ctx.Done():
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *Partition) leave() { <-p.chores }

// Close stops the background work, makes the log and the index durable and
// closes them. Calls in flight finish or fail; later ones give ErrClosed. It is
// idempotent.
func (p *Partition) Close(ctx context.Context) error {
	p.cancel()
	select {
	case <-p.done:
	case <-ctx.Done():
		return fmt.Errorf("close partition %s/%d: %w", p.o.Topic, p.o.Partition, ctx.Err())
	}
	if err := p.enterClosing(ctx); err != nil {
		return err
	}
	defer p.leave()
	p.serving.Store(nil)
	p.mu.Lock()
	if p.mu.takenBy != nil && !p.mu.closed {
		p.o.Metrics.Fenced.Dec()
	}
	p.mu.closed = true
	p.mu.Unlock()
	var errs []error
	if log := p.log.Load(); log != nil {
		errs = append(errs, log.Close())
	}
	errs = append(errs, p.closeIndex())
	if p.tier != nil {
		errs = append(errs, p.tier.Close())
	}
	return errors.Join(errs...)
}

// enterClosing is enter for a partition whose context has ended.
func (p *Partition) enterClosing(ctx context.Context) error {
	select {
	case p.chores <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Destroy removes the partition's local files. Call it after Close.
func (p *Partition) Destroy() error {
	return p.o.FS.RemoveAll(p.o.Dir)
}

// fence stops all writing for good: a newer writer has the partition.
func (p *Partition) fence(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.takenBy != nil {
		return
	}
	p.mu.takenBy = err
	p.fenced.Store(true)
	if !p.mu.closed {
		p.o.Metrics.Fenced.Inc()
	}
	p.o.Logger.Error("partition taken over by a newer writer; this node stops serving it", "err", err)
}

// damage records what keeps the partition from serving, until a view is
// published after all. The same finding is counted and logged once.
func (p *Partition) damage(kind string, err error) {
	p.mu.Lock()
	known := p.mu.damaged != nil && p.mu.damaged.Error() == err.Error()
	p.mu.damaged = err
	p.mu.Unlock()
	if known {
		return
	}
	p.o.Metrics.Corruptions.WithLabelValues("local", kind).Inc()
	p.o.Logger.Error("partition is damaged", "err", err)
}

// publish lets lookups in.
func (p *Partition) publish(v *view) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.reason, p.mu.damaged = "", nil
	p.serving.Store(v)
}

func isCorrupt(err error) bool { return errors.Is(err, record.ErrCorrupt) }

// isDamaged reports whether err is damage of the partition's own, which repeating
// does not mend. What keeps the bucket as a whole from being used is not, whatever
// the reason; neither is an index that fails while it catches up, which is built
// anew.
func isDamaged(err error) bool {
	return isCorrupt(err) && !unavailable(err) && !errors.Is(err, index.ErrFailed)
}
