package index

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/fsync"
)

var (
	// ErrClosed is the answer of every method after Close.
	ErrClosed = errors.New("index: closed")
	// ErrLocked says that another process, or another part of this one, has the
	// index open. Nothing has been changed.
	ErrLocked = errors.New("index: in use by another process")
	// ErrFailed says that a write failed earlier, and wraps why. The index takes
	// no more commits. Once the cause is gone, closing and opening it again brings
	// it back to what was durable, and its owner replays the rest.
	ErrFailed = errors.New("index: failed")
	// ErrInvalid says that a negative offset or position was given.
	ErrInvalid = errors.New("index: negative offset")
)

// Position says through where the log has been applied. All numbers are
// exclusive: every record below the first two is reflected in the entries.
type Position struct {
	NextLog   int64 // log offset
	NextKafka int64 // Kafka offset
	// SyncedLog is the log offset below which the log itself was on disk for
	// good when this was committed; at most NextLog.
	SyncedLog int64
}

// Proven is how far the log must reach on disk, or some of it was lost since: what
// lies behind may be what a crash has left of writes that were not synced. The
// Kafka offset is 0 if it is not known for that place.
func (p Position) Proven() (nextLog, nextKafka int64) {
	if p.SyncedLog < p.NextLog {
		return p.SyncedLog, 0
	}
	return p.SyncedLog, p.NextKafka
}

// Options say where an index is and what it shares with others.
type Options struct {
	FS     vfs.FS       // nil: the file system of the operating system
	Shared *Shared      // must outlive the index
	Logger *slog.Logger // Pebble's messages, at level debug; nil: none
	// ReadOnly leaves everything on disk as it is and takes no lock; the caller
	// sees to it that nobody else has the index open. Commits fail. Where there is
	// no directory, Open gives fs.ErrNotExist.
	ReadOnly bool
}

// Index is an open index. It is safe for parallel use, but for its batches.
type Index struct {
	dir     string
	shared  *Shared
	db      *pebble.DB
	lock    *pebble.Lock
	gate    gate
	failure *failure
	sched   *scheduler
	stall   stall
	tables  tableCounts

	commit    sync.Mutex // serializes commits, and flushes with them
	memTables int64      // bytes, as told to shared; guarded by commit

	pos struct {
		sync.Mutex
		applied, durable Position
		// commits counts the commits, durableAt is its value as of durable. They
		// order positions, because a position may be set back.
		commits, durableAt uint64
	}

	closing  sync.Once
	closeErr error
}

// Open opens the index in dir, creating it where there is none. Besides
// file-system errors it returns ErrLocked, and record.ErrCorrupt if what is there
// cannot be used: the owner then calls Remove and rebuilds.
func Open(dir string, o Options) (*Index, error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.ReadOnly {
		if _, err := o.FS.Stat(dir); err != nil {
			return nil, fmt.Errorf("index: %w", err)
		}
		o.FS = unlockedFS{o.FS}
	}
	lock, err := lockDir(o.FS, dir)
	if err != nil {
		return nil, err
	}
	x := &Index{
		dir:     dir,
		shared:  o.Shared,
		lock:    lock,
		failure: newFailure(),
	}
	x.sched = o.Shared.limiter.newScheduler(func() { x.failure.background.Store(true) })
	x.failure.stop = x.sched.stop
	x.gate.init()
	x.stall.init()
	x.tables.changed.Store(true)
	if x.db, err = x.openDB(o); err != nil {
		x.sched.stop()
		return nil, errors.Join(err, lock.Close())
	}
	err = x.failure.err() // a write that has been concealed
	if err == nil {
		err = x.loadPosition()
	}
	if err != nil {
		return nil, errors.Join(err, x.db.Close(), lock.Close())
	}
	x.failure.opened.Store(true)
	x.sched.start()
	x.setMemTables(firstMemTable)
	return x, nil
}

// openDB opens the database. Pebble panics over some failed writes while it opens
// one, with the error; it has let go of everything by then.
func (x *Index) openDB(o Options) (db *pebble.DB, err error) {
	defer func() {
		if p := recover(); p != nil {
			cause, ok := p.(error)
			if !ok {
				cause = fmt.Errorf("panic: %v", p)
			}
			db, err = nil, x.openError(cause)
		}
	}()
	db, err = pebble.Open(x.dir, x.options(o))
	if err != nil {
		return nil, x.openError(err)
	}
	return db, nil
}

// loadPosition reads the position that the tables hold.
func (x *Index) loadPosition() error {
	value, closer, err := x.db.Get(positionKey)
	if errors.Is(err, pebble.ErrNotFound) {
		return x.checkEmpty()
	}
	if err != nil {
		return x.readError(err)
	}
	defer closer.Close()
	p, err := decodePosition(value)
	if err != nil {
		return x.corrupt(err)
	}
	x.pos.applied, x.pos.durable = p, p
	return nil
}

// checkEmpty is for a database without a position: it has never been committed
// to, so that any entry in it is damage.
func (x *Index) checkEmpty() error {
	it, err := x.db.NewIter(nil)
	if err != nil {
		return x.readError(err)
	}
	found := it.First()
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		return x.readError(err)
	}
	if found {
		return x.corrupt(errors.New("entries without a position"))
	}
	return nil
}

// keyBuffers keep Get from allocating: a key that is passed to Pebble escapes.
var keyBuffers = sync.Pool{New: func() any { return new([]byte) }}

// Get returns the offset of key's latest record, or false if the key has none
// below Applied. It is safe while commits, flushes and compactions run. Errors:
// record.ErrCorrupt, ErrClosed, or what the file system says.
func (x *Index) Get(key []byte) (offset int64, ok bool, err error) {
	if !x.gate.enter() {
		return 0, false, ErrClosed
	}
	defer x.gate.leave()
	return x.get(x.db, key)
}

func (x *Index) get(r pebble.Reader, key []byte) (offset int64, ok bool, err error) {
	buf := keyBuffers.Get().(*[]byte)
	*buf = append(append((*buf)[:0], entryPrefix), key...)
	value, closer, err := r.Get(*buf)
	keyBuffers.Put(buf)
	if err != nil {
		if errors.Is(err, pebble.ErrNotFound) {
			return 0, false, nil
		}
		return 0, false, x.readError(err)
	}
	offset, err = decodeOffset(value)
	if closeErr := closer.Close(); err == nil && closeErr != nil {
		return 0, false, x.readError(closeErr)
	}
	if err != nil {
		return 0, false, x.corrupt(err)
	}
	return offset, true, nil
}

// Scan calls fn for each entry in the order of the keys' bytes, as of the moment
// it begins, until fn returns an error, which it returns. The key is valid during
// the call only. fn may use the index, but for Close.
func (x *Index) Scan(fn func(key []byte, offset int64) error) error {
	if !x.gate.enter() {
		return ErrClosed
	}
	defer x.gate.leave()
	return x.scan(x.db, func() error {
		if x.gate.closing() {
			return ErrClosed
		}
		return nil
	}, fn)
}

// scan asks stop before each entry whether to go on.
func (x *Index) scan(r pebble.Reader, stop func() error, fn func(key []byte, offset int64) error) (err error) {
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: []byte{entryPrefix}})
	if err != nil {
		return x.readError(err)
	}
	defer func() {
		if closeErr := it.Close(); err == nil && closeErr != nil {
			err = x.readError(closeErr)
		}
	}()
	for valid := it.First(); valid; valid = it.Next() {
		if err := stop(); err != nil {
			return err
		}
		value, err := it.ValueAndErr()
		if err != nil {
			return x.readError(err)
		}
		key := it.Key()
		offset, err := decodeOffset(value)
		if err != nil || key[0] != entryPrefix {
			return x.corrupt(errOffset)
		}
		if err := fn(key[1:], offset); err != nil {
			return err
		}
	}
	if err := it.Error(); err != nil {
		return x.readError(err)
	}
	return nil
}

// Applied returns the position of the last commit. Whoever has seen it sees every
// entry below it.
func (x *Index) Applied() Position {
	x.pos.Lock()
	defer x.pos.Unlock()
	return x.pos.applied
}

// Durable returns a position that no crash takes back. It moves with Flush and
// Close; Pebble may have made more durable on its own.
func (x *Index) Durable() Position {
	x.pos.Lock()
	defer x.pos.Unlock()
	return x.pos.durable
}

// Err returns the failure after which the index takes no more commits, or nil.
func (x *Index) Err() error { return x.failure.err() }

// Failed is closed once Err is not nil. Whoever owns the index closes it then,
// also if nobody uses it: Pebble reads the properties of all tables when it opens
// them, and goes on trying, as fast as it can, where one is damaged.
func (x *Index) Failed() <-chan struct{} { return x.failure.failed }

// Close makes everything durable, unless the index has failed, and closes it. It
// waits for the calls that are under way, and for open snapshots, whose reads fail
// from then on. Later calls return the same result.
func (x *Index) Close() error {
	x.closing.Do(func() {
		x.gate.close()
		err := x.flush(context.Background())
		x.failure.release()
		x.closeErr = errors.Join(err, x.closeDB())
	})
	return x.closeErr
}

func (x *Index) closeDB() error {
	err := errors.Join(x.db.Close(), x.lock.Close())
	x.setMemTables(0)
	if err != nil {
		return fmt.Errorf("index: close %s: %w", x.dir, err)
	}
	return nil
}

// Remove deletes the index in dir for good: once it has returned, no crash brings
// anything of it back. It is no error if there is none. ErrLocked if it is open.
func Remove(fsys vfs.FS, dir string) error {
	if fsys == nil {
		fsys = vfs.Default
	}
	if _, err := fsys.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("index: %w", err)
	}
	lock, err := lockDir(fsys, dir)
	if err != nil {
		return err
	}
	err = fsys.RemoveAll(dir)
	if err = errors.Join(err, lock.Close()); err != nil {
		return fmt.Errorf("index: remove %s: %w", dir, err)
	}
	return fsync.Dir(fsys, fsys.PathDir(dir))
}
