package tiered

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/uuid"

	"keyhole/manifest"
	"keyhole/record"
	"keyhole/rewrite"
)

// ErrChanged says that the segments to be rewritten are not, or no longer,
// neighbours in the manifest.
var ErrChanged = manifest.ErrChanged

// rewriteFile is the name, in a Tier's directory, of what is to become a .log
// object. It is of no use to another process, and goes at Open.
const rewriteFile = "compact.tmp"

// RewriteOptions say what Rewrite leaves out and what must happen on the way.
type RewriteOptions struct {
	// Keep says whether a record stays; key is valid during the call. It is not
	// asked about records without a key and those of transactions, which stay. An
	// error ends Rewrite, which returns it.
	Keep func(key []byte, offset int64, tombstone bool) (bool, error)
	// Empty says that nothing is to stay, neither what Keep would keep nor what it is
	// not asked about: nothing is read.
	Empty bool
	// Horizon is above every tombstone that goes though it is the latest record of
	// its key; the manifest's DeleteHorizon is raised to it.
	Horizon int64
	// Settle is called when all is ready and before the manifest says so: it makes
	// durable what took the place of the records that go. nil: nothing to do. Its
	// error ends Rewrite, which returns it.
	Settle func(ctx context.Context) error
	Now    func() time.Time // for the time of removal; nil: that of the Tier
	// Pace is called behind each piece that was read from the bucket, and behind the
	// objects that were stored, with the time that took, and may wait, for instance,
	// to leave bandwidth to others. nil: no waiting. Its error ends Rewrite, which
	// returns it.
	Pace func(ctx context.Context, took time.Duration) error
}

// rewriting is a Rewrite that no manifest has yet. It is kept over failures, so
// that a repetition that comes to the same bytes uses the same names.
type rewriting struct {
	pending
	old    []manifest.Segment
	digest [sha256.Size]byte // of the .log object
	ready  bool              // all is in the bucket that the commit would name
	failed time.Time         // when the last attempt ended; zero while one is under way; guarded by the Tier's mu
}

// rewritePatience is for how long at least the objects of a Rewrite that has failed
// are kept for a repetition. A manifest that names them and whose Put seemed to fail
// has arrived by then, or never does.
const rewritePatience = 2 * time.Hour

// by is what takes the place of the old segments.
func (r *rewriting) by() []manifest.Segment {
	if r.segment == nil {
		return nil
	}
	return []manifest.Segment{*r.segment}
}

// Rewrite replaces neighbouring segments, given as the manifest has them, by one
// with the records that stay, or by none, and returns the manifest that says so.
// Offsets do not move. The old objects stay in the bucket until Collect takes
// them, so whoever reads by an older manifest notices nothing.
//
//	old .log objects ─► Keep ─► temporary file ─► .log ─► .index ─► local table ─► Settle ─► manifest
//
// Each old .log object is read once, front to back, and checked in full on the
// way; chunks and checksums are those of an upload. Memory is bounded by the keys
// that stay and one batch. One Rewrite runs at a time in all tiers that share a
// Shared, the others wait; uploads and reads go on.
//
// On an error the bucket's manifest is as it was, or, if the error is that of a
// store whose reply was lost, may be the new one. Rewrite may be repeated, and
// finds its work done then. ErrChanged if the manifest does not have the segments
// next to each other; ErrFenced and ErrNotClaimed as named; record.ErrCorrupt for
// an input that is damaged or missing.
func (t *Tier) Rewrite(ctx context.Context, old []manifest.Segment, o RewriteOptions) (m *manifest.Manifest, err error) {
	ctx, done, err := t.begin(ctx)
	if err != nil {
		return t.Snapshot(), err
	}
	defer func() { done(&err) }()
	if err := t.o.Shared.startRewrite(ctx); err != nil {
		return t.Snapshot(), err
	}
	defer t.o.Shared.endRewrite()
	defer t.restRewriting()
	if err := t.writable(ctx); err != nil {
		return t.Snapshot(), err
	}
	r := t.rewritingOf(old)
	if !neighbours(t.Snapshot(), old) {
		if !r.ready {
			t.setRewriting(nil)
			return t.Snapshot(), fmt.Errorf("rewrite segments: %w", ErrChanged)
		}
		return t.replace(ctx, r, o) // an earlier attempt may have come through
	}
	if o.Empty {
		r.segment, r.ready = nil, true
	} else if r, err = t.rewrite(ctx, r, o); err != nil {
		if errors.Is(err, record.ErrCorrupt) && !neighbours(t.Snapshot(), old) {
			err = fmt.Errorf("rewrite segments: %w", ErrChanged) // and gone, meanwhile
		}
		return t.Snapshot(), err
	}
	if o.Settle != nil {
		if err := o.Settle(ctx); err != nil {
			return t.Snapshot(), err
		}
	}
	return t.replace(ctx, r, o)
}

// writable reports why the bucket must not be changed by this node, if so.
func (t *Tier) writable(ctx context.Context) error {
	if err := t.lock(ctx); err != nil {
		return err
	}
	defer t.unlock()
	return t.writableLocked()
}

// writableLocked is writable for who has the turn.
func (t *Tier) writableLocked() error {
	switch {
	case t.Fenced():
		return ErrFenced
	case !t.claimed:
		return ErrNotClaimed
	}
	return nil
}

// neighbours reports whether m has the segments one behind the other.
func neighbours(m *manifest.Manifest, segs []manifest.Segment) bool {
	if len(segs) == 0 {
		return false
	}
	i := slices.Index(m.Segments, segs[0])
	return i >= 0 && len(m.Segments)-i >= len(segs) && slices.Equal(m.Segments[i:i+len(segs)], segs)
}

// rewritingOf returns the Rewrite of the same segments that has not come through,
// or a new one.
func (t *Tier) rewritingOf(old []manifest.Segment) *rewriting {
	t.mu.Lock()
	r := t.mu.rewriting
	if r != nil {
		r.failed = time.Time{}
	}
	t.mu.Unlock()
	if r != nil && slices.Equal(r.old, old) {
		return r
	}
	return t.newRewriting(old, t.shape())
}

// restRewriting takes down that no attempt is under way.
func (t *Tier) restRewriting() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.mu.rewriting; r != nil {
		r.failed = t.o.Now()
	}
}

// newRewriting makes a Rewrite under a new name. Of the one before, whatever is in
// the bucket is an orphan now.
func (t *Tier) newRewriting(old []manifest.Segment, s shape) *rewriting {
	r := &rewriting{old: slices.Clone(old), pending: pending{shape: s, uploadID: uuid.NewString()}}
	for i := range old {
		r.last = old[i].LastOffset
		r.createdAt = max(r.createdAt, old[i].CreatedAt)
	}
	// The clock may have been wrong then.
	r.createdAt = min(r.createdAt, max(0, t.o.Now().UnixMilli()))
	t.setRewriting(r)
	return r
}

func (t *Tier) setRewriting(r *rewriting) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.rewriting = r
}

// replace commits what is ready.
func (t *Tier) replace(ctx context.Context, r *rewriting, o RewriteOptions) (*manifest.Manifest, error) {
	now := t.o.Now
	if o.Now != nil {
		now = o.Now
	}
	at := now()
	err := t.commit(ctx, func(m *manifest.Manifest) (*manifest.Manifest, error) {
		return m.Replace(r.old, r.by(), o.Horizon, at)
	})
	if err == nil || errors.Is(err, ErrChanged) {
		t.setRewriting(nil)
	}
	if err != nil {
		err = fmt.Errorf("replace %d segments from offset %d on: %w", len(r.old), r.old[0].BaseOffset, err)
	}
	return t.Snapshot(), err
}

// commit is that of the manifest, with the time of it taken down.
func (t *Tier) commit(ctx context.Context, edit func(*manifest.Manifest) (*manifest.Manifest, error)) error {
	before := t.Snapshot()
	err := t.manifest.Commit(ctx, edit)
	if t.Snapshot() != before {
		t.lastCommit.Store(time.Now().UnixNano())
	}
	return err
}

// rewrite makes what takes the place of the old segments and stores it. The
// result is r, or another one if r's name stands for other bytes already.
func (t *Tier) rewrite(ctx context.Context, r *rewriting, o RewriteOptions) (_ *rewriting, err error) {
	path := t.o.FS.PathJoin(t.o.Dir, rewriteFile)
	defer func() {
		if err := t.o.FS.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.o.Logger.Warn("temporary file cannot be removed", "path", path, "err", err)
		}
	}()
	plan, digest, err := t.rewriteTo(ctx, path, r, o)
	if err != nil {
		return r, err
	}
	if r.digest != ([sha256.Size]byte{}) && r.digest != digest {
		r = t.newRewriting(r.old, r.shape)
	}
	r.digest = digest
	if plan.alive && r.segment == nil {
		f, err := t.o.FS.Open(path)
		if err != nil {
			return r, fmt.Errorf("open %s: %w", path, err)
		}
		plan.src = f
		began := time.Now()
		if err := errors.Join(t.storePlan(ctx, &r.pending, plan), f.Close()); err != nil {
			return r, err
		}
		if o.Pace != nil {
			if err := o.Pace(ctx, time.Since(began)); err != nil {
				return r, err
			}
		}
	}
	r.ready = true
	return r, nil
}

// rewriteTo writes the records that stay to a file and returns its plan, which
// has no src yet, and the hash of it.
func (t *Tier) rewriteTo(ctx context.Context, path string, r *rewriting, o RewriteOptions) (*plan, [sha256.Size]byte, error) {
	f, err := t.o.FS.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, [sha256.Size]byte{}, fmt.Errorf("create %s: %w", path, err)
	}
	w := newRewriter(f, path, r, o)
	err = t.readOld(ctx, r.old, w, o)
	if err == nil {
		err = w.file.Flush()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, [sha256.Size]byte{}, err
	}
	return w.plan, [sha256.Size]byte(w.hash.Sum(nil)), nil
}

// readOld gives the batches of the old segments to w.
func (t *Tier) readOld(ctx context.Context, old []manifest.Segment, w *rewriter, o RewriteOptions) error {
	m := t.Snapshot() // only its epochs count, and they do not change
	for i := range old {
		seg := &old[i]
		tab, err := t.scanTable(ctx, seg)
		if err != nil {
			return err
		}
		s := &stream{ctx: ctx, bucket: t.o.Bucket, key: LogKey(t.prefix, seg), end: seg.Size, pace: o.Pace}
		err = s.batches(seg, tab, func(pos int64, batch []byte, h record.BatchHeader) error {
			if !h.IsControl() && !h.IsTransactional() {
				// Batches of one epoch are merged, others are not.
				record.SetLeaderEpoch(batch, int32(m.EpochAt(h.BaseOffset)))
			}
			return located(w.batches.Add(batch, h.BaseOffset), s.key, pos)
		})
		if err != nil {
			return err
		}
	}
	return w.batches.Flush(old[len(old)-1].LastOffset + 1)
}

// rewriter writes the batches that a Rewrite makes to a file and plans them.
type rewriter struct {
	planner
	batches *rewrite.Writer
	file    *bufio.Writer
	hash    hash.Hash
	r       record.Reader
}

func newRewriter(f io.Writer, name string, r *rewriting, o RewriteOptions) *rewriter {
	last := &r.old[len(r.old)-1]
	w := &rewriter{file: bufio.NewWriterSize(f, 1<<20), hash: sha256.New()}
	w.plan = &plan{
		shape: shape{chunkBytes: r.chunkBytes}, name: name, epoch: last.Epoch,
		info: tableInfo{base: r.old[0].BaseOffset, last: last.LastOffset}, maxTS: noTimestamp, keys: make(keySet),
	}
	w.batches = rewrite.NewWriter(rewrite.Options{
		Codec: r.recode.Codec, KeepCodec: !r.recode.Merge, Target: int(r.chunkBytes), Keep: o.Keep, Emit: w.emit,
	})
	return w
}

// emit plans one batch and writes it. What it holds is taken from the batch itself,
// so that the key run says what is there.
func (w *rewriter) emit(batch []byte, base int64) error {
	if err := w.r.Reset(batch, maxUncompressed); err != nil {
		return fmt.Errorf("batch at offset %d as rewritten: %w", base, err)
	}
	n, err := w.keys.note(&w.r, 0)
	if err != nil {
		return fmt.Errorf("batch at offset %d as rewritten: %w", base, err)
	}
	w.info.records += n.records
	w.tombstones += n.tombstones
	// A chunk is one full batch, or some that together are no larger when plain.
	if w.open && w.weight+n.plain > w.chunkBytes {
		w.open = false
	}
	if !w.open {
		w.weight = 0
	}
	pos, size := w.info.size, int64(len(batch))
	w.keep(extent{pos: pos, size: size}, batch, w.r.Header())
	w.weight += n.plain
	w.hash.Write(batch)
	if _, err := w.file.Write(batch); err != nil {
		return fmt.Errorf("write %s: %w", w.name, err)
	}
	return nil
}
