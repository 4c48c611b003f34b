package partition

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"keyhole/index"
	"keyhole/locallog"
	"keyhole/tiered"
)

// What ends a compaction and passes is no fault of the program.
func TestCompactionTrouble(t *testing.T) {
	p := newRig(t).open()
	for _, c := range []struct{ err, want error }{
		{index.ErrFailed, ErrNotReady},
		{index.ErrClosed, ErrNotReady},
		{locallog.ErrClosed, ErrNotReady},
		{locallog.ErrTruncated, ErrNotReady},
		{tiered.ErrMoved, ErrNotReady},
		{tiered.ErrNotClaimed, ErrNotReady},
		{errBacklog, ErrNotReady},
		{context.Canceled, ErrNotReady},
		{locallog.ErrReadOnly, ErrReadOnly},
		{syscall.EDQUOT, ErrDiskFull},
	} {
		if err := p.compactionTrouble(t.Context(), fmt.Errorf("compact: %w", c.err)); !errors.Is(err, c.want) {
			t.Errorf("%v: %v, want %v", c.err, err, c.want)
		}
	}
}

// An operator is told that the disk is full, and the partition goes on.
func TestCompactionOnAFullDisk(t *testing.T) {
	for _, file := range []string{".compact.tmp", "/compact.tmp"} {
		r := newRig(t)
		r.settings = compacting()
		var full atomic.Bool
		r.fs = errorfs.Wrap(r.fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if full.Load() && op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, file) {
				return syscall.ENOSPC
			}
			return nil
		}))
		p := r.open()
		keys := numbered(20)
		for round := range 5 {
			for i, k := range keys {
				put(t, p, k, fmt.Sprintf("%d %0100d", round, i))
			}
		}
		if file == "/compact.tmp" {
			evict(t, p)
		}
		full.Store(true)
		if _, err := p.Compact(t.Context()); !errors.Is(err, ErrDiskFull) {
			t.Errorf("%s: %v", file, err)
		}
		full.Store(false)
		compact(t, p)
	}
}
