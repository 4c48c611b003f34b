package tiered

import (
	"context"
	"errors"

	"keyhole/manifest"
	"keyhole/record"
)

// KeyRuns calls fn for the keys of all remote segments that reach to fromOffset
// or beyond, in the order of the segments: each key once per segment with its
// latest record there, unless that record lies below fromOffset. Taken in this
// order, the last call for a key is the key's state. key is valid during the
// call. An error of fn ends it and is returned.
//
// Only the key runs are read, by large ranged GETs. Where a run is damaged or
// missing, the segment's batches are read instead; fn may have been called for
// part of the run before. Damage there too is record.ErrCorrupt; ErrUnknown
// before the manifest is known.
func (t *Tier) KeyRuns(ctx context.Context, fromOffset int64, fn func(key []byte, offset int64, tombstone bool) error) (err error) {
	ctx, done, err := t.begin(ctx)
	if err != nil {
		return err
	}
	defer func() { done(&err) }()
	m := t.Snapshot()
	if !m.Known() {
		return ErrUnknown
	}
	emit := func(key []byte, s keyState) error {
		if s.offset < fromOffset {
			return nil
		}
		return fn(key, s.offset, s.tombstone)
	}
	for i := m.After(fromOffset); i < len(m.Segments); i++ {
		seg := &m.Segments[i]
		var failed error // what emit returned, to be told from damage
		guarded := func(key []byte, s keyState) error {
			failed = emit(key, s)
			return failed
		}
		err := t.keyRun(ctx, seg, guarded)
		if err != nil && failed == nil && (errors.Is(err, errRun) || errors.Is(err, record.ErrCorrupt)) {
			t.o.Shared.repairs.WithLabelValues(partRun).Inc()
			t.o.Logger.Warn("key run not usable, reading the batches of the segment", "object", IndexKey(t.prefix, seg), "err", err)
			err = t.scanKeys(ctx, seg, emit)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// keyRun reads the run of one segment. If the chunk table is not on the local
// disk it is read on the way and kept, so that a node that was rebuilt from the
// bucket needs no more GETs for a lookup than any other.
func (t *Tier) keyRun(ctx context.Context, seg *manifest.Segment, fn func(key []byte, s keyState) error) error {
	s := &stream{ctx: ctx, bucket: t.o.Bucket, key: IndexKey(t.prefix, seg), pos: seg.TableBytes, end: seg.IndexSize}
	if _, err := t.localTable(seg); err != nil {
		s.pos = 0
		raw, err := s.next(seg.TableBytes)
		if err != nil {
			return err
		}
		if _, err := tableOf(raw, seg); err != nil {
			t.o.Logger.Error("chunk table in the bucket is damaged", "object", s.key, "err", err)
		} else {
			t.keepTable(seg, raw)
		}
	}
	return readRun(s.next, s.end-s.pos, seg.BaseOffset, seg.LastOffset, fn)
}

// scanKeys reads the batches of one segment for its keys. A chunk table, where
// there is a usable one, proves that the batches are where they were put.
func (t *Tier) scanKeys(ctx context.Context, seg *manifest.Segment, fn func(key []byte, s keyState) error) error {
	s := &stream{ctx: ctx, bucket: t.o.Bucket, key: LogKey(t.prefix, seg), end: seg.Size}
	tab, err := t.table(ctx, seg)
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
