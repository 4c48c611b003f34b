//go:build !unix

package locallog

import (
	"errors"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Without mappings, segments are read with ReadAt and cut by copying.

func mapFile(vfs.File, int64) ([]byte, error) { return nil, errors.ErrUnsupported }
func unmapFile([]byte) error                  { return nil }
func truncateFd(uintptr, int64) error         { return errors.ErrUnsupported }
