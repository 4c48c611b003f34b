package modeltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"keyhole/catalog"
	"keyhole/objstore/objstoretest"
	"keyhole/partition"
	"keyhole/record"
)

var errNotReady = partition.ErrNotReady

// topicModel is what is true of a topic.
type topicModel struct {
	name  string
	id    string
	props map[string]string // what was set
	parts []*partModel
	// followed says that the replica has had the time to see what is true of it,
	// in fine weather.
	followed bool
}

// partModel is what is true of a partition.
type partModel struct {
	recs   []record.Record  // all that were acknowledged; the index is the offset
	latest map[string]int64 // offset of the newest record of a key, tombstones too
	// durable is an offset below which no crash may take anything.
	durable int64
	start   int64 // the highest local start seen
}

// take adds a record that was acknowledged.
func (p *partModel) take(rec record.Record) {
	p.latest[string(rec.Key)] = int64(len(p.recs))
	p.recs = append(p.recs, rec)
}

func (p *partModel) next() int64 { return int64(len(p.recs)) }

// cut forgets what a crash took.
func (p *partModel) cut(next int64) {
	p.recs = p.recs[:next]
	p.latest = make(map[string]int64)
	for off, rec := range p.recs {
		p.latest[string(rec.Key)] = int64(off)
	}
}

// alive is the lowest offset below end of what a key has now; end if there is none.
func (p *partModel) alive(end int64) int64 {
	for _, off := range p.latest {
		if off < end && p.recs[off].Value != nil {
			end = off
		}
	}
	return end
}

// world is a node and the model of it.
type world struct {
	*node
	rng  *rand.Rand
	cfg  config
	seed uint64

	topics   map[string]*topicModel
	cluster  map[string]any // what was set
	feature  bool
	weather  weather
	unsteady bool              // since the last start or change something may still be on its way
	etags    map[string]string // entity tag → the record it was given for
	tags     map[string]string // the other way round
	replica  *replica          // nil: there has been none
	trace    []string
	steps    int
}

func (w *world) note(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%6d ", w.steps)+fmt.Sprintf(format, args...))
	if n := len(w.trace); n > 40 {
		w.trace = w.trace[n-40:]
	}
}

// report shows how it came to a failure.
func (w *world) report() {
	if !w.t.Failed() {
		return
	}
	w.t.Logf("seed %d, %s; last steps:\n%s", w.seed, w.cfg.name, strings.Join(w.trace, "\n"))
	w.log.mu.Lock()
	defer w.log.mu.Unlock()
	w.t.Logf("last of the log:\n%s", bytes.Join(w.log.lines, nil))
}

// excused reports whether trouble is a right answer now.
func (w *world) excused(err error) bool { return (w.weather != fine || w.unsteady) && trouble(err) }

// flag is a boolean property of a topic or the cluster, as set or by default.
func flag[V any](props map[string]V, name string, byDefault bool) bool {
	if v, ok := props[name]; ok {
		return fmt.Sprint(v) == "true"
	}
	return byDefault
}

func (w *world) indexed(t *topicModel) bool {
	return w.feature && flag(w.cluster, "kv_index_enabled", false) && flag(t.props, "redpanda.kv.index.enabled", false)
}

func (w *world) remoteRead(t *topicModel) bool {
	return w.bucket != nil && flag(w.cluster, "kv_index_remote_read_enabled", false) && flag(t.props, "redpanda.remote.read", true)
}

func (w *world) remoteWrite(t *topicModel) bool {
	return w.bucket != nil && flag(t.props, "redpanda.remote.write", true)
}

func (w *world) flushes(t *topicModel) bool {
	ms, set := t.props["flush.ms"]
	return !set || ms == "0"
}

// topic gives the catalog's topic, or nil if the trouble of the moment hides it.
func (w *world) topic(t *topicModel) *catalog.Topic {
	w.t.Helper()
	got, err := w.c.Topic(t.name)
	if err != nil {
		w.t.Fatalf("topic %s: %v", t.name, err)
	}
	if got.ID() != t.id {
		w.t.Fatalf("topic %s has id %s, want %s", t.name, got.ID(), t.id)
	}
	return got
}

func (w *world) partition(t *topicModel, n int) *partition.Partition {
	w.t.Helper()
	p, err := w.topic(t).Partition(int32(n))
	if err != nil {
		w.t.Fatalf("%s/%d: %v", t.name, n, err)
	}
	return p
}

// reads counts the requests that a lookup could have made.
func (w *world) reads() int {
	if w.bucket == nil {
		return 0
	}
	return w.bucket.Count(objstoretest.OpReadRange, objstoretest.OpGet, objstoretest.OpGetIfChanged)
}

// status checks what must hold of a partition's place in both tiers, and gives
// its local start.
func (w *world) status(t *topicModel, n int) (start int64, open bool) {
	w.t.Helper()
	m, st := t.parts[n], w.partition(t, n).Status()
	if st.HighWatermark == nil {
		if !w.unsteady {
			w.t.Fatalf("%s/%d: log is not open", t.name, n)
		}
		return 0, false
	}
	start = *st.LocalStart
	if *st.HighWatermark != m.next() {
		w.t.Fatalf("%s/%d: high watermark %d, want %d", t.name, n, *st.HighWatermark, m.next())
	}
	if start > m.next() || start < m.start {
		w.t.Fatalf("%s/%d: local start %d, was %d, high watermark %d", t.name, n, start, m.start, m.next())
	}
	m.start = start
	if st.CloudLast != nil {
		m.durable = max(m.durable, *st.CloudLast+1)
		if oldest := m.alive(start); *st.CloudLast+1 < start || oldest < start && *st.CloudStart > oldest {
			w.t.Fatalf("%s/%d: cloud has %d to %d, local start %d", t.name, n, *st.CloudStart, *st.CloudLast, start)
		}
	} else if m.alive(start) < start && !w.unsteady {
		w.t.Fatalf("%s/%d: nothing in the cloud, local start %d", t.name, n, start)
	}
	if st.IndexLastApplied != nil && *st.IndexLastApplied+1 != m.next() {
		w.t.Fatalf("%s/%d: index valid through %d, log ends at %d", t.name, n, *st.IndexLastApplied, m.next()-1)
	}
	return start, true
}

// ask is how a lookup is made.
type ask int

const (
	askGet ask = iota
	askHead
	askMatch // If-None-Match with the current tag
	askWait  // min_position at the end
	askFuture
	numAsks
)

// lookup asks for a key and compares the answer with the model.
func (w *world) lookup(t *topicModel, n int, key string, how ask) {
	w.t.Helper()
	synctest.Wait() // the background work asks the store too
	m, p := t.parts[n], w.partition(t, n)
	off, known := m.latest[key]
	q := partition.Query{}
	switch how {
	case askHead:
		q.ResolveOnly = true
	case askMatch:
		q.Matches = func(at, _ int64) bool { return at == off }
	case askWait:
		q.MinPosition = m.next()
	case askFuture:
		q.MinPosition = m.next() + 1
	}
	start, _ := w.status(t, n)
	before := w.reads()
	ctx, cancel := context.WithTimeout(context.Background(), w.c.LookupTimeout())
	defer cancel()
	res, err := p.Lookup(ctx, []byte(key), q)
	asked := w.reads() - before
	fail := func(format string, args ...any) {
		w.t.Helper()
		w.t.Fatalf("%s/%d %.40q (offset %d, known %v, local start %d, end %d, way %d): %s; got offset %d position %d source %v, %d bytes, %v",
			t.name, n, key, off, known, start, m.next(), how, fmt.Sprintf(format, args...), res.Offset, res.Position, res.Source, len(res.Value), err)
	}
	live := known && m.recs[off].Value != nil
	cold := off < start
	switch {
	case !w.indexed(t):
		if !errors.Is(err, partition.ErrNotIndexed) {
			fail("want not indexed")
		}
	case how == askFuture:
		if !errors.Is(err, partition.ErrPositionNotReached) && !w.excused(err) {
			fail("want position not reached")
		}
	case !live:
		if !errors.Is(err, partition.ErrKeyNotFound) && !w.excused(err) {
			fail("want key not found")
		}
	case cold && !w.remoteRead(t):
		if !errors.Is(err, partition.ErrRemoteReadDisabled) && !w.excused(err) {
			fail("want remote read disabled")
		}
	case err != nil:
		if !w.excused(err) {
			fail("want a hit")
		}
	default:
		w.hit(t, n, off, how, cold, res, fail)
		w.tag(t, n, off, res.Epoch)
	}
	if err == nil || errors.Is(err, partition.ErrKeyNotFound) || errors.Is(err, partition.ErrRemoteReadDisabled) {
		if res.Position != m.next() {
			fail("position differs")
		}
	}
	if free := !live || !cold || how == askHead || how == askMatch || !w.remoteRead(t); free && asked > 0 && !w.unsteady {
		fail("%d requests to the store", asked)
	}
	if asked > 2 && !w.unsteady { // the chunk, and its table if that is not on disk
		fail("%d requests to the store", asked)
	}
}

// hit compares what was found with the record it must be.
func (w *world) hit(t *topicModel, n int, off int64, how ask, cold bool, res partition.Result, fail func(string, ...any)) {
	w.t.Helper()
	want := &t.parts[n].recs[off]
	switch {
	case res.Offset != off:
		fail("wrong offset")
	case cold != (res.Source != partition.SourceLocal):
		fail("wrong source")
	case how == askMatch:
		if !res.NotModified {
			fail("want not modified")
		}
	case how == askHead:
	case !bytes.Equal(res.Value, want.Value):
		fail("wrong value, want %d bytes", len(want.Value))
	case res.Timestamp != want.Timestamp:
		fail("timestamp %d, want %d", res.Timestamp, want.Timestamp)
	case !sameHeaders(res.Headers, want.Headers):
		fail("headers %v, want %v", res.Headers, want.Headers)
	}
}

func sameHeaders(a, b []record.Header) bool {
	return slices.EqualFunc(a, b, func(a, b record.Header) bool {
		return a.Name == b.Name && bytes.Equal(a.Value, b.Value) && (a.Value == nil) == (b.Value == nil)
	})
}

// tag demands that an entity tag never stands for two records, and that a record
// keeps its tag, whoever answers and whatever was compacted or built anew.
func (w *world) tag(t *topicModel, n int, off, epoch int64) {
	w.t.Helper()
	tag, rec := w.topic(t).ETag(int32(n), epoch, off), &t.parts[n].recs[off]
	is := fmt.Sprintf("%s %s/%d at %d: %q = %d bytes, time %d", t.id, t.name, n, off, rec.Key, len(rec.Value), rec.Timestamp)
	if was, ok := w.etags[tag]; ok && was != is {
		w.t.Fatalf("entity tag %s is of %s and was of %s", tag, is, was)
	}
	if was, ok := w.tags[is]; ok && was != tag {
		w.t.Fatalf("entity tag of %s is %s and was %s", is, tag, was)
	}
	w.etags[tag], w.tags[is] = is, tag
}

// verify looks every key up that there ever was, and some that there was not.
func (w *world) verify() {
	w.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(w.topics)) {
		t := w.topics[name]
		for n, p := range t.parts {
			for _, key := range slices.Sorted(maps.Keys(p.latest)) {
				w.lookup(t, n, key, askGet)
			}
			w.lookup(t, n, "never written", askGet)
		}
	}
}

func newWorld(t *testing.T, seed uint64, cfg config) *world {
	w := &world{
		node: newNode(t, seed, !cfg.noStore), rng: rand.New(rand.NewPCG(seed, 0)), cfg: cfg, seed: seed,
		topics: make(map[string]*topicModel), cluster: make(map[string]any), etags: make(map[string]string), tags: make(map[string]string),
	}
	return w
}

// close shows how it came to a failure, if there is one, and ends what runs.
func (w *world) close() {
	w.report()
	if w.replica != nil && w.replica.c != nil {
		_ = w.replica.c.Close(context.Background()) // the test has failed
	}
	if w.c != nil {
		_ = w.c.Close(context.Background()) // the test has failed
	}
}
