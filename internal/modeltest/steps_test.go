package modeltest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing/synctest"
	"time"

	"keyhole/catalog"
	"keyhole/partition"
	"keyhole/record"
)

// step is one kind of random step and how often it comes, in parts of a
// thousand.
type step struct {
	name   string
	weight int
	do     func(w *world)
}

var steps = []step{
	{"produce", 330, (*world).produce},
	{"delete", 50, (*world).remove},
	{"lookup", 420, (*world).lookupAny},
	{"evict", 40, (*world).evict},
	{"trim cache", 20, (*world).trimCache},
	{"switch", 25, (*world).flip},
	{"alter topic", 25, (*world).alterTopic},
	{"alter cluster", 10, (*world).alterCluster},
	{"pass time", 35, (*world).passTime},
	{"weather", 12, (*world).change},
	{"restart", 6, func(w *world) { w.restart("restart", func() {}) }},
	{"crash", 7, (*world).powerCut},
	{"compact", 20, (*world).compact},
	{"collect", 10, (*world).collect},
	{"crash at work", 10, (*world).cutShort},
	{"replica", 35, (*world).askReplica},
	{"lose derived files", 5, (*world).loseDerived},
	{"new disk", 2, (*world).newDisk},
	{"first store", 3, (*world).firstStore},
	{"topic anew", 5, (*world).topicAnew},
	{"storm", 5, (*world).storm},
	{"check", 3, (*world).checkAll},
}

var totalWeight = func() (n int) {
	for _, s := range steps {
		n += s.weight
	}
	return n
}()

// run takes n random steps, then compares everything.
func (w *world) run(n int) {
	w.t.Helper()
	w.start()
	w.switchOn()
	for range n {
		w.steps++
		synctest.Wait()
		at := w.rng.IntN(totalWeight)
		for i := range steps {
			if at -= steps[i].weight; at < 0 {
				steps[i].do(w)
				break
			}
		}
	}
	w.note("end")
	w.checkAll()
	w.stopReplica()
	w.stop()
}

// switchOn sets what the configuration wants of the cluster and switches
// everything on.
func (w *world) switchOn() {
	w.t.Helper()
	w.unsteady = true
	w.feature = true
	maps.Copy(w.cluster, map[string]any{"kv_index_enabled": "true", "kv_index_remote_read_enabled": "true"})
	w.cluster["cloud_storage_gc_grace_ms"] = 60_000
	maps.Copy(w.cluster, w.cfg.cluster)
	if err := w.c.SetFeature(context.Background(), catalog.FeatureIndex, catalog.StateActive); err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.c.AlterCluster(context.Background(), w.cluster, nil); err != nil {
		w.t.Fatal(err)
	}
	w.calm()
}

// calm waits until everything is in order, if the weather lets it be.
func (w *world) calm() {
	w.t.Helper()
	if w.weather == fine {
		w.settle()
		w.unsteady = false
	}
}

// clear makes the weather fine, and waits.
func (w *world) clear() {
	w.t.Helper()
	w.weather = fine
	w.sky.set(fine)
	w.unsteady = true
	w.calm()
}

// pick gives a topic and one of its partitions; a world that has no topic gets
// one.
func (w *world) pick() (*topicModel, int) {
	w.t.Helper()
	for i := range w.cfg.topics {
		if name := fmt.Sprintf("topic-%d", i); w.topics[name] == nil {
			w.create(name)
		}
	}
	names := slices.Sorted(maps.Keys(w.topics))
	if len(names) == 0 {
		return nil, 0
	}
	t := w.topics[names[w.rng.IntN(len(names))]]
	return t, w.rng.IntN(len(t.parts))
}

func (w *world) create(name string) {
	w.t.Helper()
	props := make(map[string]string)
	for _, name := range compactionProps {
		if values := topicValues[name]; w.rng.IntN(2) == 0 {
			props[name] = values[w.rng.IntN(len(values))]
		}
	}
	maps.Copy(props, w.cfg.topic)
	w.createWith(name, 1+w.rng.IntN(w.cfg.partitions), props)
}

func (w *world) createWith(name string, parts int, configs map[string]string) {
	w.t.Helper()
	if w.indexHidden() {
		w.showIndex()
	}
	props := map[string]string{"redpanda.kv.index.enabled": "true"}
	maps.Copy(props, configs)
	w.note("create %s with %d partitions, %v", name, parts, configs)
	got, err := w.c.CreateTopic(context.Background(), name, int32(parts), props)
	if w.weather != fine && errors.Is(err, catalog.ErrBucketUnknown) {
		return
	}
	if err != nil {
		w.t.Fatalf("create %s: %v", name, err)
	}
	t := &topicModel{name: name, id: got.ID(), props: props}
	for range parts {
		t.parts = append(t.parts, &partModel{latest: make(map[string]int64)})
	}
	w.topics[name] = t
	w.unsteady = true
	w.calm()
}

// indexHidden reports whether a switch above the topics hides all indexes.
func (w *world) indexHidden() bool { return !w.feature || !flag(w.cluster, "kv_index_enabled", false) }

func (w *world) showIndex() {
	w.t.Helper()
	w.feature = true
	w.cluster["kv_index_enabled"] = "true"
	if err := w.c.SetFeature(context.Background(), catalog.FeatureIndex, catalog.StateActive); err != nil {
		w.t.Fatal(err)
	}
	w.setCluster("kv_index_enabled", "true")
}

func (w *world) setCluster(name string, value any) {
	w.t.Helper()
	if _, err := w.c.AlterCluster(context.Background(), map[string]any{name: value}, nil); err != nil {
		w.t.Fatalf("set %s: %v", name, err)
	}
	w.cluster[name] = value
}

// key gives a key of the world's few; one of them is empty, one is long.
func (w *world) key() []byte {
	switch i := w.rng.IntN(w.cfg.keys); i {
	case 0:
		return []byte{}
	case 1:
		return fmt.Appendf(nil, "long %02000d", 1)
	default:
		return fmt.Appendf(nil, "key-%d", i)
	}
}

// value makes a value that no other record has, unless it is empty.
func (w *world) value() []byte {
	size := w.rng.IntN(w.cfg.valueBytes + 1)
	switch w.rng.IntN(20) {
	case 0:
		return []byte{}
	case 1:
		size *= 8
	}
	v := make([]byte, size)
	compressible := w.rng.IntN(2) == 0
	for i := range v {
		if compressible {
			v[i] = byte('a' + w.rng.IntN(2))
		} else {
			v[i] = byte(w.rng.Uint32())
		}
	}
	return append(v, strconv.Itoa(w.steps)...)
}

func (w *world) record() record.Record {
	rec := record.Record{Key: w.key(), Value: w.value(), Timestamp: w.rng.Int64N(1 << 41)}
	for range w.rng.IntN(4) * w.rng.IntN(2) {
		h := record.Header{Name: fmt.Sprint("h", w.rng.IntN(3))}
		switch w.rng.IntN(3) {
		case 0:
			h.Value = []byte{}
		case 1:
			h.Value = fmt.Append(nil, w.steps)
		}
		rec.Headers = append(rec.Headers, h)
	}
	return rec
}

func (w *world) produce() {
	w.t.Helper()
	t, n := w.pick()
	if t == nil {
		return
	}
	recs := make([]record.Record, 1+w.rng.IntN(3)*w.rng.IntN(3))
	for i := range recs {
		recs[i] = w.record()
		if w.rng.IntN(12) == 0 {
			recs[i].Value = nil
		}
	}
	w.append(t, n, recs)
	if w.rng.IntN(3) == 0 {
		w.lookup(t, n, string(recs[0].Key), askGet) // it reads its own write
	}
}

func (w *world) remove() {
	w.t.Helper()
	t, n := w.pick()
	if t == nil {
		return
	}
	w.append(t, n, []record.Record{{Key: w.key(), Timestamp: 1}})
}

func (w *world) append(t *topicModel, n int, recs []record.Record) {
	w.t.Helper()
	m := t.parts[n]
	w.note("append %d records to %s/%d from offset %d", len(recs), t.name, n, m.next())
	limit := 8 << 20
	if v, ok := t.props["max.message.bytes"]; ok {
		limit, _ = strconv.Atoi(v)
	}
	tooLarge := slices.ContainsFunc(recs, func(r record.Record) bool { return r.Size() > limit })
	base, err := w.partition(t, n).Append(context.Background(), recs)
	switch {
	case w.excused(err):
		return
	case tooLarge:
		if !errors.Is(err, partition.ErrRecordTooLarge) {
			w.t.Fatalf("append of too large a record: %d, %v", base, err)
		}
		return
	case err != nil:
		w.t.Fatalf("append: %v", err)
	case base != m.next():
		w.t.Fatalf("%s/%d: appended at %d, want %d", t.name, n, base, m.next())
	}
	for _, rec := range recs {
		m.take(rec)
	}
	if w.flushes(t) {
		m.durable = m.next()
	}
}

func (w *world) lookupAny() {
	w.t.Helper()
	t, n := w.pick()
	if t == nil {
		return
	}
	switch w.rng.IntN(40) {
	case 0:
		if _, err := w.c.Topic("no such topic"); !errors.Is(err, catalog.ErrTopicNotFound) && !w.excused(err) {
			w.t.Fatalf("topic that is not there: %v", err)
		}
	case 1:
		if _, err := w.topic(t).Partition(int32(len(t.parts))); !errors.Is(err, catalog.ErrPartitionNotFound) {
			w.t.Fatalf("partition that is not there: %v", err)
		}
	case 2:
		w.lookup(t, n, "never written", askGet)
	default:
		how := askGet
		if w.rng.IntN(2) == 0 {
			how = ask(w.rng.IntN(int(numAsks)))
		}
		w.lookup(t, n, string(w.key()), how)
	}
}

// notes is what an eviction may write to the log about itself, in bytes.
const notes = 400

func (w *world) evict() {
	w.t.Helper()
	t, n := w.pick()
	if t == nil {
		return
	}
	target := int64(0)
	if w.rng.IntN(2) == 0 {
		target = w.rng.Int64N(int64(w.cfg.valueBytes) * 40)
	}
	w.note("evict %s/%d to %d bytes", t.name, n, target)
	st, err := w.partition(t, n).Evict(context.Background(), target)
	switch {
	case w.excused(err):
	case w.bucket == nil:
		if !errors.Is(err, partition.ErrNoStore) {
			w.t.Fatalf("evict without a store: %v", err)
		}
	case !w.remoteWrite(t):
		if !errors.Is(err, partition.ErrRemoteWriteDisabled) {
			w.t.Fatalf("evict with remote write off: %v", err)
		}
	case err != nil:
		w.t.Fatalf("evict: %v", err)
	case target == 0 && *st.LocalStart != *st.HighWatermark, target > 1<<10 && st.LocalBytes > target+notes && *st.LocalStart != *st.HighWatermark:
		w.t.Fatalf("evicted to %d bytes: %d are left, local start %d, end %d", target, st.LocalBytes, *st.LocalStart, *st.HighWatermark)
	}
	w.status(t, n)
}

// trimCache empties the chunk cache; the next cold lookup then costs a request.
func (w *world) trimCache() {
	w.t.Helper()
	w.note("trim cache")
	w.c.TrimCache()
	t, n := w.pick()
	if t == nil || w.unsteady || w.weather != fine || !w.indexed(t) || !w.remoteRead(t) {
		return
	}
	start, _ := w.status(t, n)
	for key, off := range t.parts[n].latest {
		if off >= start || t.parts[n].recs[off].Value == nil {
			continue
		}
		want := []partition.Source{partition.SourceRemote, partition.SourceCache}
		if size := w.cacheSize(); size == 0 {
			want[1] = partition.SourceRemote
		} else if size < 1<<20 {
			want = want[:1] // the chunk may be larger
		}
		for i, want := range want {
			res, err := w.partition(t, n).Lookup(context.Background(), []byte(key), partition.Query{})
			if err != nil || res.Source != want {
				w.t.Fatalf("%q after the cache was trimmed, time %d: source %v, want %v; %v", key, i, res.Source, want, err)
			}
		}
		return
	}
}

// cacheSize is the size of the chunk cache in bytes.
func (w *world) cacheSize() int {
	v, set := w.cluster["cloud_storage_cache_size"]
	if !set {
		return 256 << 20
	}
	size, err := strconv.Atoi(fmt.Sprint(v))
	if err != nil {
		w.t.Fatal(err)
	}
	return size
}

// passTime lets the background work do what is due.
func (w *world) passTime() {
	w.t.Helper()
	d := []time.Duration{60 * time.Millisecond, time.Second, 15 * time.Second, 10 * time.Minute}[w.rng.IntN(4)]
	w.note("let %v pass", d)
	time.Sleep(d)
	synctest.Wait()
	for _, t := range w.topics { // longer than any flush.ms of this test
		for _, p := range t.parts {
			p.durable = p.next()
		}
	}
}

func (w *world) change() {
	w.t.Helper()
	if w.bucket == nil {
		return
	}
	if w.weather != fine {
		w.note("weather: fine")
		w.clear()
		return
	}
	w.weather = weather(1 + w.rng.IntN(3))
	w.unfollowed()
	w.note("weather: %v", w.weather)
	w.sky.set(w.weather)
}

// topicAnew deletes a topic and, mostly, makes it again under its name.
func (w *world) topicAnew() {
	w.t.Helper()
	t, _ := w.pick()
	if t == nil {
		return
	}
	w.note("delete %s", t.name)
	if err := w.c.DeleteTopic(context.Background(), t.name); err != nil {
		w.t.Fatalf("delete %s: %v", t.name, err)
	}
	delete(w.topics, t.name)
	if _, err := w.c.Topic(t.name); !errors.Is(err, catalog.ErrTopicNotFound) && !w.excused(err) {
		w.t.Fatalf("%s after it was deleted: %v", t.name, err)
	}
	if w.rng.IntN(4) > 0 {
		w.create(t.name)
	}
}

// checkAll is a quiet moment: everything is compared, then keyhole's own check
// reads both tiers.
func (w *world) checkAll() {
	w.t.Helper()
	w.note("check")
	w.clear()
	w.verify()
	w.tidy()
	if w.replica != nil && len(w.topics) > 0 {
		w.openReplica()
		w.follow()
		for _, name := range slices.Sorted(maps.Keys(w.topics)) {
			for n := range w.topics[name].parts {
				w.askAll(w.topics[name], n)
			}
		}
	}
	w.restart("check", func() {
		sum, keys := w.check(), int64(0)
		for _, t := range w.topics {
			if !flag(t.props, "redpanda.kv.index.enabled", false) {
				continue
			}
			for _, m := range t.parts {
				for _, off := range m.latest {
					if m.recs[off].Value != nil {
						keys++
					}
				}
			}
		}
		if sum.Keys != keys || sum.Topics != len(w.topics) {
			w.t.Fatalf("check saw %d keys of %d topics, want %d of %d", sum.Keys, sum.Topics, keys, len(w.topics))
		}
	})
	w.verify()
}
