package s3conn

import (
	"strings"
	"sync/atomic"

	"keyhole/objstore"
)

// Keys translates between keys of a bucket and full names in the store, and
// knows whether the bucket was closed.
type Keys struct {
	prefix string // "" or ending in a slash
	closed atomic.Bool
}

// NewKeys makes the translation for a Location's prefix.
func NewKeys(prefix string) *Keys {
	if prefix != "" {
		prefix += "/"
	}
	return &Keys{prefix: prefix}
}

// Full is the name of a key, or of a listing prefix, in the store.
func (k *Keys) Full(key string) string { return k.prefix + key }

// Relative is the inverse of Full. False for what is not ours: names outside
// the prefix and the empty "folder" objects that some tools make.
func (k *Keys) Relative(full string) (string, bool) {
	key, ok := strings.CutPrefix(full, k.prefix)
	return key, ok && key != "" && !strings.HasSuffix(key, "/")
}

// RelativePrefix is Relative for the folders of a delimited listing.
func (k *Keys) RelativePrefix(full, listed string) (string, bool) {
	folder, ok := strings.CutPrefix(full, k.prefix)
	return folder, ok && len(folder) > len(listed) && strings.HasSuffix(folder, "/")
}

// Begin answers ErrInvalid or ErrClosed for a call that must not be made.
func (k *Keys) Begin(op, key string, invalid error) error {
	if invalid == nil && len(k.prefix)+len(key) > 1024 {
		invalid = objstore.ErrInvalid
	}
	if invalid != nil {
		return &objstore.OpError{Op: op, Key: key, Kind: objstore.ErrInvalid, Err: invalid}
	}
	if k.closed.Load() {
		return &objstore.OpError{Op: op, Key: key, Kind: objstore.ErrClosed}
	}
	return nil
}

// Close makes all later calls of Begin fail.
func (k *Keys) Close() { k.closed.Store(true) }
