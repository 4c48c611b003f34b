package locallog

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// fullFS has no room while it is on. A write then puts down all but the last tail
// bytes of what it is given and fails.
type fullFS struct {
	vfs.FS
	on   atomic.Bool
	tail int
}

func (s *fullFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if s.on.Load() {
		return nil, syscall.ENOSPC
	}
	return s.FS.Create(name, c)
}

func (s *fullFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := s.FS.OpenReadWrite(name, c, o...)
	if err != nil {
		return nil, err
	}
	return &fullFile{f, s}, nil
}

type fullFile struct {
	vfs.File
	fs *fullFS
}

func (f *fullFile) WriteAt(p []byte, off int64) (int, error) {
	if !f.fs.on.Load() {
		return f.File.WriteAt(p, off)
	}
	n, err := f.File.WriteAt(p[:max(0, len(p)-f.fs.tail)], off)
	return n, errors.Join(err, syscall.ENOSPC)
}

// A log that ran out of space reads on, and takes writes again once there is room:
// everything that was answered is there, in order, and an append that failed does
// not come back behind later ones, whatever was left of it on the disk.
// case 6-06, 6-08
func TestResume(t *testing.T) {
	for name, c := range map[string]struct {
		tail int
		roll bool // the write that fails is the one that begins a segment
		disk bool
	}{
		"nothing written":          {tail: 1 << 20},
		"torn":                     {tail: 30},
		"one of two batches whole": {tail: 90},
		"all of it whole":          {},
		"all of it whole, on disk": {disk: true},
		"torn, on disk":            {disk: true, tail: 30},
		"roll":                     {roll: true},
		"roll, on disk":            {roll: true, disk: true},
	} {
		t.Run(name, func(t *testing.T) {
			mem := vfs.NewCrashableMem()
			full := &fullFS{FS: mem, tail: c.tail}
			o := options(full)
			if c.disk {
				full.FS, o.Dir = vfs.Default, t.TempDir()
			}
			if c.roll {
				o.SegmentBytes = bytesOf(400)
			}
			l := mustOpen(t, o)
			appendValues(t, l, "a", "b")
			wantValue(t, l, 1, "b")
			for range 2 {
				full.on.Store(true)
				next := l.State().HighWatermark
				_, err := l.Append(t.Context(), [][]byte{batchOf(t, value(1, 150)), batchOf(t, "y")})
				if !errors.Is(err, ErrReadOnly) || !errors.Is(err, ErrNoSpace) {
					t.Fatalf("append without room: %v", err)
				}
				if err := l.Resume(t.Context()); !errors.Is(err, ErrReadOnly) || !errors.Is(err, ErrNoSpace) {
					t.Fatalf("resume without room: %v", err)
				}
				wantValue(t, l, 1, "b")
				wantErr(t, l, next, ErrNotFound)
				full.on.Store(false)
				must(t, l.Resume(t.Context()))
				must(t, l.Err())
				if base := appendValues(t, l, "c"); base != next {
					t.Fatalf("offset %d, want %d", base, next)
				}
				wantValue(t, l, next, "c")
				wantValue(t, l, 0, "a")
			}
			want, err := scanAll(t, l, 0)
			must(t, err)
			var fs vfs.FS = vfs.Default
			if !c.disk {
				fs = crash(mem)
			}
			killed := mustOpen(t, Options{FS: fs, Dir: o.Dir})
			got, err := scanAll(t, killed, 0)
			must(t, err)
			if len(want) != 4 || len(got) != len(want) {
				t.Fatalf("%v before, %v after a crash", want, got)
			}
			for off, v := range want {
				if got[off] != v {
					t.Fatalf("%v before, %v after a crash", want, got)
				}
			}
			must(t, killed.Close())
			must(t, l.Close())
		})
	}
}

// Where a sync failed Resume cannot help.
func TestResumeAfterFailedSync(t *testing.T) {
	inj := &counting{}
	l := mustOpen(t, options(errorfs.Wrap(vfs.NewMem(), inj)))
	if err := l.Resume(t.Context()); err != nil {
		t.Fatalf("a log that is well: %v", err)
	}
	inj.set(errorfs.OpFileSyncData, syscall.ENOSPC)
	if err := appendOne(l); !errors.Is(err, ErrReadOnly) || errors.Is(err, ErrNoSpace) {
		t.Fatalf("append: %v", err)
	}
	inj.set(errorfs.OpFileSyncData, nil)
	if err := l.Resume(t.Context()); !errors.Is(err, ErrReadOnly) {
		t.Fatalf("resume: %v", err)
	}
	if err := appendOne(l); !errors.Is(err, ErrReadOnly) {
		t.Fatalf("append afterwards: %v", err)
	}
	// Nor where the sync that follows the cut fails.
	inj = &counting{}
	full := &fullFS{FS: errorfs.Wrap(vfs.NewMem(), inj)}
	l = mustOpen(t, options(full))
	full.on.Store(true)
	if err := appendOne(l); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("append: %v", err)
	}
	full.on.Store(false)
	inj.set(errorfs.OpOpenDir, syscall.EIO)
	for range 2 {
		if err := l.Resume(t.Context()); !errors.Is(err, ErrReadOnly) || errors.Is(err, ErrNoSpace) {
			t.Fatalf("resume: %v", err)
		}
		inj.set(errorfs.OpOpenDir, nil)
	}
	must(t, l.Close())
	if err := l.Resume(context.Background()); !errors.Is(err, ErrClosed) {
		t.Fatalf("resume after close: %v", err)
	}
}
