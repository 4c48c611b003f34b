package locallog

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/fsync"
)

const (
	logSuffix   = ".log"
	indexSuffix = ".index"
	tempSuffix  = ".tmp"
	// compactSuffix is that of a segment's compacted file before it is in place. It
	// is a name of its own, because the segment's other temporary files are written
	// with the token held, and this one is not.
	compactSuffix = ".compact" + tempSuffix

	stopFile     = "clean-stop"
	truncateFile = "truncating"

	baseDigits = 20

	// pooledBytes is the largest buffer that is kept for reuse.
	pooledBytes = 1 << 20
)

// segmentName is the file name of a segment without suffix.
func segmentName(baseLog int64, epoch int32) string {
	return fmt.Sprintf("%0*d-%d", baseDigits, baseLog, epoch)
}

// parseSegmentName is the inverse of segmentName; it takes no other spelling.
func parseSegmentName(name string) (baseLog int64, epoch int32, ok bool) {
	base, rest, found := strings.Cut(name, "-")
	if !found || len(base) != baseDigits {
		return 0, 0, false
	}
	b, err1 := strconv.ParseInt(base, 10, 64)
	e, err2 := strconv.ParseInt(rest, 10, 32)
	if err1 != nil || err2 != nil || b < 0 || segmentName(b, int32(e)) != name {
		return 0, 0, false
	}
	return b, int32(e), true
}

// directory is the folder of one log, and what all its segments share.
type directory struct {
	fs      vfs.FS
	path    string
	logger  *slog.Logger
	buffers sync.Pool // of *[]byte
}

func (d *directory) join(name string) string { return d.fs.PathJoin(d.path, name) }

// make creates the folder and the missing ones above it, each of them durably.
func (d *directory) make(path string) error {
	if _, err := d.fs.Stat(path); err == nil {
		return nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("look up log directory: %w", err)
	}
	parent := d.fs.PathDir(path)
	if parent != path {
		if err := d.make(parent); err != nil {
			return err
		}
	}
	if err := d.fs.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("make log directory: %w", err)
	}
	return fsync.Dir(d.fs, parent)
}

// sync makes creations, renames and removals in the folder durable.
func (d *directory) sync() error { return fsync.Dir(d.fs, d.path) }

// write puts a whole file in place: temporary file, sync, rename. The name is
// durable only after the directory is synced too. A file under its final name
// is therefore never half written.
func (d *directory) write(name string, data []byte) error {
	return d.writeFrom(name, func(f vfs.File) error {
		n, err := f.Write(data)
		if err == nil && n < len(data) {
			err = io.ErrShortWrite
		}
		return err
	})
}

func (d *directory) writeFrom(name string, fill func(vfs.File) error) error {
	temp := d.join(name + tempSuffix)
	f, err := d.fs.Create(temp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	err = fill(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = d.fs.Rename(temp, d.join(name))
	}
	if err != nil {
		_ = d.fs.Remove(temp) // on a full disk it takes room; the next Open removes it, too
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// read gives the content of a small file, at most limit bytes of it; nil if
// there is no such file.
func (d *directory) read(name string, limit int64) ([]byte, error) {
	f, err := d.fs.Open(d.join(name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	b, err := io.ReadAll(io.LimitReader(f, limit))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return b, nil
}

// removeDurably removes files, of which any may be absent, and syncs the folder.
func (d *directory) removeDurably(names ...string) error {
	for _, name := range names {
		if err := d.remove(name); err != nil {
			return err
		}
	}
	return d.sync()
}

func (d *directory) remove(name string) error {
	if err := d.fs.Remove(d.join(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}

// errUnsynced says that something was changed and could not be synced.
var errUnsynced = errors.New("not synced")

// cut shortens a file to size bytes, durably. Nobody may read it behind that.
// Where the file system gives no descriptor, the part that stays is copied, and
// whoever has the file open keeps the old one. An error that is not errUnsynced
// leaves the file as it was.
func (d *directory) cut(name string, size int64) error {
	f, err := d.fs.OpenReadWrite(d.join(name), vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("open %s to cut it: %w", name, err)
	}
	defer f.Close()
	if f.Fd() != vfs.InvalidFd && truncateFd(f.Fd(), size) == nil {
		if err := f.Sync(); err != nil {
			return fmt.Errorf("%w: %s after a cut: %w", errUnsynced, name, err)
		}
		return nil
	}
	err = d.writeFrom(name, func(out vfs.File) error {
		return copyExactly(out, f, size)
	})
	if err != nil {
		return err
	}
	if err := d.sync(); err != nil {
		return fmt.Errorf("%w: %w", errUnsynced, err)
	}
	return nil
}

// copyExactly copies the first size bytes of a file.
func copyExactly(out io.Writer, in io.ReaderAt, size int64) error {
	n, err := io.Copy(out, io.NewSectionReader(in, 0, size))
	if err == nil && n < size {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// buffer lends a byte slice of length 0; giveBack returns it.
func (d *directory) buffer() *[]byte {
	if b, ok := d.buffers.Get().(*[]byte); ok {
		return b
	}
	return new([]byte)
}

func (d *directory) giveBack(b *[]byte) {
	if b != nil && cap(*b) <= pooledBytes {
		*b = (*b)[:0]
		d.buffers.Put(b)
	}
}
