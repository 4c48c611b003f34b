// Package fsync makes the names in a directory durable.
//
// A file that was created, renamed or removed is so for good only once its
// directory has been synced too; the file's own sync does not cover its name.
package fsync

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Dir makes creations, renames and removals in a directory durable. Names above
// it are not covered. The error is the file system's.
func Dir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return fmt.Errorf("open directory %s: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}
