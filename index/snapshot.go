package index

import (
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// Snapshot is an index as it was after one commit, whatever is committed later. It
// is safe for parallel use. It must be closed, and soon: for as long as it is open,
// entries that are overwritten stay on the disk, and Close of the index waits.
type Snapshot struct {
	x       *Index
	db      *pebble.Snapshot
	applied Position
	gate    gate // those who read; Close waits for them

	closing  sync.Once
	closeErr error
}

// Snapshot returns the index as of the last commit. Errors: ErrFailed, ErrClosed.
func (x *Index) Snapshot() (*Snapshot, error) {
	if !x.gate.enter() { // until the snapshot is closed
		return nil, ErrClosed
	}
	if err := x.failure.err(); err != nil {
		x.gate.leave()
		return nil, err
	}
	s := &Snapshot{x: x}
	s.gate.init()
	x.commit.Lock() // entries and position are of one commit
	s.db = x.db.NewSnapshot()
	s.applied = x.Applied()
	x.commit.Unlock()
	return s, nil
}

// Applied returns the position of the snapshot: every record below it is reflected
// in what Get and Scan say, none at or above it is.
func (s *Snapshot) Applied() Position { return s.applied }

// Get returns the offset of key's latest record below Applied, or false if it has
// none. Errors: record.ErrCorrupt; ErrFailed once the index has failed, which other
// readers of it need not mind, but whoever decides by a snapshot what may be deleted
// does; ErrClosed once the snapshot is closed or Close of the index waits for it; or
// what the file system says.
func (s *Snapshot) Get(key []byte) (offset int64, ok bool, err error) {
	if !s.gate.enter() {
		return 0, false, ErrClosed
	}
	defer s.gate.leave()
	if err := s.err(); err != nil {
		return 0, false, err
	}
	return s.x.get(s.db, key)
}

// Scan calls fn for each entry in the order of the keys' bytes, until fn returns an
// error, which it returns. The key is valid during the call only. fn may use the
// snapshot and the index, but for their Close. Errors are those of Get.
func (s *Snapshot) Scan(fn func(key []byte, offset int64) error) error {
	if !s.gate.enter() {
		return ErrClosed
	}
	defer s.gate.leave()
	if err := s.err(); err != nil {
		return err
	}
	return s.x.scan(s.db, s.err, fn)
}

// err says why the snapshot should not be read any more.
func (s *Snapshot) err() error {
	if s.gate.closing() || s.x.gate.closing() {
		return ErrClosed
	}
	return s.x.failure.err()
}

// Close lets go of the snapshot. It waits for the calls that are under way. Later
// calls return the same result.
func (s *Snapshot) Close() error {
	s.closing.Do(func() {
		s.gate.close()
		s.closeErr = s.db.Close()
		s.x.gate.leave()
	})
	return s.closeErr
}
