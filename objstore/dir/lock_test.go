//go:build unix

package dir_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"keyhole/objstore"
	"keyhole/objstore/dir"
)

// A process that was stopped while it held the lock does not hold up others beyond
// their deadline.
func TestLockThatIsHeld(t *testing.T) {
	root := t.TempDir()
	b := mustOpen(t, root, dir.Options{})
	if _, err := put(b, "k", "v", objstore.Condition{}); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(root, "~tmp", "lock"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	mine := errors.New("my deadline")
	cancel(mine)
	if err := b.Delete(ctx, "k"); !errors.Is(err, mine) && !errors.Is(err, context.Canceled) {
		t.Fatalf("delete: %v", err)
	}
	if _, err := put(b, "k", "w", objstore.Condition{}); !errors.Is(err, objstore.ErrUnavailable) {
		t.Fatalf("put: %v", err)
	}
	if err := f.Close(); err != nil { // unlocks
		t.Fatal(err)
	}
	if _, err := put(b, "k", "w", objstore.Condition{}); err != nil {
		t.Fatal(err)
	}
}
