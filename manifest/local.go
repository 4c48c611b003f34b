package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/fsync"
	"keyhole/record"
)

// WriteFile replaces a small file so that after a crash at any point the name
// holds the old bytes or all of the new ones: temporary file, sync, rename,
// sync of the directory. The directory must exist. Two calls for one path must
// not overlap, because the temporary name is path + ".tmp".
func WriteFile(fs vfs.FS, path string, data []byte) error {
	tmp := path + ".tmp"
	f, err := fs.Create(tmp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("create %s: %w", tmp, err)
	}
	// A vfs.File may change what it is given to write.
	if _, err := f.Write(bytes.Clone(data)); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", tmp, err), f.Close())
	}
	if err := f.Sync(); err != nil {
		return errors.Join(fmt.Errorf("sync %s: %w", tmp, err), f.Close())
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("close %s: %w", tmp, err)
	}
	if err := fs.Rename(tmp, path); err != nil {
		return fmt.Errorf("rename %s: %w", tmp, err)
	}
	return fsync.Dir(fs, fs.PathDir(path))
}

// ReadFile reads a whole file of at most limit bytes. A longer one is damaged:
// record.ErrCorrupt.
func ReadFile(fs vfs.FS, path string, limit int64) ([]byte, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = record.Corrupt(path, limit, fmt.Errorf("more than %d bytes", limit))
	}
	return data, errors.Join(err, f.Close())
}
