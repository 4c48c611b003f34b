package index

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/record"
)

// failure is the sticky first error of an index's background work.
//
// Pebble repeats a failed flush at once and for ever, and when a write to its
// MANIFEST fails it expects the process to end: it is not known then what is on the
// disk, and Pebble's own state is no longer consistent, so that going on panics.
// Here the index stops taking commits instead, and failingFS keeps Pebble from
// changing anything more, so that what is on the disk stays a state that the next
// Open understands. The MANIFEST is a case of its own, see concealingFile.
type failure struct {
	first  atomic.Pointer[error]
	once   sync.Once
	failed chan struct{} // closed at the first failure
	stop   func()        // stops compactions; Pebble's locks may be held

	// background says that Pebble may be at work in the background, where an error
	// has nobody to be returned to, and opened that Open has succeeded.
	background, opened atomic.Bool

	releaseOnce sync.Once
	released    chan struct{} // closed when Close begins
}

func newFailure() *failure {
	return &failure{failed: make(chan struct{}), released: make(chan struct{})}
}

// err returns the failure, wrapped in ErrFailed, or nil.
func (f *failure) err() error {
	if err := f.first.Load(); err != nil {
		return *err
	}
	return nil
}

// set makes cause the failure if there is none yet. Pebble's locks may be held.
func (f *failure) set(cause error) {
	f.once.Do(func() {
		err := fmt.Errorf("%w: %w", ErrFailed, cause)
		f.first.Store(&err)
		close(f.failed)
		f.stop()
	})
}

// release ends the delay of writes after a failure, so that Close is not held up.
func (f *failure) release() { f.releaseOnce.Do(func() { close(f.released) }) }

// retryDelay is how long Pebble's next attempt to create a file is held back after
// a failure. Nothing can come of it, and without the delay it would be repeated as
// fast as a processor can.
const retryDelay = time.Second

// refuse is err with the delay.
func (f *failure) refuse() error {
	err := f.err()
	if err == nil || !f.opened.Load() {
		return err
	}
	delay := time.NewTimer(retryDelay)
	defer delay.Stop()
	select {
	case <-delay.C:
	case <-f.released:
	}
	return err
}

// classify turns an error of Pebble's into damage if it is that.
func (x *Index) classify(err error) error {
	var corrupt *record.CorruptError
	if errors.As(err, &corrupt) {
		return err
	}
	if info := pebble.ExtractDataCorruptionInfo(err); info != nil {
		return record.Corrupt(info.Path, 0, err)
	}
	// A table that is gone is damage, too.
	if pebble.IsCorruptionError(err) || errors.Is(err, fs.ErrNotExist) {
		return record.Corrupt(x.dir, 0, err)
	}
	return err
}

func (x *Index) readError(err error) error {
	return fmt.Errorf("index: read: %w", x.classify(err))
}

func (x *Index) corrupt(err error) error {
	return record.Corrupt(x.dir, 0, fmt.Errorf("index: %w", err))
}

// openError classifies why a database could not be opened. What the operating
// system refuses (full, not permitted, broken disk) is passed on. Anything else
// says that the files do not make an index, and an index can be rebuilt.
func (x *Index) openError(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) && errno != syscall.ENOENT {
		return fmt.Errorf("index: open %s: %w", x.dir, err)
	}
	return record.Corrupt(x.dir, 0, fmt.Errorf("index: open: %w", err))
}

// failingFS refuses every change once the index has failed. Reading goes on.
type failingFS struct {
	vfs.FS
	f *failure
}

func (s failingFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if s.bookkeeping(name) {
		return s.createConcealing(name, category)
	}
	if err := s.f.refuse(); err != nil {
		return nil, err
	}
	return s.wrap(s.FS.Create(name, category))
}

func (s failingFS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	if err := s.f.err(); err != nil {
		return nil, err
	}
	return s.wrap(s.FS.OpenReadWrite(name, category, opts...))
}

func (s failingFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := s.f.err(); err != nil {
		return nil, err
	}
	return s.wrap(s.FS.ReuseForWrite(oldname, newname, category))
}

func (s failingFS) OpenDir(name string) (vfs.File, error) {
	file, err := s.wrap(s.FS.OpenDir(name))
	if err != nil {
		return nil, err
	}
	return concealingFile{file, s.f}, nil
}

func (s failingFS) Link(oldname, newname string) error {
	if err := s.f.err(); err != nil {
		return err
	}
	return s.FS.Link(oldname, newname)
}

func (s failingFS) Remove(name string) error {
	if err := s.f.err(); err != nil {
		return err
	}
	return s.FS.Remove(name)
}

func (s failingFS) RemoveAll(name string) error {
	if err := s.f.err(); err != nil {
		return err
	}
	return s.FS.RemoveAll(name)
}

func (s failingFS) Rename(oldname, newname string) error {
	if err := s.f.err(); err != nil {
		return err
	}
	return s.FS.Rename(oldname, newname)
}

// Unwrap implements vfs.FS.
func (s failingFS) Unwrap() vfs.FS { return s.FS }

func (s failingFS) wrap(file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return failingFile{file, s.f}, nil
}

// failingFile is a file open for writing, or a directory open to be synced.
type failingFile struct {
	vfs.File
	f *failure
}

func (s failingFile) Write(p []byte) (int, error) {
	if err := s.f.err(); err != nil {
		return 0, err
	}
	return s.File.Write(p)
}

func (s failingFile) WriteAt(p []byte, off int64) (int, error) {
	if err := s.f.err(); err != nil {
		return 0, err
	}
	return s.File.WriteAt(p, off)
}

func (s failingFile) Sync() error {
	if err := s.f.err(); err != nil {
		return err
	}
	return s.File.Sync()
}

func (s failingFile) SyncData() error {
	if err := s.f.err(); err != nil {
		return err
	}
	return s.File.SyncData()
}

func (s failingFile) SyncTo(length int64) (fullSync bool, err error) {
	if err := s.f.err(); err != nil {
		return false, err
	}
	return s.File.SyncTo(length)
}

// bookkeeping tells the files in which Pebble writes down which tables there are
// (MANIFEST-…), and which of these files is the current one (marker.…).
func (s failingFS) bookkeeping(name string) bool {
	base := s.PathBase(name)
	return strings.HasPrefix(base, "MANIFEST-") || strings.HasPrefix(base, "marker.")
}

// createConcealing creates a file for bookkeeping, or one in memory if that fails.
func (s failingFS) createConcealing(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	err := s.f.err()
	if err == nil {
		var file vfs.File
		if file, err = s.wrap(s.FS.Create(name, category)); err == nil {
			return concealingFile{file, s.f}, nil
		}
	}
	if err = s.f.conceal(err); err != nil {
		return nil, err
	}
	return vfs.NewMem().Create(s.PathBase(name), category)
}

// concealingFile tells Pebble that writing it has succeeded even where it has
// failed, as soon as Pebble may write in the background. It is for the bookkeeping and for
// directories. The index is marked as failed before, so that every further change
// is refused: in particular no table is removed that the bookkeeping on the disk
// still names. Pebble meanwhile carries on with a state in memory that is
// consistent, which reads need. Nobody takes the lie for durable, since a flush asks
// the failure last.
type concealingFile struct {
	vfs.File
	f *failure
}

// conceal turns the error of a change into the index's failure.
func (f *failure) conceal(err error) error {
	if err == nil || !f.background.Load() {
		return err
	}
	f.set(err)
	return nil
}

func (c concealingFile) Write(p []byte) (int, error) {
	n, err := c.File.Write(p)
	if err = c.f.conceal(err); err == nil {
		n = len(p)
	}
	return n, err
}

func (c concealingFile) WriteAt(p []byte, off int64) (int, error) {
	n, err := c.File.WriteAt(p, off)
	if err = c.f.conceal(err); err == nil {
		n = len(p)
	}
	return n, err
}

func (c concealingFile) Preallocate(offset, length int64) error {
	return c.f.conceal(c.File.Preallocate(offset, length))
}

func (c concealingFile) Sync() error { return c.f.conceal(c.File.Sync()) }

func (c concealingFile) SyncData() error { return c.f.conceal(c.File.SyncData()) }

func (c concealingFile) SyncTo(length int64) (fullSync bool, err error) {
	fullSync, err = c.File.SyncTo(length)
	return fullSync, c.f.conceal(err)
}

func (c concealingFile) Close() error { return c.f.conceal(c.File.Close()) }
