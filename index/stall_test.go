package index

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// slowDisk holds the creation of tables up until it is released, and then lets it
// go on or fail.
type slowDisk struct {
	mu   sync.Mutex
	held chan error // nil: not slow
}

func (d *slowDisk) String() string { return "slow disk" }

func (d *slowDisk) MaybeError(op errorfs.Op) error {
	if op.Kind != errorfs.OpCreate || !strings.HasSuffix(op.Path, ".sst") {
		return nil
	}
	d.mu.Lock()
	held := d.held
	d.mu.Unlock()
	if held == nil {
		return nil
	}
	return <-held
}

// Commits wait when the disk does not keep up, instead of filling the memory, and
// go on when it does, or fail when it fails.
func TestCommitsWaitForTheDisk(t *testing.T) {
	for _, end := range []error{nil, &fullDisk{}} {
		t.Run(fmt.Sprint(end), func(t *testing.T) {
			disk := &slowDisk{}
			x := mustOpen(t, "/db", Options{FS: errorfs.Wrap(vfs.NewMem(), disk), Shared: newShared(t)})
			held := make(chan error)
			disk.held = held

			const total = 8 * maxBacklog
			value := strings.Repeat("k", 1000)
			committed := make(chan error)
			go func() {
				b := x.NewBatch()
				defer b.Close()
				var err error
				for n := 0; n < total && err == nil; n += 100 * 1000 {
					for i := range 100 {
						b.Set(fmt.Appendf(nil, "%s%d-%d", value, n, i), 1)
					}
					err = b.Commit(Position{int64(n), int64(n), 0})
				}
				committed <- err
			}()
			// The writer passes the limit by one batch and then waits; without the wait
			// it would go on to the end.
			for x.stall.total.Load() <= maxBacklog {
				select {
				case err := <-committed:
					t.Fatalf("all went in: %v", err)
				default:
					runtime.Gosched()
				}
			}
			if total := x.stall.total.Load(); total > 2*maxBacklog {
				t.Errorf("%d bytes on their way, limit %d", total, maxBacklog)
			}
			held <- end // once the flush has come to where it is held
			disk.mu.Lock()
			disk.held = nil
			disk.mu.Unlock()
			close(held)
			err := <-committed
			if end == nil && err != nil || end != nil && !errors.Is(err, ErrFailed) {
				t.Errorf("Commit: %v", err)
			}
			if err := x.Close(); (err != nil) != (end != nil) {
				t.Errorf("Close: %v", err)
			}
		})
	}
}
