package dir

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"keyhole/objstore"
)

// List implements objstore.Bucket.
func (b *Bucket) List(ctx context.Context, prefix string, fn func(objstore.Object) error) error {
	const op = "list"
	if err := b.begin(ctx, op, prefix, checkListed(prefix)); err != nil {
		return err
	}
	if err := b.present(op, prefix); err != nil {
		return err
	}
	folder := prefix[:strings.LastIndexByte(prefix, '/')+1]
	return b.walk(ctx, folder, prefix, fn)
}

// ListPrefixes implements objstore.Bucket.
func (b *Bucket) ListPrefixes(ctx context.Context, prefix string, fn func(string) error) error {
	const op = "list"
	if err := b.begin(ctx, op, prefix, objstore.CheckPrefix(prefix)); err != nil {
		return err
	}
	if err := b.present(op, prefix); err != nil {
		return err
	}
	entries, err := b.entries(prefix)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Key, "/") {
			continue
		}
		// A crash may leave a folder without objects. It is not listed.
		err := b.walk(ctx, e.Key, e.Key, func(objstore.Object) error { return errFound })
		if err == nil {
			continue
		}
		if !errors.Is(err, errFound) {
			return err
		}
		if err := fn(e.Key); err != nil {
			return err
		}
	}
	return nil
}

var errFound = errors.New("folder has an object")

// checkListed refuses prefixes that would leave the root.
func checkListed(prefix string) error {
	folder := prefix[:strings.LastIndexByte(prefix, '/')+1]
	return objstore.CheckPrefix(folder)
}

// walk delivers the objects below a folder ("" or ending in "/") that have the
// prefix, in key order.
func (b *Bucket) walk(ctx context.Context, folder, prefix string, fn func(objstore.Object) error) error {
	if err := ctx.Err(); err != nil {
		return &objstore.OpError{Op: "list", Key: prefix, Kind: err}
	}
	entries, err := b.entries(folder)
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch {
		case strings.HasSuffix(e.Key, "/"):
			if strings.HasPrefix(e.Key, prefix) || strings.HasPrefix(prefix, e.Key) {
				err = b.walk(ctx, e.Key, prefix, fn)
			}
		case strings.HasPrefix(e.Key, prefix):
			err = fn(e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// entries is what lies right in a folder, in the order of the keys below: a
// folder's key ends in "/", which decides its place among its neighbours.
// Files whose names could not be keys are not ours and are left out.
func (b *Bucket) entries(folder string) ([]objstore.Object, error) {
	path := b.path(folder)
	names, err := b.fs.List(path)
	if err != nil {
		if err = fileError("list", folder, err); errors.Is(err, objstore.ErrNotFound) {
			return nil, nil
		}
		return nil, err
	}
	out := make([]objstore.Object, 0, len(names))
	for _, name := range names {
		key := folder + name
		if objstore.ValidKey(key) != nil || key == tmpName {
			continue
		}
		info, err := b.fs.Stat(filepath.Join(path, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since
		}
		if err != nil {
			return nil, fileError("list", folder, err)
		}
		if info.IsDir() {
			key += "/"
		}
		out = append(out, objstore.Object{Key: key, Size: info.Size(), ModTime: info.ModTime()})
	}
	slices.SortFunc(out, func(a, b objstore.Object) int { return strings.Compare(a.Key, b.Key) })
	return out, nil
}
