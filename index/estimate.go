package index

import (
	"bytes"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// tableCounts estimates the number of keys from what tables say about themselves
// and what has been committed since.
type tableCounts struct {
	changed atomic.Bool  // the set of tables is not the one that inTables counts
	pending atomic.Int64 // keys set less keys deleted that may be in no table yet
	begun   atomic.Int64 // pending when the running flush began

	mu       sync.Mutex
	inTables int64
}

func (t *tableCounts) committed(n int64) { t.pending.Add(n) }

func (t *tableCounts) flushBegin() { t.begun.Store(t.pending.Load()) }

func (t *tableCounts) flushEnd(err error) {
	if err == nil {
		t.pending.Add(-t.begun.Load())
	}
	t.changed.Store(true)
}

// EstimatedKeys returns about how many keys the index holds, in time that depends
// on the number of tables at most. It is exact while no key has been set twice or
// deleted. A key that is overwritten counts twice until a compaction meets both
// entries; a deletion of a key that is not there counts as one key less for as
// long. After Close it is 0.
func (x *Index) EstimatedKeys() int64 {
	if !x.gate.enter() {
		return 0
	}
	defer x.gate.leave()
	t := &x.tables
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.changed.Swap(false) {
		if n, err := x.countTables(); err == nil {
			t.inTables = n
		} else {
			t.changed.Store(true) // the old number has to do; try again next time
		}
	}
	return max(0, t.inTables+t.pending.Load())
}

func (x *Index) countTables() (int64, error) {
	levels, err := x.db.SSTables(pebble.WithProperties())
	if err != nil {
		return 0, err
	}
	var n int64
	for _, level := range levels {
		for _, table := range level {
			// A deletion is an entry that takes another one away.
			n += int64(table.Properties.NumEntries) - 2*int64(table.Properties.NumDeletions)
			if bytes.Equal(table.Smallest.UserKey, positionKey) {
				n--
			}
		}
	}
	return n, nil
}

// DiskBytes returns the size of the index's files, those included that wait to be
// deleted. After Close it is 0.
func (x *Index) DiskBytes() int64 {
	if !x.gate.enter() {
		return 0
	}
	defer x.gate.leave()
	return int64(x.db.Metrics().DiskSpaceUsage())
}
