//go:build unix

package dir

import (
	"errors"
	"os"
	"syscall"
)

// locked runs fn while no other process and no other goroutine puts an object
// in place. The lock is held for a rename and a few syncs, never while a body
// is written, so waiting for it needs no context. It ends with the process that
// holds it; a lock file left behind means nothing.
func (b *Bucket) locked(fn func() error) (err error) {
	b.place.Lock()
	defer b.place.Unlock()
	if b.lockFile == "" {
		return fn()
	}
	f, err := os.OpenFile(b.lockFile, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }() // closing unlocks
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if err == nil {
			return fn()
		}
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
