package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// ledger is what the clients of one topic know together: every write that was
// answered, with its place, and every write that was not, which may or may not
// have happened. It decides whether what a node shows later can be true. Keys
// are shared by all clients, so the order of writes to one key is that of the
// offsets. Values are unique.
type ledger struct {
	topic string

	mu     sync.Mutex
	names  []string
	keys   map[string]*account
	places map[place]write // every place that was ever told to a client
	begun  int             // values given out
	count  tally
	faults []string
}

// account is what is known of one key.
type account struct {
	last       write   // the newest write known to have happened; zero: none
	known      bool    // last is one
	open       []write // without an answer, since the last settling
	tombstones int64   // offset of the newest answered deletion; -1: none
}

// write is one record.
type write struct {
	key, value string // value is empty for a deletion
	offset     int64  // unknown (-1) while not answered
}

func (w write) deletes() bool { return w.value == "" }

// tally counts over the whole life of a ledger.
type tally struct {
	acked, cut   int // records answered with 200, records without such an answer
	cutFound     int // of the latter, those that had happened all the same
	reads        int // lookups under load that were answered
	lost, wrong  int
	settledReads int
}

func (t *tally) add(o tally) {
	t.acked += o.acked
	t.cut += o.cut
	t.cutFound += o.cutFound
	t.reads += o.reads
	t.lost += o.lost
	t.wrong += o.wrong
	t.settledReads += o.settledReads
}

func (t tally) String() string {
	return fmt.Sprintf("%d acknowledged writes (%d unanswered, %d of them found), %d lookups under load, %d after restarts: %d lost, %d wrong",
		t.acked, t.cut, t.cutFound, t.reads, t.settledReads, t.lost, t.wrong)
}

func newLedger(topic, prefix string, keys int) *ledger {
	l := &ledger{topic: topic, keys: map[string]*account{}, places: map[place]write{}}
	for i := range keys {
		name := fmt.Sprintf("%s/%d", prefix, i)
		l.names = append(l.names, name)
		l.keys[name] = &account{tombstones: -1}
	}
	return l
}

// lostLocked and wrongLocked note a broken promise: something that is not there,
// and something that cannot be.
func (l *ledger) lostLocked(format string, args ...any) {
	l.count.lost++
	l.faults = append(l.faults, "lost: "+fmt.Sprintf(format, args...))
}

func (l *ledger) wrongLocked(format string, args ...any) {
	l.count.wrong++
	l.faults = append(l.faults, "wrong: "+fmt.Sprintf(format, args...))
}

// report gives what was found wrong so far to the test.
func (l *ledger) report(t testing.TB, when string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, f := range l.faults {
		if i == 10 {
			t.Errorf("%s: and %d more", when, len(l.faults)-i)
			break
		}
		t.Errorf("%s: %s", when, f)
	}
	l.faults = nil
}

// totals are the counts so far.
func (l *ledger) totals() tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// begin draws n writes and opens them.
func (l *ledger) begin(rng *rand.Rand, n int) []write {
	l.mu.Lock()
	defer l.mu.Unlock()
	ws := make([]write, n)
	for i := range ws {
		ws[i] = write{key: l.names[rng.IntN(len(l.names))], offset: -1}
		if rng.IntN(4) != 0 {
			l.begun++
			ws[i].value = fmt.Sprintf("%s=%d %s", ws[i].key, l.begun, strings.Repeat("v", rng.IntN(400)))
		}
		a := l.keys[ws[i].key]
		a.open = append(a.open, ws[i])
	}
	return ws
}

// cut leaves ws open: there was no answer, or one that leaves it open.
func (l *ledger) cut(ws []write) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count.cut += len(ws)
}

// acked closes ws, whose records are at the given places.
func (l *ledger) acked(ws []write, at []place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, w := range ws {
		w.offset = at[i].offset
		if old, ok := l.places[at[i]]; ok && (old.key != w.key || old.value != w.value) {
			l.wrongLocked("%v was given to %s and again to %s", at[i], old.key, w.key)
		}
		l.places[at[i]] = w
		l.count.acked++
		a := l.keys[w.key]
		for j, o := range a.open {
			if o.value == w.value {
				a.open = slices.Delete(a.open, j, j+1)
				break
			}
		}
		a.happened(w)
	}
}

// happened takes a write with its offset into the account.
func (a *account) happened(w write) {
	if w.deletes() {
		a.tombstones = max(a.tombstones, w.offset)
	}
	if !a.known || w.offset > a.last.offset {
		a.last, a.known = w, true
	}
}

// floor is the newest write of a key that a lookup which begins now must see.
func (l *ledger) floor(key string) (last write, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.keys[key]
	return a.last, a.known
}

// sight is what one lookup showed.
type sight struct {
	found  bool
	value  string
	place  place
	status string // of an answer that is neither a value nor "key not found"
}

func sightOf(a answer) sight {
	if a.status == 404 && a.header.Get("X-Kv-Reason") == "key_not_found" {
		return sight{}
	}
	p, err1 := strconv.ParseInt(a.header.Get("X-Kv-Partition"), 10, 32)
	o, err2 := strconv.ParseInt(a.header.Get("X-Kv-Offset"), 10, 64)
	if a.status != 200 || err1 != nil || err2 != nil {
		return sight{status: a.String()}
	}
	return sight{found: true, value: string(a.body), place: place{int32(p), o}}
}

// read judges a lookup of key under load, which began when last was known to
// have happened. What it showed must stay.
func (l *ledger) read(key string, last write, known bool, s sight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count.reads++
	a := l.keys[key]
	if !s.found {
		deleted := a.tombstones > last.offset || slices.ContainsFunc(a.open, write.deletes)
		if known && !last.deletes() && !deleted {
			l.lostLocked("%s: not found, while offset %d was answered before", key, last.offset)
		}
		return
	}
	l.placedLocked(key, s)
	if known && s.place.offset < last.offset {
		l.wrongLocked("%s: read at offset %d, while offset %d was answered before", key, s.place.offset, last.offset)
	}
	a.happened(write{key, s.value, s.place.offset})
}

// placedLocked checks that the value was written to that key and to that place.
func (l *ledger) placedLocked(key string, s sight) {
	w, ok := l.places[s.place]
	if !ok {
		w = write{key, s.value, s.place.offset}
		if n, _, _ := strings.Cut(strings.TrimPrefix(s.value, key+"="), " "); !strings.HasPrefix(s.value, key+"=") || n == "" {
			l.wrongLocked("%s: value %.40q was never written", key, s.value)
		}
		l.places[s.place] = w
	}
	if w.key != key || w.value != s.value {
		l.wrongLocked("%s: %v shows %.40q, was written as %.40q to %s", key, s.place, s.value, w.value, w.key)
	}
}

// settle looks every key up on a node that no client writes to any more. Each
// must be the newest answered write, or an unanswered one that came later; from
// then on it is as it was found.
func (l *ledger) settle(t testing.TB, n *node, when string) {
	t.Helper()
	sights := make(map[string]sight, len(l.names))
	var mu sync.Mutex
	parallel(lookupWorkers, l.names, func(key string) {
		a, err := n.lookup(l.topic, key)
		s := sightOf(a)
		if err != nil {
			s = sight{status: err.Error()}
		}
		mu.Lock()
		defer mu.Unlock()
		sights[key] = s
	})
	l.mu.Lock()
	for _, key := range l.names {
		l.settleKeyLocked(key, sights[key])
	}
	l.mu.Unlock()
	l.report(t, when)
}

func (l *ledger) settleKeyLocked(key string, s sight) {
	l.count.settledReads++
	a := l.keys[key]
	open := a.open
	a.open = nil
	had := "nothing"
	if a.known {
		had = fmt.Sprintf("offset %d, %.40q", a.last.offset, a.last.value)
	}
	switch {
	case s.status != "":
		l.lostLocked("%s: %s, want %s", key, s.status, had)
	case !s.found && (!a.known || a.last.deletes()):
		// Nothing, as before.
	case !s.found && slices.ContainsFunc(open, write.deletes):
		// Its offset is not known, only that it came later.
		l.count.cutFound++
		a.happened(write{key, "", a.last.offset + 1})
	case !s.found:
		l.lostLocked("%s: not found, want %s", key, had)
	case a.known && s.place.offset == a.last.offset && s.value == a.last.value:
		l.placedLocked(key, s)
	case (!a.known || s.place.offset > a.last.offset) && slices.ContainsFunc(open, func(w write) bool { return w.value == s.value }):
		l.count.cutFound++
		l.placedLocked(key, s)
		a.happened(write{key, s.value, s.place.offset})
	default:
		l.wrongLocked("%s: %.40q at %v, want %s or one of %d unanswered writes that came later", key, s.value, s.place, had, len(open))
	}
}

// write makes one request, now and then with several records.
func (l *ledger) write(n *node, rng *rand.Rand) (answer, error) {
	records := 1
	if rng.IntN(6) == 0 {
		records = 2 + rng.IntN(14)
	}
	return l.send(n, l.begin(rng, records))
}

// send makes the request for ws, which were begun, and enters what it brought.
func (l *ledger) send(n *node, ws []write) (answer, error) {
	records := len(ws)
	var a answer
	var err error
	switch w := ws[0]; {
	case records > 1:
		a, err = l.post(n, ws)
	case w.deletes():
		a, err = n.try("DELETE", n.kv(l.topic, w.key), nil, nil)
	default:
		a, err = n.try("PUT", n.kv(l.topic, w.key), nil, []byte(w.value))
	}
	if err != nil || a.status != 200 {
		l.cut(ws)
		return a, err
	}
	taken, at := ws, make([]place, records)
	if records > 1 {
		taken, at, err = answeredPlaces(a, ws)
	} else if s := sightOf(a); s.found {
		at[0] = s.place
	} else {
		err = fmt.Errorf("write answered without a place: %v", a)
	}
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.wrongLocked("%v", err)
		return a, nil
	}
	l.cut(ws[:records-len(taken)])
	l.acked(taken, at)
	return a, nil
}

func (l *ledger) post(n *node, ws []write) (answer, error) {
	records := make([]object, len(ws))
	for i, w := range ws {
		records[i] = object{"key": []byte(w.key), "value": nil}
		if !w.deletes() {
			records[i]["value"] = []byte(w.value)
		}
	}
	return n.try("POST", n.data+"/topics/"+l.topic, http.Header{"Content-Type": {"application/vnd.kafka.binary.v2+json"}}, object{"records": records})
}

// answeredPlaces reads the answer of a produce request for ws, all of whose records
// must have been taken, but for those of a partition that has just gone to another
// node.
func answeredPlaces(a answer, ws []write) (taken []write, at []place, err error) {
	const notHosted = 42101
	var body struct {
		Offsets []struct {
			Partition *int32 `json:"partition"`
			Offset    *int64 `json:"offset"`
			ErrorCode int    `json:"error_code"`
		} `json:"offsets"`
	}
	if err := json.Unmarshal(a.body, &body); err != nil || len(body.Offsets) != len(ws) {
		return nil, nil, fmt.Errorf("produce of %d records: %v %v", len(ws), a, err)
	}
	for i, o := range body.Offsets {
		switch {
		case o.Partition != nil && o.Offset != nil:
			taken, at = append(taken, ws[i]), append(at, place{*o.Partition, *o.Offset})
		case o.ErrorCode != notHosted:
			return nil, nil, fmt.Errorf("produce of %d records: %v", len(ws), a)
		}
	}
	return taken, at, nil
}

// look makes one lookup and judges it. Trouble is for the caller.
func (l *ledger) look(n *node, rng *rand.Rand) (answer, error) {
	key := l.names[rng.IntN(len(l.names))]
	last, known := l.floor(key)
	a, err := n.try("GET", n.kv(l.topic, key), nil, nil)
	if s := sightOf(a); err == nil && s.status == "" {
		l.read(key, last, known, s)
	}
	return a, err
}

// adopt takes a key into the ledger that was not written by it, as a lookup showed
// it; at is nil if there was nothing. Its values from here on are told from what it
// has by how they begin.
func (l *ledger) adopt(key string, at *sight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names = append(l.names, key)
	l.keys[key] = &account{tombstones: -1}
	if at != nil {
		w := write{key, at.value, at.place.offset}
		l.places[at.place] = w
		l.keys[key].happened(w)
	}
}

// live counts the keys that have a value, as far as is known.
func (l *ledger) live() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, a := range l.keys {
		if a.known && !a.last.deletes() {
			n++
		}
	}
	return n
}

// below is the ledger of a node that takes over where the bucket ends: it has
// every answered write below next (by partition), may have unanswered ones, and
// knows nothing of what else its predecessor answered.
func (l *ledger) below(next map[int32]int64) *ledger {
	l.mu.Lock()
	defer l.mu.Unlock()
	heir := newLedger(l.topic, "", 0)
	heir.names, heir.begun = l.names, l.begun+1_000_000 // whose values must differ from here on
	for _, key := range l.names {
		heir.keys[key] = &account{open: slices.Clone(l.keys[key].open), tombstones: -1}
	}
	for at, w := range l.places {
		if at.offset < next[at.partition] {
			heir.places[at] = w
			heir.keys[w.key].happened(w)
		}
	}
	return heir
}

// beyond gives, by partition, the first and last offset from next on that were
// answered to a client: what is on one disk alone.
func (l *ledger) beyond(next map[int32]int64) map[int32][2]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[int32][2]int64{}
	for at := range l.places {
		if at.offset < next[at.partition] {
			continue
		}
		r, ok := out[at.partition]
		if !ok {
			r = [2]int64{at.offset, at.offset}
		}
		out[at.partition] = [2]int64{min(r[0], at.offset), max(r[1], at.offset)}
	}
	return out
}
