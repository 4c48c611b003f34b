package check

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"math"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/index"
)

// replay is a scratch index of the latest record of each key in both tiers,
// tombstones included. It is an index like the real one, whose offsets carry a few
// more bits.
type replay struct {
	fs  vfs.FS
	dir string
	ix  *index.Index
	b   *index.Batch
	n   int64 // commits
}

// replayBatch bounds the entries of one commit.
const replayBatch = 16 << 10

// newReplay makes an empty one in a folder of its own below dir.
func newReplay(fs vfs.FS, dir string, shared *index.Shared) (*replay, error) {
	dir = fs.PathJoin(dir, "replay")
	if err := fs.RemoveAll(dir); err != nil {
		return nil, err
	}
	ix, err := index.Open(dir, index.Options{FS: fs, Shared: shared})
	if err != nil {
		return nil, err
	}
	return &replay{fs: fs, dir: dir, ix: ix, b: ix.NewBatch()}, nil
}

func (r *replay) close() error {
	return errors.Join(r.b.Close(), r.ix.Close(), r.fs.RemoveAll(r.dir))
}

// state is where a key's latest record is; offset -1: nowhere.
type state struct {
	offset    int64
	tombstone bool
	inBucket  bucketHas
}

// live reports whether a lookup finds the key.
func (s state) live() bool { return s.offset >= 0 && !s.tombstone }

// bucketHas says what the bucket, taken alone, has of a key whose latest record in
// both tiers is known.
type bucketHas int64

const (
	nothing        bucketHas = iota
	olderValue               // the last one it has is older, and has a value
	olderTombstone           // the same, a tombstone
	latest                   // that very record
)

// stateBits are below the offset in an entry.
const stateBits = 3

func (s state) entry() int64 {
	v := s.offset<<stateBits | int64(s.inBucket)<<1
	if s.tombstone {
		v |= 1
	}
	return v
}

func stateOf(v int64) state {
	return state{offset: v >> stateBits, inBucket: bucketHas(v >> 1 & 3), tombstone: v&1 != 0}
}

func (r *replay) put(key []byte, s state) error {
	if s.offset > math.MaxInt64>>stateBits {
		return fmt.Errorf("offset %d is beyond what can be checked", s.offset)
	}
	r.b.Set(key, s.entry())
	if r.b.Len() < replayBatch {
		return nil
	}
	return r.commit()
}

// set takes down a record of the local log. Its offset is above all that were set
// before.
func (r *replay) set(key []byte, offset int64, tombstone bool) error {
	return r.put(key, state{offset: offset, tombstone: tombstone})
}

func (r *replay) commit() error {
	r.n++
	return r.b.Commit(index.Position{NextLog: r.n, NextKafka: r.n})
}

// get gives what was committed.
func (r *replay) get(key []byte) (state, error) {
	v, ok, err := r.ix.Get(key)
	if err != nil || !ok {
		return state{offset: -1}, err
	}
	return stateOf(v), nil
}

// bucket takes down the last record of a key in a segment of the bucket. Segments
// come in the order of their offsets, after all of the local log, and each key once
// per segment.
func (r *replay) bucket(key []byte, have state, offset int64, tombstone bool) error {
	switch {
	case have.offset < offset:
		have = state{offset: offset, tombstone: tombstone, inBucket: latest}
	case have.offset == offset:
		have.inBucket = latest
	case tombstone:
		have.inBucket = olderTombstone
	default:
		have.inBucket = olderValue
	}
	return r.put(key, have)
}

var (
	errEnough  = errors.New("enough")
	errScratch = errors.New("scratch index")
)

// scan is the entries of an index in the order of their keys; the last item may
// be an error. A key is valid until the next step.
func scan(ix *index.Index) iter.Seq2[entry, error] {
	return func(yield func(entry, error) bool) {
		err := ix.Scan(func(key []byte, offset int64) error {
			if !yield(entry{key, offset}, nil) {
				return errEnough
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			yield(entry{}, err)
		}
	}
}

type entry struct {
	key    []byte
	offset int64
}

// cursor steps through a scan.
type cursor struct {
	entry
	ok   bool
	next func() (entry, error, bool)
	stop func()
}

func newCursor(ix *index.Index) (*cursor, error) {
	c := &cursor{}
	c.next, c.stop = iter.Pull2(scan(ix))
	return c, c.step()
}

func (c *cursor) step() (err error) {
	c.entry, err, c.ok = c.next()
	return err
}

// compareKeys calls judge for every key of the replay or of the index, in the order
// of their keys; have is the index's offset, -1 for none.
func compareKeys(r *replay, ix *index.Index, judge func(key []byte, want state, have int64)) (keys int64, err error) {
	if err := r.commit(); err != nil {
		return 0, fmt.Errorf("%w: %w", errScratch, err)
	}
	want, err := newCursor(r.ix)
	defer want.stop()
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errScratch, err)
	}
	have, err := newCursor(ix)
	defer have.stop()
	if err != nil {
		return 0, err
	}
	for want.ok || have.ok {
		order := 0
		switch {
		case !have.ok:
			order = -1
		case !want.ok:
			order = 1
		default:
			order = bytes.Compare(want.key, have.key)
		}
		w, h := state{offset: -1}, int64(-1)
		key := have.key
		if order <= 0 {
			key, w = want.key, stateOf(want.offset)
		}
		if order >= 0 {
			h = have.offset
			keys++
		}
		judge(key, w, h)
		if order >= 0 {
			if err := have.step(); err != nil {
				return keys, err
			}
		}
		if order <= 0 {
			if err := want.step(); err != nil {
				return keys, fmt.Errorf("%w: %w", errScratch, err)
			}
		}
	}
	return keys, nil
}
