package index

import (
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// unlockedFS gives locks without taking them, because taking one makes a file.
type unlockedFS struct{ vfs.FS }

func (unlockedFS) Lock(string) (io.Closer, error) { return unlocked{}, nil }

// Unwrap implements vfs.FS.
func (s unlockedFS) Unwrap() vfs.FS { return s.FS }

type unlocked struct{}

func (unlocked) Close() error { return nil }
