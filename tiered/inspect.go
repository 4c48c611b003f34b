package tiered

import (
	"context"
	"errors"

	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/record"
)

// SegmentKeys calls fn for every key of one remote segment, in the order of the
// key bytes, with the offset of its latest record there. It reads the key run
// only and relies on it: VerifySegment is what compares it with the batches. key
// is valid during the call. record.ErrCorrupt if the run does not hold, else
// errors of the store, ctx and fn.
func SegmentKeys(ctx context.Context, bucket objstore.Bucket, prefix string, seg manifest.Segment, fn func(key []byte, offset int64, tombstone bool) error) error {
	s := &stream{ctx: ctx, bucket: bucket, key: IndexKey(prefix, &seg), pos: seg.TableBytes, end: seg.IndexSize}
	err := readRun(s.next, s.end-s.pos, seg.BaseOffset, seg.LastOffset, func(key []byte, k keyState) error {
		return fn(key, k.offset, k.tombstone)
	})
	if errors.Is(err, errRun) {
		err = record.Corrupt(s.key, s.pos, err)
	}
	return err
}

// TableName is the name, in a Tier's directory, of the local copy of a segment's
// chunk table: the first TableBytes of its .index object.
func TableName(seg *manifest.Segment) string { return tableFile(seg) }

// CheckTable says whether raw is a chunk table that holds and belongs to the
// segment: whether a Tier would use it.
func CheckTable(raw []byte, seg *manifest.Segment) error {
	_, err := tableOf(raw, seg)
	return err
}
