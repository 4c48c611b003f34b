//go:build unix

package dir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"keyhole/objstore"
)

// How long to wait for the lock, and how often to look. It is held for a rename and
// a few syncs, so whoever has it for longer was stopped, or its disk hangs.
const (
	lockPatience = 10 * time.Second
	lockTick     = 5 * time.Millisecond
)

// locked runs fn while no other process and no other goroutine puts an object
// in place. The lock is never held while a body is written. It ends with the process
// that holds it; a lock file left behind means nothing. If it is not to be had in
// time, the folder is unavailable: objstore.ErrUnavailable, or ctx's error.
func (b *Bucket) locked(ctx context.Context, fn func() error) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, lockPatience,
		fmt.Errorf("%w: another process has held %s for %v", objstore.ErrUnavailable, b.lockFile, lockPatience))
	defer cancel()
	select {
	case b.place <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-b.place }()
	if b.lockFile == "" {
		return fn()
	}
	f, err := os.OpenFile(b.lockFile, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }() // closing unlocks
	if err := flock(ctx, f); err != nil {
		return err
	}
	return fn()
}

// flock takes the lock of a file. A call that waits for it could not be ended.
func flock(ctx context.Context, f *os.File) error {
	tick := time.NewTicker(lockTick)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil || !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
