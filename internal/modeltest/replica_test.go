package modeltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"keyhole/catalog"
	"keyhole/objstore/objstoretest"
	"keyhole/partition"
	"keyhole/record"
)

// replica is a read replica beside the node, and what it has said so far. It lives
// under the same sky.
type replica struct {
	fs       *vfs.MemFS
	c        *catalog.Catalog // nil: stopped
	interval time.Duration    // between its looks at a manifest
	position map[string]int64 // topic id and partition → highest position of an answer
	last     map[string]int64 // the same and key → offset of the last value
}

// openReplica starts the replica if it does not run.
func (w *world) openReplica() *replica {
	w.t.Helper()
	if w.replica == nil {
		w.replica = &replica{fs: vfs.NewCrashableMem(), position: make(map[string]int64), last: make(map[string]int64)}
	}
	r := w.replica
	if r.c != nil {
		return r
	}
	bucket := objstoretest.NewFaulty(w.bucket.Inner())
	bucket.Before(func(_ context.Context, c objstoretest.Call) error { return w.sky.strikes(false, c) })
	bucket.After(func(_ context.Context, c objstoretest.Call) error { return w.sky.strikes(true, c) })
	c, err := catalog.Open(context.Background(), catalog.Options{
		DataDir: dataDir, FS: r.fs, Bucket: bucket, ReadReplica: true,
		Logger:     slog.New(slog.NewTextHandler(&w.log, nil)).With("replica", true),
		Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		w.t.Fatalf("open the replica: %v", err)
	}
	r.c = c
	r.interval = []time.Duration{500 * time.Millisecond, time.Second, 10 * time.Second}[w.rng.IntN(3)]
	if _, err := c.AlterCluster(context.Background(), map[string]any{"read_replica_refresh_ms": int(r.interval.Milliseconds())}, nil); err != nil {
		w.t.Fatal(err)
	}
	w.unfollowed()
	w.note("replica starts, interval %v", r.interval)
	synctest.Wait()
	return r
}

// unfollowed says that the replica may not have what is true now.
func (w *world) unfollowed() {
	for _, t := range w.topics {
		t.followed = false
	}
}

func (w *world) stopReplica() {
	if w.replica == nil || w.replica.c == nil {
		return
	}
	c := w.replica.c
	w.replica.c = nil
	if err := c.Close(context.Background()); err != nil {
		w.t.Errorf("close the replica: %v", err)
	}
}

// askReplica asks the replica for some keys. At times it is started anew before, on
// its disk or on an empty one, or given the time to follow.
func (w *world) askReplica() {
	w.t.Helper()
	t, n := w.pick()
	if t == nil || w.bucket == nil {
		return
	}
	switch w.rng.IntN(20) {
	case 0:
		w.note("replica stops")
		w.stopReplica()
	case 1:
		w.note("replica loses its disk")
		w.stopReplica()
		if w.replica != nil {
			w.replica.fs = vfs.NewCrashableMem()
		}
	case 2:
		w.note("replica loses its power")
		if w.replica != nil && w.replica.c != nil {
			after := w.replica.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: w.rng.IntN(101), RNG: w.rng})
			w.stopReplica()
			w.replica.fs = after
		}
	}
	w.openReplica()
	if w.weather == fine && w.rng.IntN(4) == 0 {
		w.follow()
		w.askAll(t, n)
		return
	}
	w.note("ask the replica about %s/%d, followed %v", t.name, n, t.followed)
	for range 5 {
		w.askReplicaFor(t, n, string(w.key()))
	}
}

func (w *world) askAll(t *topicModel, n int) {
	w.t.Helper()
	for _, key := range slices.Sorted(maps.Keys(t.parts[n].latest)) {
		w.askReplicaFor(t, n, key)
	}
	w.askReplicaFor(t, n, "never written")
}

// follow gives the replica as much time as it is promised to need, and demands
// that it has then what the bucket had before.
func (w *world) follow() {
	w.t.Helper()
	type place struct {
		t *topicModel
		n int
	}
	want := make(map[place]int64)
	patience := 2 * w.replica.interval
	for _, t := range w.topics {
		if !t.followed {
			patience = 3 * time.Minute // a topic, its properties, the longest back-off
		}
		for n := range t.parts {
			if m := w.manifest(t, n); m != nil {
				want[place{t, n}] = m.Next()
			}
		}
	}
	w.note("replica may take %v to follow", patience)
	time.Sleep(patience)
	synctest.Wait()
	for at, next := range want {
		if !flag(at.t.props, "redpanda.kv.index.enabled", false) {
			continue
		}
		p := w.replicaPartition(at.t, at.n, true)
		if p == nil {
			continue
		}
		st := p.Status()
		if st.IndexLastApplied == nil && next > 0 || st.IndexLastApplied != nil && *st.IndexLastApplied+1 < next {
			last := "nothing"
			if st.IndexLastApplied != nil {
				last = fmt.Sprint(*st.IndexLastApplied)
			}
			w.t.Fatalf("replica has %s of %s/%d after %v, the bucket had everything below %d", last, at.t.name, at.n, patience, next)
		}
	}
	for _, t := range w.topics {
		t.followed = true
	}
}

// replicaPartition gives nil where the replica does not have the topic yet.
func (w *world) replicaPartition(t *topicModel, n int, must bool) *partition.Partition {
	w.t.Helper()
	topic, err := w.replica.c.Topic(t.name)
	switch {
	case err != nil && !must && (errors.Is(err, catalog.ErrTopicNotFound) || trouble(err)):
		return nil
	case err != nil:
		w.t.Fatalf("topic %s of the replica: %v", t.name, err)
	case topic.ID() != t.id && must:
		w.t.Fatalf("topic %s of the replica is %s, want %s", t.name, topic.ID(), t.id)
	case topic.ID() != t.id:
		return nil // one of this name that was deleted
	}
	p, err := topic.Partition(int32(n))
	if err != nil {
		w.t.Fatalf("%s/%d of the replica: %v", t.name, n, err)
	}
	return p
}

// askReplicaFor compares an answer of the replica with the model. Everything below
// the position of the answer must be reflected in it, something above it may be,
// and it must not be older than an answer before.
func (w *world) askReplicaFor(t *topicModel, n int, key string) {
	w.t.Helper()
	p := w.replicaPartition(t, n, t.followed && w.weather == fine)
	if p == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.replica.c.LookupTimeout())
	defer cancel()
	res, err := p.Lookup(ctx, []byte(key), partition.Query{})
	m, place := t.parts[n], fmt.Sprintf("%s/%d", t.id, n)
	fail := func(format string, args ...any) {
		w.t.Helper()
		w.t.Fatalf("replica, %s/%d %.40q (offsets %v, end %d, last position %d, followed %v): %s; got offset %d position %d source %v, %d bytes, %v",
			t.name, n, key, m.offsets(key), m.next(), w.replica.position[place], t.followed, fmt.Sprintf(format, args...), res.Offset, res.Position, res.Source, len(res.Value), err)
	}
	switch {
	case errors.Is(err, partition.ErrNotIndexed):
		if t.followed && flag(t.props, "redpanda.kv.index.enabled", false) {
			fail("it is indexed")
		}
		return
	case t.followed && !flag(t.props, "redpanda.kv.index.enabled", false):
		fail("want not indexed")
	case err != nil && !errors.Is(err, partition.ErrKeyNotFound) && !errors.Is(err, partition.ErrRemoteReadDisabled):
		// A replica that comes to the bucket less often than that is cleaned up may
		// find that what it knows of is gone.
		if !trouble(err) || w.weather == fine && t.followed && w.grace() > 2*w.replica.interval {
			fail("want an answer")
		}
		return
	case res.Position < w.replica.position[place] || res.Position > m.next():
		fail("position")
	}
	w.replica.position[place] = res.Position
	last, seen := w.replica.last[place+key]
	if !seen {
		last = -1
	}
	below := m.before(key, res.Position)
	switch {
	case errors.Is(err, partition.ErrKeyNotFound):
		from := max(below, last)
		if from >= 0 && m.recs[from].Value != nil && !m.deletedAfter(key, from) {
			fail("it was there, at offset %d", from)
		}
	case res.Offset < max(below, last) || res.Offset >= m.next():
		fail("want offset %d or higher, answered before: %d", below, last)
	case err != nil:
		if t.followed && flag(t.props, "redpanda.remote.read", true) {
			fail("it may read the bucket")
		}
	default:
		w.replica.last[place+key] = res.Offset
		rec := &m.recs[res.Offset]
		if string(rec.Key) != key || rec.Value == nil || !bytes.Equal(rec.Value, res.Value) || rec.Timestamp != res.Timestamp || !sameHeaders(rec.Headers, res.Headers) {
			fail("that is not the record")
		}
		if res.Source == partition.SourceLocal {
			fail("source")
		}
		w.tag(t, n, res.Offset, res.Epoch)
	}
}

// grace is how long the bucket keeps what was replaced.
func (w *world) grace() time.Duration {
	w.t.Helper()
	return w.clusterMillis("cloud_storage_gc_grace_ms", time.Hour)
}

// offsets are those of all records of a key.
func (p *partModel) offsets(key string) (all []int64) {
	for off := range p.recs {
		if string(p.recs[off].Key) == key {
			all = append(all, int64(off))
		}
	}
	return all
}

// before is the offset of the newest record of a key below an offset; -1: none.
func (p *partModel) before(key string, end int64) int64 {
	for off := end - 1; off >= 0; off-- {
		if string(p.recs[off].Key) == key {
			return off
		}
	}
	return -1
}

// deletedAfter reports whether there is a tombstone of a key above an offset.
func (p *partModel) deletedAfter(key string, off int64) bool {
	return slices.ContainsFunc(p.recs[off+1:], func(r record.Record) bool { return r.Value == nil && string(r.Key) == key })
}
