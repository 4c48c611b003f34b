package objstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

// probePrefix is where Probe keeps its objects. "~" cannot stand in a topic
// name, so no other object of ours lives there.
const probePrefix = "~probe/"

// Probe finds out, by trying, whether the store honours conditional puts: some
// answer that they do not know them, some ignore the condition and overwrite.
// It returns an error only if the store could not be tried (unreachable,
// denied, …), which makes it the check at start too: it writes, reads back,
// conditionally overwrites and deletes an object of its own.
func Probe(ctx context.Context, b Bucket) (conditional bool, err error) {
	key := probePrefix + rand.Text()
	first, second := []byte("first "+key), []byte("second "+key)

	etag, err := put(ctx, b, key, first, Condition{})
	if err != nil {
		return false, fmt.Errorf("object store check, writing: %w", err)
	}
	defer func() {
		if e := b.Delete(context.WithoutCancel(ctx), key); e != nil && err == nil {
			conditional, err = false, fmt.Errorf("object store check, deleting: %w", e)
		}
	}()
	data, readTag, err := b.Get(ctx, key, int64(len(second)))
	if err != nil {
		return false, fmt.Errorf("object store check, reading back: %w", err)
	}
	if !bytes.Equal(data, first) || readTag != etag {
		return false, fmt.Errorf("object store check, reading back: %w: not what was written", ErrUnusable)
	}

	// Both of these must be refused, and the third must succeed.
	for _, cond := range []Condition{{IfNoneMatch: true}, {IfMatch: `"00000000000000000000000000000000"`}} {
		switch _, err := put(ctx, b, key, second, cond); {
		case err == nil, errors.Is(err, ErrUnsupported):
			return false, nil
		case !errors.Is(err, ErrPrecondition):
			return false, fmt.Errorf("object store check, conditional write: %w", err)
		}
	}
	switch _, err := put(ctx, b, key, second, Condition{IfMatch: etag}); {
	case errors.Is(err, ErrPrecondition), errors.Is(err, ErrUnsupported):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("object store check, conditional write: %w", err)
	}
	return true, nil
}

// RemoveProbes deletes what probes left behind whose process ended before it could,
// as far as it was stored before the given time, and says how many objects that were.
func RemoveProbes(ctx context.Context, b Bucket, before time.Time) (n int, err error) {
	var old []string
	err = b.List(ctx, probePrefix, func(o Object) error {
		if o.ModTime.Before(before) {
			old = append(old, o.Key)
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("list what probes left behind: %w", err)
	}
	for _, key := range old {
		if err := b.Delete(ctx, key); err != nil {
			return n, fmt.Errorf("delete what a probe left behind: %w", err)
		}
		n++
	}
	return n, nil
}

func put(ctx context.Context, b Bucket, key string, data []byte, cond Condition) (string, error) {
	return b.Put(ctx, key, bytes.NewReader(data), int64(len(data)), cond)
}
