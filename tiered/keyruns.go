package tiered

import (
	"context"
	"errors"
	"fmt"

	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/record"
)

// ErrMoved says that an object is gone from the bucket because the manifest, as
// it is by now, does not need it any more. The snapshot that names it is out of
// date; whoever takes a new one finds what took the segment's place.
var ErrMoved = errors.New("segment was replaced in the object store")

// KeyRunProgress says how far KeyRuns has come. Bytes are those of key runs.
type KeyRunProgress struct {
	Segments, Of   int
	Bytes, OfBytes int64
}

// KeyRuns calls fn for the keys of all remote segments that reach to fromOffset
// or beyond, in the order of the segments: each key once per segment with its
// latest record there, unless that record lies below fromOffset. Taken in this
// order, the last call for a key is the key's state. key is valid during the
// call. An error of fn ends it and is returned. progress, unless nil, is called
// before the first segment and behind each; neither function is called in
// parallel with itself or the other.
//
// Only the key runs are read, by large ranged GETs, several ahead of where fn is
// (see runsAhead). Where a run is damaged or missing, the segment's batches are
// read instead; fn may have been called for part of the run before. Damage there
// too is record.ErrCorrupt. ErrMoved if the segments have been replaced and are
// gone meanwhile: what fn was told is void then and KeyRuns must begin again.
// ErrUnknown before the manifest is known.
func (t *Tier) KeyRuns(ctx context.Context, fromOffset int64, progress func(KeyRunProgress), fn func(key []byte, offset int64, tombstone bool) error) (err error) {
	ctx, done, err := t.begin(ctx)
	if err != nil {
		return err
	}
	defer func() { done(&err) }()
	m := t.Snapshot()
	if !m.Known() {
		return ErrUnknown
	}
	segs := m.Segments[m.After(fromOffset):]
	at := KeyRunProgress{Of: len(segs)}
	for i := range segs {
		at.OfBytes += runBytes(&segs[i])
	}
	emit := func(key []byte, s keyState) error {
		if s.offset < fromOffset {
			return nil
		}
		return fn(key, s.offset, s.tombstone)
	}
	runs := t.readRunsAhead(ctx, segs)
	defer runs.close()
	for i := range segs {
		if progress != nil {
			progress(at)
		}
		run, err := runs.next(ctx)
		if err != nil {
			return err
		}
		err = t.segmentKeys(ctx, &segs[i], run.open, emit)
		runs.release(run)
		if err != nil {
			return err
		}
		at.Segments++
		at.Bytes += runBytes(&segs[i])
	}
	if progress != nil {
		progress(at)
	}
	return nil
}

// runBytes is the size of a segment's key run.
func runBytes(seg *manifest.Segment) int64 { return seg.IndexSize - seg.TableBytes }

// Keys calls fn for the keys of one segment, as KeyRuns does: by its key run, in
// the order of the keys, or, where that is damaged or missing, by its batches, in
// the order of the offsets and possibly more than once for a key. Errors are those
// of KeyRuns.
func (t *Tier) Keys(ctx context.Context, seg *manifest.Segment, fn func(key []byte, offset int64, tombstone bool) error) (err error) {
	ctx, done, err := t.begin(ctx)
	if err != nil {
		return err
	}
	defer func() { done(&err) }()
	open := func() (*stream, error) { return t.openRun(ctx, seg) }
	return t.segmentKeys(ctx, seg, open, func(key []byte, s keyState) error { return fn(key, s.offset, s.tombstone) })
}

// segmentKeys decodes the key run that open gives, or reads the batches instead.
func (t *Tier) segmentKeys(ctx context.Context, seg *manifest.Segment, open func() (*stream, error), emit func(key []byte, s keyState) error) error {
	var failed error // what emit returned, to be told from damage
	guarded := func(key []byte, s keyState) error {
		failed = emit(key, s)
		return failed
	}
	s, err := open()
	if err == nil {
		err = readRun(s.next, s.end-s.pos, seg.BaseOffset, seg.LastOffset, guarded)
	}
	if err == nil || failed != nil || !errors.Is(err, errRun) && !errors.Is(err, record.ErrCorrupt) {
		return err
	}
	if moved := t.moved(seg, err); errors.Is(moved, ErrMoved) {
		return moved
	}
	t.o.Shared.repairs.WithLabelValues(partRun).Inc()
	t.o.Logger.Warn("key run not usable, reading the batches of the segment", "object", IndexKey(t.prefix, seg), "err", err)
	err = t.scanKeys(ctx, seg, func(key []byte, s keyState) error { return guarded(key, s) })
	if failed != nil {
		return err
	}
	return t.moved(seg, err)
}

// moved turns the damage that a missing object is into ErrMoved if the manifest
// as it is now can do without it.
func (t *Tier) moved(seg *manifest.Segment, err error) error {
	if !errors.Is(err, objstore.ErrNotFound) && !errors.Is(err, objstore.ErrRange) {
		return err
	}
	m := t.Snapshot()
	if i, ok := m.Find(seg.BaseOffset); ok && m.Segments[i].UploadID == seg.UploadID {
		return err
	}
	return fmt.Errorf("%w: %s", ErrMoved, segmentName(seg))
}

// openRun gives the key run of one segment. If the chunk table is not on the local
// disk it is read on the way and kept, so that a node that was rebuilt from the
// bucket needs no more GETs for a lookup than any other.
func (t *Tier) openRun(ctx context.Context, seg *manifest.Segment) (*stream, error) {
	s := &stream{ctx: ctx, bucket: t.o.Bucket, key: IndexKey(t.prefix, seg), pos: seg.TableBytes, end: seg.IndexSize}
	if _, err := t.localTable(seg); err == nil {
		return s, nil
	}
	s.pos = 0
	raw, err := s.next(seg.TableBytes)
	if err != nil {
		return nil, err
	}
	if _, err := tableOf(raw, seg); err != nil {
		t.o.Logger.Error("chunk table in the bucket is damaged", "object", s.key, "err", err)
	} else {
		t.keepTable(seg, raw)
	}
	return s, nil
}

// scanKeys reads the batches of one segment for its keys. A chunk table, where
// there is a usable one, proves that the batches are where they were put.
func (t *Tier) scanKeys(ctx context.Context, seg *manifest.Segment, fn func(key []byte, s keyState) error) error {
	s := &stream{ctx: ctx, bucket: t.o.Bucket, key: LogKey(t.prefix, seg), end: seg.Size}
	tab, err := t.scanTable(ctx, seg)
	if err != nil && !errors.Is(err, record.ErrCorrupt) {
		return err
	}
	var r record.Reader
	return s.batches(seg, tab, func(pos int64, batch []byte, h record.BatchHeader) error {
		if err := r.Reset(batch, maxUncompressed); err != nil {
			return record.Corrupt(s.key, pos, err)
		}
		for !h.IsControl() && r.Next() {
			v := r.Record()
			if v.Key == nil {
				continue
			}
			if err := fn(v.Key, keyState{offset: v.Offset, tombstone: v.Value == nil}); err != nil {
				return err
			}
		}
		if err := r.Err(); err != nil {
			return record.Corrupt(s.key, pos, err)
		}
		return nil
	})
}
