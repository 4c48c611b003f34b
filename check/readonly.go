package check

import (
	"errors"
	"io"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

var errReadOnly = errors.New("check changes nothing")

// readOnlyFS refuses every change.
type readOnlyFS struct{ vfs.FS }

func (readOnlyFS) Create(string, vfs.DiskWriteCategory) (vfs.File, error) { return nil, errReadOnly }
func (readOnlyFS) Link(string, string) error                              { return errReadOnly }
func (readOnlyFS) OpenReadWrite(string, vfs.DiskWriteCategory, ...vfs.OpenOption) (vfs.File, error) {
	return nil, errReadOnly
}
func (readOnlyFS) Remove(string) error         { return errReadOnly }
func (readOnlyFS) RemoveAll(string) error      { return errReadOnly }
func (readOnlyFS) Rename(string, string) error { return errReadOnly }
func (readOnlyFS) ReuseForWrite(string, string, vfs.DiskWriteCategory) (vfs.File, error) {
	return nil, errReadOnly
}
func (readOnlyFS) MkdirAll(string, os.FileMode) error { return errReadOnly }
func (readOnlyFS) Lock(string) (io.Closer, error)     { return nil, errReadOnly }

// Unwrap implements vfs.FS.
func (s readOnlyFS) Unwrap() vfs.FS { return s.FS }
