// Package dir is the object store driver over a folder: the same promises as an
// S3 bucket with conditional writes, for one machine, tests and demonstrations.
//
//	<root>/<key>          one file per object; "/" in a key makes folders
//	<root>/~tmp/<random>  objects being written
//	<root>/~tmp/lock      held while an object is put in place or removed
//
// An object is written to a temporary file, synced, then moved to its name and
// the folder synced: after a crash there is the old object or the new one.
// "~tmp" is refused as the first segment of a key, so no temporary name can be
// that of an object; topic names cannot hold "~".
//
// Conditions hold among all processes that open the folder through this
// package. The ETag is a hash of the content. As in a file system, and unlike
// S3, one key cannot be the folder of another ("a" and "a/b").
package dir

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/fsync"
	"keyhole/objstore"
)

const (
	tmpName  = "~tmp"
	lockName = "lock"

	// abandonedAfter is the age at which Open removes a temporary file: its
	// writer has crashed long since.
	abandonedAfter = 24 * time.Hour
)

// Options configure Open. The zero value is usable.
type Options struct {
	// FS is the file system, vfs.Default if nil. On any other one conditions
	// hold within the process only.
	FS vfs.FS
	// ReadOnly opens a folder that must exist and never changes anything in it:
	// writes fail with objstore.ErrReadOnly, and what writers left is left to them.
	ReadOnly bool
}

// Bucket implements objstore.Bucket.
type Bucket struct {
	fs   vfs.FS
	root string
	tmp  string
	// witness is there as long as the folder is the one that was opened.
	witness  string
	readOnly bool
	closed   atomic.Bool

	place    chan struct{} // holds a token while an object is put in place or removed
	lockFile string        // the same among processes, "" if there are no others
}

// Open opens the folder root and makes it if need be, but not to read only: then
// a missing one is ErrMisconfigured. Errors are classed like those of a Bucket.
func Open(root string, o Options) (*Bucket, error) {
	b := &Bucket{place: make(chan struct{}, 1), fs: o.FS, root: root, tmp: filepath.Join(root, tmpName), readOnly: o.ReadOnly}
	b.witness = b.tmp
	if b.fs == nil {
		b.fs = vfs.Default
		b.lockFile = filepath.Join(b.tmp, lockName)
	}
	if o.ReadOnly {
		if err := b.find(); err != nil {
			return nil, err
		}
		return b, nil
	}
	if err := b.makeFolder(b.tmp); err != nil {
		return nil, fileError("open", "", err)
	}
	if err := b.removeAbandoned(); err != nil {
		return nil, fileError("open", "", err)
	}
	return b, nil
}

// find is what Open does instead of making the folder when it is to be read only.
// A copy of a bucket may lack what its writers need.
func (b *Bucket) find() error {
	info, err := b.fs.Stat(b.root)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !info.IsDir():
		return &objstore.OpError{Op: "open", Kind: objstore.ErrMisconfigured, Detail: "there is no folder " + b.root}
	case err != nil:
		return fileError("open", "", err)
	}
	if _, err := b.fs.Stat(b.tmp); err != nil {
		b.witness = b.root
	}
	return nil
}

func (b *Bucket) removeAbandoned() error {
	names, err := b.fs.List(b.tmp)
	if err != nil {
		return err
	}
	for _, name := range names {
		file := filepath.Join(b.tmp, name)
		info, err := b.fs.Stat(file)
		if err != nil || name == lockName || time.Since(info.ModTime()) < abandonedAfter {
			continue // gone already, or not ours to judge
		}
		if err := b.fs.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// begin is the check every call starts with.
func (b *Bucket) begin(ctx context.Context, op, key string, invalid error) error {
	first, _, _ := strings.Cut(key, "/")
	switch {
	case invalid != nil:
		return &objstore.OpError{Op: op, Key: key, Kind: objstore.ErrInvalid, Err: invalid}
	case first == tmpName:
		return &objstore.OpError{Op: op, Key: key, Kind: objstore.ErrInvalid, Detail: tmpName + " is reserved"}
	case b.closed.Load():
		return &objstore.OpError{Op: op, Key: key, Kind: objstore.ErrClosed}
	case ctx.Err() != nil:
		return &objstore.OpError{Op: op, Key: key, Kind: ctx.Err()}
	}
	return nil
}

// path is the file of a valid key. Valid keys have no "." and ".." segments, so
// it lies below the root.
func (b *Bucket) path(key string) string { return filepath.Join(b.root, filepath.FromSlash(key)) }

// fileError classes an error of the file system.
func fileError(op, key string, err error) error {
	e := &objstore.OpError{Op: op, Key: key, Err: err}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		e.Kind = objstore.ErrNotFound
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		e.Kind = objstore.ErrDenied
	case errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENOTEMPTY):
		e.Kind = objstore.ErrInvalid
	default:
		e.Kind = objstore.ErrUnavailable
	}
	return e
}

// open opens an object for reading. Without its root folder, which an
// unmounted volume loses, nothing is known about any object.
func (b *Bucket) open(op, key string) (vfs.File, int64, error) {
	f, err := b.fs.Open(b.path(key))
	if err != nil {
		err = fileError(op, key, err)
		if errors.Is(err, objstore.ErrNotFound) {
			if rootErr := b.present(op, key); rootErr != nil {
				err = rootErr
			}
		}
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = fs.ErrNotExist
	}
	if err != nil {
		_ = f.Close() // read only: the first error says it all
		return nil, 0, fileError(op, key, err)
	}
	return f, info.Size(), nil
}

// present fails with ErrUnavailable if the folder is no longer the one that
// was opened.
func (b *Bucket) present(op, key string) error {
	if _, err := b.fs.Stat(b.witness); err != nil {
		return &objstore.OpError{Op: op, Key: key, Kind: objstore.ErrUnavailable, Detail: "folder of the bucket is gone"}
	}
	return nil
}

// writable is present for calls that change something.
func (b *Bucket) writable(op, key string) error {
	if b.readOnly {
		return &objstore.OpError{Op: op, Key: key, Kind: objstore.ErrReadOnly}
	}
	return b.present(op, key)
}

// ReadRange implements objstore.Bucket.
func (b *Bucket) ReadRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	const op = "read"
	if err := b.begin(ctx, op, key, objstore.CheckRange(key, off, n)); err != nil {
		return nil, err
	}
	f, size, err := b.open(op, key)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read only
	if off+n > size {
		return nil, &objstore.OpError{Op: op, Key: key, Kind: objstore.ErrRange,
			Detail: fmt.Sprintf("%d bytes at %d asked for, object has %d", n, off, size)}
	}
	data := make([]byte, n)
	if _, err := f.ReadAt(data, off); err != nil && !errors.Is(err, io.EOF) {
		return nil, fileError(op, key, err)
	}
	return data, nil
}

// Get implements objstore.Bucket.
func (b *Bucket) Get(ctx context.Context, key string, maxBytes int64) ([]byte, string, error) {
	const op = "get"
	if err := b.begin(ctx, op, key, objstore.ValidKey(key)); err != nil {
		return nil, "", err
	}
	return b.get(op, key, maxBytes)
}

// GetIfChanged implements objstore.Bucket.
func (b *Bucket) GetIfChanged(ctx context.Context, key, etag string, maxBytes int64) ([]byte, string, error) {
	const op = "get"
	if err := b.begin(ctx, op, key, objstore.CheckETag(key, etag)); err != nil {
		return nil, "", err
	}
	data, newETag, err := b.get(op, key, maxBytes)
	if err == nil && newETag == etag {
		return nil, "", &objstore.OpError{Op: op, Key: key, Kind: objstore.ErrNotModified}
	}
	return data, newETag, err
}

func (b *Bucket) get(op, key string, maxBytes int64) ([]byte, string, error) {
	f, size, err := b.open(op, key)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = f.Close() }() // read only
	if size > maxBytes {
		return nil, "", &objstore.OpError{Op: op, Key: key, Kind: objstore.ErrTooLarge,
			Detail: fmt.Sprintf("object has %d bytes, at most %d are allowed", size, maxBytes)}
	}
	data := make([]byte, size)
	if _, err := f.ReadAt(data, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, "", fileError(op, key, err)
	}
	sum := sha256.Sum256(data)
	return data, etagOf(sum[:]), nil
}

func etagOf(sum []byte) string { return `"` + hex.EncodeToString(sum[:16]) + `"` }

// Put implements objstore.Bucket.
func (b *Bucket) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond objstore.Condition) (string, error) {
	const op = "put"
	if err := b.begin(ctx, op, key, objstore.CheckPut(key, size, cond)); err != nil {
		return "", err
	}
	if err := b.writable(op, key); err != nil {
		return "", err
	}
	tmp := filepath.Join(b.tmp, rand.Text())
	etag, err := b.writeTemporary(ctx, tmp, body, size)
	if err == nil {
		err = b.locked(ctx, func() error { return b.putInPlace(op, key, tmp, cond) })
	}
	if err != nil {
		_ = b.fs.Remove(tmp) // what remains is removed by a later Open
		var classed *objstore.OpError
		if errors.Is(err, objstore.ErrInvalid) || errors.As(err, &classed) {
			return "", err
		}
		return "", fileError(op, key, err)
	}
	return etag, nil
}

// writeTemporary writes and syncs a file and hashes it on the way.
func (b *Bucket) writeTemporary(ctx context.Context, tmp string, body io.ReadSeeker, size int64) (etag string, err error) {
	if _, err := body.Seek(0, io.SeekStart); err != nil {
		return "", fmt.Errorf("%w: body cannot be rewound: %w", objstore.ErrInvalid, err)
	}
	f, err := b.fs.Create(tmp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return "", err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	h := sha256.New()
	var written int64
	buf := make([]byte, 256<<10)
	for {
		if err := ctx.Err(); err != nil {
			return "", &objstore.OpError{Op: "put", Kind: err}
		}
		n, errRead := body.Read(buf)
		h.Write(buf[:n]) // first: a file may use the buffer it is given
		if _, err := f.Write(buf[:n]); err != nil {
			return "", err
		}
		written += int64(n)
		switch {
		case errors.Is(errRead, io.EOF) && written == size:
			return etagOf(h.Sum(nil)), f.Sync()
		case errors.Is(errRead, io.EOF), written > size:
			return "", fmt.Errorf("%w: body is not of the %d bytes declared", objstore.ErrInvalid, size)
		case errRead != nil:
			return "", fmt.Errorf("%w: body: %w", objstore.ErrInvalid, errRead)
		}
	}
}

// putInPlace gives the temporary file its name. The lock is held.
func (b *Bucket) putInPlace(op, key, tmp string, cond objstore.Condition) error {
	target := b.path(key)
	failed := &objstore.OpError{Op: op, Key: key, Kind: objstore.ErrPrecondition}
	if cond.IfMatch != "" {
		switch _, etag, err := b.get(op, key, 1<<62); {
		case errors.Is(err, objstore.ErrNotFound):
			return failed
		case err != nil:
			return err
		case etag != cond.IfMatch:
			return failed
		}
	}
	if err := b.makeFolder(filepath.Dir(target)); err != nil {
		return err
	}
	if !cond.IfNoneMatch {
		if err := b.fs.Rename(tmp, target); err != nil {
			if info, e := b.fs.Stat(target); e == nil && info.IsDir() {
				return &objstore.OpError{Op: op, Key: key, Kind: objstore.ErrInvalid, Detail: "key is the folder of other keys"}
			}
			return err
		}
		return fsync.Dir(b.fs, filepath.Dir(target))
	}
	// A link fails if the name is taken, even by a process that knows nothing
	// of the lock.
	if err := b.fs.Link(tmp, target); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return failed
		}
		return err
	}
	if err := b.fs.Remove(tmp); err != nil {
		return err
	}
	return fsync.Dir(b.fs, filepath.Dir(target))
}

// makeFolder makes a folder and its parents, each one durably.
func (b *Bucket) makeFolder(folder string) error {
	if info, err := b.fs.Stat(folder); err == nil {
		if !info.IsDir() {
			return &objstore.OpError{Op: "put", Kind: objstore.ErrInvalid, Detail: "a folder of the key is itself an object"}
		}
		return nil
	}
	parent := filepath.Dir(folder)
	if parent != folder {
		if err := b.makeFolder(parent); err != nil {
			return err
		}
	}
	if err := b.fs.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	return fsync.Dir(b.fs, parent)
}

// Delete implements objstore.Bucket. Folders left empty go too, because an
// object store has no empty folders.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	const op = "delete"
	if err := b.begin(ctx, op, key, objstore.ValidKey(key)); err != nil {
		return err
	}
	if err := b.writable(op, key); err != nil {
		return err
	}
	return b.locked(ctx, func() error {
		target := b.path(key)
		info, err := b.fs.Stat(target)
		if err == nil && info.IsDir() {
			return nil
		}
		if err == nil {
			err = b.fs.Remove(target)
		}
		if err != nil {
			if err = fileError(op, key, err); errors.Is(err, objstore.ErrNotFound) {
				return nil
			}
			return err
		}
		folder := filepath.Dir(target)
		for folder != b.root && b.fs.Remove(folder) == nil {
			folder = filepath.Dir(folder)
		}
		if err := fsync.Dir(b.fs, folder); err != nil {
			return fileError(op, key, err)
		}
		return nil
	})
}

// Close implements objstore.Bucket.
func (b *Bucket) Close() error {
	b.closed.Store(true)
	return nil
}
