package modeltest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"keyhole/catalog"
	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/partition"
	"keyhole/tiered"
)

// compact compacts a partition, and demands that nothing dead is left in the bucket.
func (w *world) compact() {
	w.t.Helper()
	t, n := w.pick()
	if t == nil {
		return
	}
	w.note("compact %s/%d", t.name, n)
	done, err := w.partition(t, n).Compact(context.Background())
	if w.excused(err) {
		return
	}
	if err != nil {
		w.t.Fatalf("compact %s/%d: %v", t.name, n, err)
	}
	w.note("compacted: %+v", done.Done)
	w.status(t, n)
	w.noDead(t, n)
	w.lookups(t, n)
}

// lookups asks for every key of a partition.
func (w *world) lookups(t *topicModel, n int) {
	w.t.Helper()
	for _, key := range slices.Sorted(maps.Keys(t.parts[n].latest)) {
		w.lookup(t, n, key, askGet)
	}
}

// noDead compares the number of records in the bucket with the model's, after a
// compaction that nothing has kept from doing everything.
func (w *world) noDead(t *topicModel, n int) {
	w.t.Helper()
	if w.weather != fine || w.unsteady || !w.remoteWrite(t) || !flag(t.props, "redpanda.kv.index.enabled", false) || given(t.props, "min.compaction.lag.ms", "0") != "0" {
		return
	}
	m, part := w.manifest(t, n), t.parts[n]
	live := int64(0)
	for _, off := range part.latest {
		if part.recs[off].Value != nil {
			live++
		}
	}
	records, tombstones := recordsOf(m)
	if m.Next() != part.next() || records-tombstones != live {
		w.t.Fatalf("%s/%d: %d records in the bucket up to offset %d after a compaction, %d of them tombstones; %d keys are alive, end %d",
			t.name, n, records, m.Next(), tombstones, live, part.next())
	}
	if given(t.props, "delete.retention.ms", "86400000") != "0" || tombstones == 0 {
		return
	}
	// A tombstone goes once nothing is left of what it hides, which may be another
	// tombstone: each compaction ends with fewer of them.
	for tombstones > 0 {
		if _, err := w.partition(t, n).Compact(context.Background()); err != nil {
			w.t.Fatalf("compact %s/%d again: %v", t.name, n, err)
		}
		records, left := recordsOf(w.manifest(t, n))
		if left >= tombstones || records-left != live {
			w.t.Fatalf("%s/%d: %d records in the bucket after another compaction, %d of them tombstones, before %d; %d keys are alive", t.name, n, records, left, tombstones, live)
		}
		tombstones = left
	}
}

func recordsOf(m *manifest.Manifest) (records, tombstones int64) {
	for _, seg := range m.Segments {
		records += seg.Records
		tombstones += seg.Tombstones
	}
	return records, tombstones
}

// given is a property as set or by default.
func given(props map[string]string, name, byDefault string) string {
	if v, ok := props[name]; ok {
		return v
	}
	return byDefault
}

// manifest is the one that the bucket has now; nil: none.
func (w *world) manifest(t *topicModel, n int) *manifest.Manifest {
	w.t.Helper()
	key := tiered.Prefix(t.name, t.id, int32(n)) + "manifest.json"
	data, _, err := w.bucket.Inner().Get(context.Background(), key, 1<<30)
	if errors.Is(err, objstore.ErrNotFound) {
		return nil
	}
	if err != nil {
		w.t.Fatal(err)
	}
	m, err := manifest.Decode(key, data)
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

// objects lists everything in the bucket.
func (w *world) objects() map[string]bool {
	w.t.Helper()
	all := make(map[string]bool)
	err := w.bucket.Inner().List(context.Background(), "", func(o objstore.Object) error { all[o.Key] = true; return nil })
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// collect cleans the bucket up, or says what it would clean up.
func (w *world) collect() {
	w.t.Helper()
	if w.bucket == nil {
		return
	}
	o := catalog.CollectOptions{Partition: -1, DryRun: w.rng.IntN(3) == 0, Listed: 1 << 20}
	w.note("collect, dry run %v", o.DryRun)
	before := w.objects()
	got, err := w.c.Collect(context.Background(), o)
	if w.excused(err) || w.weather != fine {
		return
	}
	if err != nil || len(got.Failed) > 0 && !w.unsteady {
		w.t.Fatalf("collect: %+v, %v", got, err)
	}
	after := w.objects()
	if o.DryRun && !maps.Equal(before, after) {
		w.t.Fatal("a dry run has changed the bucket")
	}
	for _, g := range got.Objects {
		if !o.DryRun && after[g.Key] {
			w.t.Fatalf("%+v was said to be collected", g)
		}
	}
	w.note("collected %d objects", got.Count)
}

// tidy cleans the bucket up after the grace period, and demands that it then holds
// what the manifests name and nothing else.
func (w *world) tidy() {
	w.t.Helper()
	if w.bucket == nil {
		return
	}
	time.Sleep(w.grace() + time.Second)
	w.settle()
	// What a failed upload or compaction is kept for, so that it can be repeated under
	// the same names, is garbage after a restart.
	w.restart("tidy", func() {})
	o := catalog.CollectOptions{Partition: -1, Listed: 1 << 20}
	if got, err := w.c.Collect(context.Background(), o); err != nil || len(got.Failed) > 0 {
		w.t.Fatalf("collect: %+v, %v", got, err)
	}
	named := map[string]bool{"cluster.json": true}
	begun := make(map[string]int64) // prefix of a partition whose uploads were switched off → what it may have begun to upload
	for _, t := range w.topics {
		named[t.name+"/"+t.id+"/topic.json"] = true
		for n := range t.parts {
			prefix := tiered.Prefix(t.name, t.id, int32(n))
			named[prefix+"manifest.json"] = true
			m := w.manifest(t, n)
			if !w.remoteWrite(t) {
				begun[prefix] = 0
			}
			if m == nil {
				continue
			}
			if !w.remoteWrite(t) {
				begun[prefix] = m.Next()
			}
			for i := range m.Segments {
				named[tiered.LogKey(prefix, &m.Segments[i])], named[tiered.IndexKey(prefix, &m.Segments[i])] = true, true
			}
			for _, r := range m.Removed { // what was replaced just now
				seg := &manifest.Segment{BaseOffset: r.BaseOffset, UploadID: r.UploadID}
				named[tiered.LogKey(prefix, seg)], named[tiered.IndexKey(prefix, seg)] = true, true
			}
		}
	}
	for key := range w.objects() {
		dir, base := path.Split(key)
		if from, ok := begun[dir]; ok && len(base) > 20 {
			if offset, err := strconv.ParseInt(base[:20], 10, 64); err == nil && offset >= from {
				continue
			}
		}
		if !named[key] && !strings.HasPrefix(key, "~probe/") { // left by a crash between the two sides of a probe
			w.t.Errorf("nobody needs %s, and it is still there", key)
		}
	}
	if w.t.Failed() {
		w.t.FailNow()
	}
}

// clusterMillis is a cluster property in milliseconds.
func (w *world) clusterMillis(name string, byDefault time.Duration) time.Duration {
	w.t.Helper()
	v, set := w.cluster[name]
	if !set {
		return byDefault
	}
	ms, err := strconv.Atoi(fmt.Sprint(v))
	if err != nil {
		w.t.Fatal(err)
	}
	return time.Duration(ms) * time.Millisecond
}

// cutShort has the power go off while a tier is compacted, uploaded or cleaned up,
// if the work takes that many steps.
func (w *world) cutShort() {
	w.t.Helper()
	t, n := w.pick()
	if t == nil {
		return
	}
	p, at := w.partition(t, n), w.rng.IntN(40)*w.rng.IntN(5)
	what := []string{"compaction", "clean-up", "eviction", "some time"}[w.rng.IntN(4)]
	w.note("power cut at step %d of %s of %s/%d, weather %v", at, what, t.name, n, w.weather)
	w.power.arm(at, w.rng)
	var err error
	switch what {
	case "compaction":
		_, err = p.Compact(context.Background())
	case "clean-up":
		_, err = p.Collect(context.Background(), false)
	case "eviction":
		_, err = p.Evict(context.Background(), 0)
	default:
		time.Sleep(15 * time.Second)
	}
	if !w.power.disarm() {
		if err != nil && !w.excused(err) && !errors.Is(err, partition.ErrNoStore) && !errors.Is(err, partition.ErrRemoteWriteDisabled) {
			w.t.Fatalf("%s of %s/%d: %v", what, t.name, n, err)
		}
		w.status(t, n)
		return
	}
	w.note("the power went off")
	w.powerCut()
}
