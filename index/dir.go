package index

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/fsync"
)

// lockDir makes dir and takes its lock, which the operating system releases with
// the process, however that ends.
func lockDir(fsys vfs.FS, dir string) (*pebble.Lock, error) {
	if err := makeDir(fsys, dir); err != nil {
		return nil, fmt.Errorf("index: %w", err)
	}
	lock, err := pebble.LockDirectory(dir, fsys)
	if err == nil {
		return lock, nil
	}
	// Another process holds it: the bare error of fcntl. This process holds it: an
	// error that comes from no system call. Whatever concerns the lock's file has
	// its path.
	var path *fs.PathError
	var errno syscall.Errno
	switch {
	case errors.As(err, &path):
	case !errors.As(err, &errno), errno == syscall.EAGAIN, errno == syscall.EACCES:
		return nil, fmt.Errorf("%w: %s", ErrLocked, dir)
	}
	return nil, fmt.Errorf("index: lock %s: %w", dir, err)
}

// makeDir makes dir and its parents, and makes durable that they are there: what
// is flushed into a directory that a crash takes away was not durable.
func makeDir(fsys vfs.FS, dir string) error {
	var made []string // the innermost first
	for at := dir; ; at = fsys.PathDir(at) {
		_, err := fsys.Stat(at)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		made = append(made, at)
		if at == fsys.PathDir(at) {
			break
		}
	}
	if len(made) == 0 {
		return nil
	}
	if err := fsys.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, at := range made {
		if err := fsync.Dir(fsys, fsys.PathDir(at)); err != nil {
			return err
		}
	}
	return nil
}
