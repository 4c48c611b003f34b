package check

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/index"
	"keyhole/locallog"
	"keyhole/record"
)

// replay is a scratch index of the latest record of each key in both tiers,
// tombstones included. It is an index like the real one, whose offsets carry one
// more bit.
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

// set takes down a record. Its offset is above all that were set before.
func (r *replay) set(key []byte, offset int64, tombstone bool) error {
	if offset > math.MaxInt64/2 {
		return fmt.Errorf("offset %d is beyond what can be checked", offset)
	}
	v := offset << 1
	if tombstone {
		v |= 1
	}
	r.b.Set(key, v)
	if r.b.Len() < replayBatch {
		return nil
	}
	return r.commit()
}

func (r *replay) commit() error {
	r.n++
	return r.b.Commit(index.Position{NextLog: r.n, NextKafka: r.n})
}

// segment takes down the keys of a remote segment, each once, where nothing
// newer is known.
func (r *replay) segment(keys func(fn func(key []byte, offset int64, tombstone bool) error) error) error {
	if err := r.commit(); err != nil {
		return err
	}
	err := keys(func(key []byte, offset int64, tombstone bool) error {
		have, ok, err := r.ix.Get(key)
		if err != nil || ok && have>>1 >= offset {
			return err
		}
		return r.set(key, offset, tombstone)
	})
	if err != nil {
		return err
	}
	return r.commit()
}

// state is where a key's latest record is; offset -1: nowhere.
type state struct {
	offset    int64
	tombstone bool
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

// compareKeys calls differ for every key whose entry in the index is not what
// the replay has; have is the entry's offset, -1 for none.
func compareKeys(r *replay, ix *index.Index, differ func(key []byte, want state, have int64)) (keys int64, err error) {
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
			key, w = want.key, state{want.offset >> 1, want.offset&1 != 0}
		}
		if order >= 0 {
			h = have.offset
			keys++
		}
		if live := w.offset >= 0 && !w.tombstone; live && h != w.offset || !live && h >= 0 {
			differ(key, w, h)
		}
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

// maxKeys is how many keys of one partition are named; the others are counted.
const maxKeys = 20

// compare holds the index against what both tiers have.
func (p *part) compare() error {
	v := p.log
	if p.index == nil || v == nil || v.Broken || p.discard {
		return nil
	}
	dir, at := p.path(indexDir), p.index.Applied()
	if at.NextLog > v.NextLog || at.NextKafka > v.HighWatermark {
		severity, lost := Note, ""
		if end := max(v.HighWatermark, p.remoteNext()); at.NextKafka > end {
			severity, lost = Damage, fmt.Sprintf("; acknowledged records are gone, offsets %d to %d", end, at.NextKafka-1)
		}
		p.c.report(severity, Local, dir, 0, "the index was applied through offset %d and the local log ends at %d, so that the next start builds it anew%s",
			at.NextKafka-1, v.HighWatermark-1, lost)
		return nil
	}
	// The next start replays from here on, whatever the entries say.
	from := at.NextKafka
	if at.NextLog == 0 {
		from = min(from, v.LocalStart)
	}
	if from < v.HighWatermark {
		p.c.report(Note, Local, dir, 0, "the index is applied through offset %d; the next start adds the records up to %d", at.NextKafka-1, v.HighWatermark-1)
	}
	unread := p.unreadable()
	wrong := 0
	keys, err := compareKeys(p.replay, p.index, func(key []byte, want state, have int64) {
		switch {
		case want.offset >= from:
			return
		case have >= 0 && holds(unread, have):
			return // nobody can tell, and the offsets were reported
		case have < 0 && reaches(unread, want.offset):
			return // the tombstone may be among them
		}
		if wrong++; wrong > maxKeys {
			return
		}
		p.c.report(Damage, Local, dir, 0, "key %s: %s", quote(key), explain(want, have))
	})
	p.c.sum.Keys += keys
	if wrong > maxKeys {
		p.c.report(Damage, Local, dir, 0, "%d more keys like these; remove the folder, and the next start builds the index anew", wrong-maxKeys)
	}
	if errors.Is(err, errScratch) || !errors.Is(err, record.ErrCorrupt) {
		return err
	}
	if err := p.c.corrupt(Local, dir, err); err != nil {
		return err
	}
	p.c.report(Note, Local, dir, 0, "once a lookup meets the damage, the index is built anew; the folder may be removed instead")
	return nil
}

func explain(want state, have int64) string {
	switch {
	case want.offset < 0:
		return fmt.Sprintf("the index says offset %d, and no record has this key", have)
	case want.tombstone:
		return fmt.Sprintf("the index says offset %d, and the key was deleted at %d", have, want.offset)
	case have < 0:
		return fmt.Sprintf("not in the index, and its latest record is at offset %d", want.offset)
	}
	return fmt.Sprintf("the index says offset %d, and its latest record is at %d", have, want.offset)
}

// quote shows the beginning of a key.
func quote(key []byte) string {
	const most = 64
	if len(key) > most {
		return fmt.Sprintf("%q… (%d bytes)", key[:most], len(key))
	}
	return fmt.Sprintf("%q", key)
}

// unreadable are the offsets that neither tier can give. Those at or above the
// local start are the local log's, those below it the bucket's; a segment of the
// bucket stands in for the log.
func (p *part) unreadable() []locallog.Range {
	out := slices.Clone(p.unread)
	for _, r := range p.log.Unreadable {
		if !slices.ContainsFunc(p.remoteOK, func(ok locallog.Range) bool { return ok.From <= r.From && r.Next <= ok.Next }) {
			out = append(out, r)
		}
	}
	for _, r := range p.remoteBad {
		if r.Next = min(r.Next, p.log.LocalStart); r.From < r.Next {
			out = append(out, r)
		}
	}
	return out
}

// reaches reports whether a range has an offset above the given one.
func reaches(ranges []locallog.Range, offset int64) bool {
	for _, r := range ranges {
		if r.Next > offset+1 && r.From < r.Next {
			return true
		}
	}
	return false
}
