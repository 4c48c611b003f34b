package tiered

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/record"
)

// Prefix is what the keys of all objects of a partition begin with.
func Prefix(topic, topicID string, partition int32) string {
	return fmt.Sprintf("%s/%s/%d/", topic, topicID, partition)
}

// ManifestKey is the key of a partition's manifest.
func ManifestKey(prefix string) string { return prefix + "manifest.json" }

// LogKey is the key of the object with a segment's batches.
func LogKey(prefix string, seg *manifest.Segment) string { return prefix + segmentName(seg) + ".log" }

// IndexKey is the key of the object with a segment's chunk table and key run.
func IndexKey(prefix string, seg *manifest.Segment) string {
	return prefix + segmentName(seg) + ".index"
}

const (
	baseDigits    = 20 // of a segment's name are its base offset
	uploadIDBytes = 36 // of a UUID
)

func segmentName(seg *manifest.Segment) string {
	return fmt.Sprintf("%0*d-%s", baseDigits, seg.BaseOffset, seg.UploadID)
}

// parseSegmentName takes apart the name of a segment's object, below the prefix of
// its partition. ok is false for every other name.
func parseSegmentName(name string) (base int64, uploadID string, ok bool) {
	stem, isLog := strings.CutSuffix(name, ".log")
	if !isLog {
		if stem, ok = strings.CutSuffix(name, ".index"); !ok {
			return 0, "", false
		}
	}
	if len(stem) <= baseDigits+1 || stem[baseDigits] != '-' {
		return 0, "", false
	}
	for _, c := range []byte(stem[:baseDigits]) {
		if c < '0' || c > '9' {
			return 0, "", false
		}
	}
	base, err := strconv.ParseInt(stem[:baseDigits], 10, 64)
	uploadID = stem[baseDigits+1:]
	return base, uploadID, err == nil && len(uploadID) == uploadIDBytes && uuid.Validate(uploadID) == nil
}

// bucketStore keeps the manifest in the bucket.
type bucketStore struct {
	bucket      objstore.Bucket
	key         string
	conditional bool
}

func (s *bucketStore) Load(ctx context.Context) ([]byte, string, error) {
	return s.loaded(s.bucket.Get(ctx, s.key, manifest.MaxBytes))
}

func (s *bucketStore) LoadIfChanged(ctx context.Context, etag string) ([]byte, string, error) {
	return s.loaded(s.bucket.GetIfChanged(ctx, s.key, etag, manifest.MaxBytes))
}

// loaded puts the bucket's errors into the words of a manifest.Store.
func (s *bucketStore) loaded(data []byte, etag string, err error) ([]byte, string, error) {
	switch {
	case errors.Is(err, objstore.ErrNotModified):
		return nil, "", fmt.Errorf("%w: %w", manifest.ErrUnchanged, err)
	case errors.Is(err, objstore.ErrNotFound):
		return nil, "", fmt.Errorf("%w: %w", manifest.ErrAbsent, err)
	case errors.Is(err, objstore.ErrTooLarge):
		return nil, "", record.Corrupt(s.key, 0, err)
	}
	return data, etag, err
}

func (s *bucketStore) Replace(ctx context.Context, data []byte, etag string) (string, error) {
	var cond objstore.Condition
	if s.conditional {
		cond = objstore.Condition{IfMatch: etag, IfNoneMatch: etag == ""}
	}
	newETag, err := s.bucket.Put(ctx, s.key, bytes.NewReader(data), int64(len(data)), cond)
	// A match required of an object that is gone is answered by some stores
	// with 404.
	if errors.Is(err, objstore.ErrPrecondition) || cond.IfMatch != "" && errors.Is(err, objstore.ErrNotFound) {
		return "", fmt.Errorf("%w: %w", manifest.ErrConflict, err)
	}
	return newETag, err
}

// damaged makes damage out of the store's word that a named object is missing
// or shorter than the manifest says. Other errors pass as they are.
func damaged(object string, pos, want int64, err error) error {
	if errors.Is(err, objstore.ErrNotFound) || errors.Is(err, objstore.ErrRange) {
		return record.Corrupt(object, pos, fmt.Errorf("the manifest names this object with %d bytes: %w", want, err))
	}
	return err
}
