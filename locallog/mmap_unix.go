//go:build unix

package locallog

import (
	"errors"
	"math"

	"golang.org/x/sys/unix"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// mapFile maps the first n bytes of f for reading. n may lie beyond the end of
// the file: such bytes become readable when the file has grown over them, and
// fault until then. The file may be closed afterwards.
func mapFile(f vfs.File, n int64) ([]byte, error) {
	if f.Fd() == vfs.InvalidFd || n <= 0 || n > math.MaxInt {
		return nil, errors.ErrUnsupported
	}
	return unix.Mmap(int(f.Fd()), 0, int(n), unix.PROT_READ, unix.MAP_SHARED)
}

func unmapFile(b []byte) error { return unix.Munmap(b) }

// truncateFd shortens an open file.
func truncateFd(fd uintptr, size int64) error {
	for {
		if err := unix.Ftruncate(int(fd), size); err != unix.EINTR {
			return err
		}
	}
}
