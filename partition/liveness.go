package partition

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"

	"keyhole/index"
	"keyhole/locallog"
	"keyhole/record"
)

// maxRecent bounds how many records behind the bound are taken down before a
// compaction gives up: there is too much that the bucket does not have yet. It is
// some 64 MiB.
const maxRecent = 4 << 20

const (
	// maxNotedBytes bounds the memory for the keys of a group that are taken down:
	// deleted ones, and ones with records behind the bound. What is beyond it stays
	// for another time. notedOverhead is what one takes beside its bytes.
	maxNotedBytes = 128 << 20
	notedOverhead = 64
)

var errBacklog = errors.New("too many records are not in the bucket yet")

// liveness says which records below a bound are alive, judged by an index
// snapshot and by nothing that comes later.
//
//	      bound                applied
//	────────┼──────────────────────┼──►
//	 judged │ recent: keys here may │ not in the snapshot
//	        │ have another latest   │
//	        │ record below the bound│
//
// A record is dead if a newer one of its key lies below the bound. The bound is
// where the bucket ends, or will end with the next manifest: what a reader of the
// bucket alone can see must be right without anything from behind it. For a key
// with records behind the bound the index does not tell which record below it is
// the latest; of such a key the last record within the group that is being
// rewritten stays.
type liveness struct {
	at     *index.Snapshot
	bound  int64 // Kafka offset, exclusive
	seed   maphash.Seed
	recent map[uint64]struct{} // hashes of keys; one too many only keeps a record longer
	// group has what the index does not tell about the keys of the group in hand.
	group map[string]fate
	noted int64 // bytes of the keys in group, about
}

// fate is the last record of a key within the group in hand.
type fate struct {
	last      int64
	tombstone bool
	goes      bool // it is a tombstone that hides nothing any more
}

// newLiveness takes a snapshot of the index and reads what the log has behind
// bound, calling progress for each batch. The caller closes it.
func newLiveness(ctx context.Context, v *view, bound int64, progress func()) (*liveness, error) {
	at, err := v.ix.Snapshot()
	if err != nil {
		return nil, err
	}
	l := &liveness{at: at, bound: min(bound, at.Applied().NextKafka), seed: maphash.MakeSeed(), recent: make(map[uint64]struct{})}
	if err := l.readRecent(ctx, v.log, progress); err != nil {
		l.close()
		return nil, fmt.Errorf("read what is not in the bucket yet: %w", err)
	}
	return l, nil
}

func (l *liveness) close() { l.at.Close() }

// readRecent takes down the keys of all records from bound on.
func (l *liveness) readRecent(ctx context.Context, log *locallog.Log, progress func()) error {
	if l.bound >= l.at.Applied().NextKafka {
		return nil
	}
	r := readers.Get().(*record.Reader)
	defer readers.Put(r)
	return log.Scan(ctx, replayStart(log, index.Position{NextKafka: l.bound}), func(a locallog.Appended) error {
		progress()
		if err := r.Reset(a.Batch, maxUncompressed); err != nil {
			return err
		}
		h := r.Header()
		if h.IsControl() || a.KafkaBase+int64(h.LastOffsetDelta) < l.bound {
			return nil
		}
		for r.Next() {
			if rec := r.Record(); rec.Key != nil {
				l.recent[l.hash(rec.Key)] = struct{}{}
			}
		}
		if len(l.recent) > maxRecent {
			return errBacklog
		}
		return r.Err()
	})
}

func (l *liveness) hash(key []byte) uint64 { return maphash.Bytes(l.seed, key) }

func (l *liveness) isRecent(key []byte) bool {
	if len(l.recent) == 0 {
		return false
	}
	_, ok := l.recent[l.hash(key)]
	return ok
}

// begin starts a new group.
func (l *liveness) begin() { l.group, l.noted = make(map[string]fate), 0 }

// note takes down a record of the group, or the last one of its key in a part of
// the group; they come in the order of their offsets. What the index tells about is
// left out.
func (l *liveness) note(key []byte, offset int64, tombstone bool) error {
	if _, ok := l.group[string(key)]; !ok {
		if l.noted > maxNotedBytes || !tombstone && !l.isRecent(key) {
			return nil
		}
		if !l.isRecent(key) {
			if _, ok, err := l.at.Get(key); err != nil || ok {
				return err
			}
		}
	}
	before := len(l.group)
	l.group[string(key)] = fate{last: offset, tombstone: tombstone}
	if len(l.group) > before {
		l.noted += int64(len(key)) + notedOverhead
	}
	return nil
}

// deleted calls fn with the keys whose last record in the group is a tombstone that
// may be the latest record of its key. If fn says so, the tombstone goes.
func (l *liveness) deleted(fn func(key string, offset int64) bool) {
	for key, f := range l.group {
		if f.tombstone && !l.isRecent([]byte(key)) && fn(key, f.last) {
			f.goes = true
			l.group[key] = f
		}
	}
}

// keep reports whether a record of the group stays. All of them were noted before.
func (l *liveness) keep(key []byte, offset int64, tombstone bool) (bool, error) {
	if offset >= l.bound {
		return true, nil
	}
	if f, ok := l.group[string(key)]; ok {
		// A recent key, or a deleted one: only its last record is left, if that.
		return offset >= f.last && !f.goes && (tombstone || l.isRecent(key)), nil
	}
	if l.isRecent(key) {
		return true, nil // it was not noted, for want of room
	}
	latest, ok, err := l.at.Get(key)
	switch {
	case err != nil:
		return false, err
	case !ok:
		// A value was deleted later. A tombstone was not noted, for want of room.
		return tombstone, nil
	}
	// An entry older than the record could only be one of an index that lags.
	return latest <= offset, nil
}
