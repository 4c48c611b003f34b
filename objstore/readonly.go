package objstore

import (
	"context"
	"errors"
	"io"
)

// ErrReadOnly is what Put and Delete of a ReadOnly bucket answer. No store gives
// it, and no request is made.
var ErrReadOnly = errors.New("object store is open for reading only")

// ReadOnly is b without the means to change it: Put and Delete fail with
// ErrReadOnly and never reach b; everything else passes. A node that must not
// write is given this, so that it cannot, whatever its code does.
func ReadOnly(b Bucket) Bucket { return readOnly{b} }

type readOnly struct{ Bucket }

func (readOnly) Put(_ context.Context, key string, _ io.ReadSeeker, _ int64, _ Condition) (string, error) {
	return "", &OpError{Op: opPut, Key: key, Kind: ErrReadOnly}
}

func (readOnly) Delete(_ context.Context, key string) error {
	return &OpError{Op: opDelete, Key: key, Kind: ErrReadOnly}
}
