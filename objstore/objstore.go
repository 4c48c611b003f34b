// Package objstore is the seam between keyhole and object storage: one small
// interface, the errors it may answer, and the wrappers that every store gets.
//
//	open.Bucket(url)
//	   └ WithRetry      back-off and jitter, only for what can succeed
//	      └ WithMetrics   counts and times every attempt
//	         └ driver       s3aws · s3minio · dir · objstoretest.Memory
//
// Promises, held by the contract suite in objstoretest for every driver:
//
//   - A read gives exactly the bytes that were asked for or an error; a reply
//     that is short, misplaced, re-encoded or too long is never passed on.
//   - A put is all or nothing: a reader sees the old object or the new one.
//   - A missing object (ErrNotFound) is told apart from everything else that
//     keeps a store from answering. Only ErrNotFound means "not there".
//   - Errors are classed by status codes and types, never by their text, and
//     carry no secret.
package objstore

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// Bucket holds immutable segment objects and a few small documents. All keys
// are relative to the prefix the bucket was opened with and must satisfy
// ValidKey, otherwise ErrInvalid is answered without a request. All methods may
// be called in parallel. After Close they answer ErrClosed.
type Bucket interface {
	// ReadRange reads n bytes (n ≥ 1) from byte off by one ranged GET. The
	// result is a fresh slice of length and capacity n that belongs to the
	// caller; there are no partial reads. ErrRange if the object does not
	// reach so far, ErrNotFound if there is none.
	ReadRange(ctx context.Context, key string, off, n int64) ([]byte, error)

	// Get reads a whole object of at most maxBytes bytes and its ETag.
	// ErrTooLarge if it is larger; ErrNotFound if there is none. The slice
	// belongs to the caller.
	Get(ctx context.Context, key string, maxBytes int64) (data []byte, etag string, err error)

	// GetIfChanged is Get, but answers ErrNotModified while the object still
	// has the given ETag, which must not be empty.
	GetIfChanged(ctx context.Context, key, etag string, maxBytes int64) (data []byte, newETag string, err error)

	// Put stores size bytes, read from the start of body, and answers the
	// ETag of the new object. Once Put has returned, body is no longer
	// touched; it is never closed. ErrPrecondition if cond did not hold,
	// ErrUnsupported if the store says that it knows no conditions. After
	// ErrUnavailable or a context error the object may or may not be stored.
	Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond Condition) (etag string, err error)

	// Delete removes an object. That it is absent already is not an error.
	Delete(ctx context.Context, key string) error

	// List calls fn for every object whose key begins with prefix, in order
	// of the key bytes, over all pages. An error of fn ends the listing and
	// is returned as it is.
	List(ctx context.Context, prefix string, fn func(Object) error) error

	// ListPrefixes calls fn for every distinct run of bytes up to and
	// including the first "/" behind prefix: the folders right below it, as
	// full prefixes ("orders/", then "orders/1/"). prefix is empty or ends in
	// "/". Order and errors as for List.
	ListPrefixes(ctx context.Context, prefix string, fn func(prefix string) error) error

	// Close gives up connections. It is idempotent. Calls in flight finish or
	// fail.
	Close() error
}

// Condition restricts a Put. The zero value is an unconditional put; at most
// one field may be set.
type Condition struct {
	IfMatch     string // ETag that the present object must have
	IfNoneMatch bool   // there must be no present object
}

// Object is one entry of a listing.
type Object struct {
	Key     string
	Size    int64     // bytes
	ModTime time.Time // by the store's clock
}

// maxKeyBytes is the limit of S3, prefix included.
const maxKeyBytes = 1024

// ValidKey says whether key can name an object in every kind of store:
// 1 to 1024 bytes of UTF-8 without control characters, made of non-empty
// segments between slashes, none of them "." or "..". The error is ErrInvalid.
func ValidKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: empty key", ErrInvalid)
	case len(key) > maxKeyBytes:
		return fmt.Errorf("%w: key of %d bytes, at most %d are possible", ErrInvalid, len(key), maxKeyBytes)
	case !utf8.ValidString(key):
		return fmt.Errorf("%w: key %q is not UTF-8", ErrInvalid, key)
	}
	for _, r := range key {
		if r < 0x20 || r == 0x7f {
			return fmt.Errorf("%w: key %q has a control character", ErrInvalid, key)
		}
	}
	for segment := range strings.SplitSeq(key, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return fmt.Errorf("%w: key %q has the segment %q", ErrInvalid, key, segment)
		}
	}
	return nil
}

// CheckRange is the argument check that drivers share: a valid key and a range
// of at least one byte that does not overflow. The error is ErrInvalid.
func CheckRange(key string, off, n int64) error {
	if err := ValidKey(key); err != nil {
		return err
	}
	if off < 0 || n < 1 || off+n < 0 {
		return fmt.Errorf("%w: range of %d bytes at %d", ErrInvalid, n, off)
	}
	return nil
}

// CheckETag is CheckRange for GetIfChanged. The error is ErrInvalid.
func CheckETag(key, etag string) error {
	if etag == "" {
		return fmt.Errorf("%w: empty ETag", ErrInvalid)
	}
	return ValidKey(key)
}

// CheckPut is CheckRange for Put. The error is ErrInvalid.
func CheckPut(key string, size int64, cond Condition) error {
	if err := ValidKey(key); err != nil {
		return err
	}
	if size < 0 {
		return fmt.Errorf("%w: object of %d bytes", ErrInvalid, size)
	}
	if cond.IfMatch != "" && cond.IfNoneMatch {
		return fmt.Errorf("%w: both conditions at once", ErrInvalid)
	}
	return nil
}

// CheckPrefix is CheckRange for ListPrefixes. The error is ErrInvalid.
func CheckPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	folder, ok := strings.CutSuffix(prefix, "/")
	if !ok {
		return fmt.Errorf("%w: folder prefix %q does not end in /", ErrInvalid, prefix)
	}
	return ValidKey(folder)
}
