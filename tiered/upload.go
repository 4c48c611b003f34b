package tiered

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/record"
)

// ErrSource says that a segment on the local disk is damaged and cannot be uploaded.
// It is a record.ErrCorrupt. Nothing is wrong with the bucket.
var ErrSource = errors.New("local segment cannot be uploaded")

// pending is a segment whose upload has begun and which no manifest names yet.
// It is kept over failures, so that a repetition writes the same bytes under the
// same names instead of leaving one more pair of objects behind. If the source was
// compacted in between, it takes new names.
type pending struct {
	shape
	last      int64 // of the range; another range is another segment
	uploadID  string
	createdAt int64 // Unix milliseconds
	logStored bool
	table     [sha256.Size]byte // of the table of the .log object, which has its checksums; zero: nothing was sent yet
	segment   *manifest.Segment // set once both objects are stored
}

// Upload brings sealed segments to the bucket, in the order given, and returns
// the manifest that names them. What the bucket has already is left out, so a
// repetition after a failure or a restart adds nothing twice. The order is: all
// .log and .index objects, then one commit of the manifest; when Upload has
// returned a segment in its manifest, the local copy may be evicted. The same goes
// for one in which nothing is left: it gets no objects, the manifest's NextOffset
// goes past it.
//
// On an error the manifest is returned as well: segments before the one that
// failed are in it, unless it would end below whole, an offset below which the
// sources can only be shown together. ErrFenced, ErrNotClaimed and ErrSource as
// named; after any other error Upload may be repeated, and does not store again what
// it has stored.
func (t *Tier) Upload(ctx context.Context, segs []Source, whole int64) (m *manifest.Manifest, err error) {
	ctx, done, err := t.begin(ctx)
	if err != nil {
		return t.Snapshot(), err
	}
	defer func() { done(&err) }()
	if err := t.lock(ctx); err != nil {
		return t.Snapshot(), err
	}
	defer t.unlock()
	if err := t.writableLocked(); err != nil {
		return t.Snapshot(), err
	}
	var stored []manifest.Segment
	var failure error
	next := t.Snapshot().Next()
	for _, src := range segs {
		if src.NextOffset() <= next {
			continue
		}
		seg, err := t.store(ctx, src, max(src.BaseOffset(), next))
		if err != nil {
			failure = fmt.Errorf("upload segment at offset %d: %w", src.BaseOffset(), err)
			break
		}
		if seg != nil {
			stored = append(stored, *seg)
		}
		next = src.NextOffset()
	}
	if failure != nil && next < whole {
		return t.Snapshot(), failure
	}
	err = t.commit(ctx, func(m *manifest.Manifest) (*manifest.Manifest, error) {
		out, err := m.With(stored...)
		if err != nil {
			return nil, err
		}
		return out.Advance(next), nil
	})
	t.forgetPending()
	if err != nil && failure != nil {
		return t.Snapshot(), fmt.Errorf("%w; before that: %v", err, failure) // the bucket's trouble is what counts
	}
	return t.Snapshot(), errors.Join(failure, err)
}

// forgetPending drops uploads of what the bucket has, or has passed, by now. Who
// calls it has the turn.
func (t *Tier) forgetPending() {
	next := t.Snapshot().Next()
	for base, p := range t.pending {
		if p.last < next {
			delete(t.pending, base)
		}
	}
}

// store puts the two objects of one segment into the bucket and its table onto
// the local disk. It returns nil for a source in which nothing is left.
func (t *Tier) store(ctx context.Context, src Source, base int64) (*manifest.Segment, error) {
	p := t.pending[base]
	if p == nil || p.last != src.NextOffset()-1 {
		p = &pending{
			shape: t.shape(), last: src.NextOffset() - 1, uploadID: uuid.NewString(), createdAt: max(0, t.o.Now().UnixMilli()),
		}
		t.pending[base] = p
	}
	if p.segment != nil {
		return p.segment, nil
	}
	if err := t.o.Shared.startUpload(ctx); err != nil {
		return nil, err
	}
	defer t.o.Shared.endUpload()
	plan, err := newPlan(src, base, p.last, p.shape)
	if errors.Is(err, record.ErrCorrupt) {
		return nil, fmt.Errorf("%w: %w", ErrSource, err)
	}
	if err != nil {
		return nil, err
	}
	if !plan.alive {
		delete(t.pending, base)
		return nil, nil
	}
	err = t.storePlan(ctx, p, plan)
	return p.segment, err
}

// shape is that of an upload which begins now.
func (t *Tier) shape() shape {
	s := shape{chunkBytes: t.o.ChunkBytes()}
	if t.o.Recode != nil {
		s.recode = t.o.Recode()
	}
	return s
}

// storePlan puts what is planned into the bucket, the parts of it that are not
// there yet, and then sets the segment of p. It uses the plan up.
func (t *Tier) storePlan(ctx context.Context, p *pending, plan *plan) error {
	zip, err := t.o.Shared.runEncoder()
	if err != nil {
		return err
	}
	index, tableBytes := plan.index(zip)
	t.o.Shared.encoders.Put(zip)
	plan.keys = nil // they are in index now
	table := sha256.Sum256(index[:tableBytes])
	if p.table != ([sha256.Size]byte{}) && p.table != table {
		// The source was compacted since. Under the same name the new table would
		// stand beside the old bytes: those that are there, or those of a Put that
		// seemed to fail and takes effect later.
		p.uploadID, p.logStored = uuid.NewString(), false
	}
	p.table = table
	seg := &manifest.Segment{
		BaseOffset:   plan.info.base,
		LastOffset:   plan.info.last,
		UploadID:     p.uploadID,
		Size:         plan.info.size,
		IndexSize:    int64(len(index)),
		TableBytes:   int64(tableBytes),
		Records:      plan.info.records,
		Tombstones:   plan.tombstones,
		MaxTimestamp: plan.maxTS,
		CreatedAt:    p.createdAt,
		Epoch:        plan.epoch,
	}
	if !p.logStored {
		if _, err := t.o.Bucket.Put(ctx, LogKey(t.prefix, seg), newMoving(plan, t.o.Shared), seg.Size, objstore.Condition{}); err != nil {
			return err
		}
		p.logStored = true
		t.o.Shared.noteStored()
	}
	if _, err := t.o.Bucket.Put(ctx, IndexKey(t.prefix, seg), bytes.NewReader(index), seg.IndexSize, objstore.Condition{}); err != nil {
		return err
	}
	// From here on the first lookup needs no table from the bucket, also if
	// the process ends before the manifest is written.
	if err := t.saveTable(seg, index[:tableBytes]); err != nil {
		return err
	}
	p.segment = seg
	return nil
}
