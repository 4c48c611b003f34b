package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"keyhole/catalog"
	"keyhole/index"
	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/partition"
	"keyhole/record"
	"keyhole/tiered"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const dataDir = "/data"

// world is a node's disk and its bucket.
type world struct {
	t       *testing.T
	fs      *vfs.MemFS
	bucket  *objstoretest.Faulty
	topic   string // id
	replica bool   // the disk is a read replica's
}

func newWorld(t *testing.T) *world {
	return &world{t: t, fs: vfs.NewCrashableMem(), bucket: objstoretest.NewFaulty(nil)}
}

// clone copies a world at rest.
func (w *world) clone(t *testing.T) *world {
	t.Helper()
	out := newWorld(t)
	out.fs = w.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(0, 0))})
	out.topic, out.replica = w.topic, w.replica
	for key, data := range w.objects() {
		out.put(key, []byte(data))
	}
	return out
}

// run opens a catalog on the world, gives it to fn, and closes it.
func (w *world) run(fn func(c *catalog.Catalog)) {
	w.t.Helper()
	o := catalog.Options{
		DataDir: dataDir, FS: w.fs, AutoCreate: !w.replica, ReadReplica: w.replica,
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	}
	if w.bucket != nil {
		o.Bucket = w.bucket
	}
	c, err := catalog.Open(context.Background(), o)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() {
		if err := c.Close(context.Background()); err != nil {
			w.t.Error(err)
		}
	}()
	fn(c)
}

// patience bounds what must happen soon. It is never waited out when all is well, and
// generous, because the machine may be busy with other tests, or stand still for
// seconds.
const patience = 2 * time.Minute

// eventually polls, because what it waits for happens in the background.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for begun := time.Now(); ; {
		late := time.Since(begun) > patience // asked before: a pause in between is none of cond's
		if cond() {
			return
		}
		if late {
			t.Fatalf("not within %v: %s", patience, what)
		}
		<-tick.C
	}
}

// topic gives a topic's partition 0 once it serves.
func (w *world) partition(c *catalog.Catalog, topic string) *partition.Partition {
	w.t.Helper()
	var p *partition.Partition
	eventually(w.t, "partition serves", func() bool {
		t, err := c.Topic(topic)
		if err != nil {
			return false
		}
		w.topic = t.ID()
		if p, err = t.Partition(0); err != nil {
			w.t.Fatal(err)
		}
		ready, _, damaged := p.State()
		return ready && damaged == nil
	})
	return p
}

// plain are the properties of a topic whose segments stay as they were written.
var plain = map[string]string{"min.compaction.lag.ms": "86400000", "keyhole.remote.compression.type": "producer"}

func (w *world) create(c *catalog.Catalog, topic string, properties map[string]string) *partition.Partition {
	w.t.Helper()
	all := map[string]string{"redpanda.kv.index.enabled": "true", "segment.bytes": "65536"}
	maps.Copy(all, properties)
	if _, err := c.AlterCluster(w.t.Context(), map[string]any{"cloud_storage_cache_chunk_size": 16384}, nil); err != nil {
		w.t.Fatal(err)
	}
	eventually(w.t, "topic made", func() bool {
		_, err := c.CreateTopic(w.t.Context(), topic, 1, all)
		if err != nil && !errors.Is(err, catalog.ErrBucketUnknown) {
			w.t.Fatal(err)
		}
		return err == nil
	})
	return w.partition(c, topic)
}

// fill appends n records of keys k0 … k<keys-1>, every seventh a tombstone.
func (w *world) fill(p *partition.Partition, from, n, keys int) {
	w.t.Helper()
	for i := from; i < from+n; i++ {
		rec := record.Record{Key: fmt.Appendf(nil, "k%d", i%keys), Timestamp: 1700000000000 + int64(i)}
		if i%7 != 3 {
			rec.Value = fmt.Appendf(nil, "%d:%02000d", i, i)
		}
		if _, err := p.Append(w.t.Context(), []record.Record{rec}); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) evict(p *partition.Partition, target int64) {
	w.t.Helper()
	if _, err := p.Evict(w.t.Context(), target); err != nil {
		w.t.Fatal(err)
	}
}

// busy is a world with records in all places: in the bucket alone, in both
// tiers, and on disk alone. It is made once.
func busy(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.run(func(c *catalog.Catalog) {
		p := w.create(c, "t", plain)
		w.fill(p, 0, 150, 61)
		w.evict(p, 0)
		w.fill(p, 150, 150, 83)
		w.evict(p, 180<<10) // uploads what is sealed, and keeps most of it
		w.fill(p, 300, 20, 40)
	})
	return w
}

func (w *world) prefix() string { return tiered.Prefix("t", w.topic, 0) }

// dir is a path in the directory of partition 0.
func (w *world) dir(elem ...string) string {
	return w.fs.PathJoin(append([]string{dataDir, "topics", "t", w.topic, "0"}, elem...)...)
}

func (w *world) files(dir, suffix string) []string {
	w.t.Helper()
	names, err := w.fs.List(dir)
	if err != nil {
		w.t.Fatal(err)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasSuffix(n, suffix) })
	slices.Sort(names)
	for i, name := range names {
		names[i] = w.fs.PathJoin(dir, name)
	}
	return names
}

func (w *world) read(path string) []byte {
	w.t.Helper()
	f, err := w.fs.Open(path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

func (w *world) write(path string, data []byte) {
	w.t.Helper()
	f, err := w.fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		w.t.Fatal(err)
	}
	_, err = f.Write(bytes.Clone(data))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		w.t.Fatal(err)
	}
}

// edit changes a file.
func (w *world) edit(path string, change func([]byte) []byte) { w.write(path, change(w.read(path))) }

func (w *world) remove(path string) {
	w.t.Helper()
	if err := w.fs.RemoveAll(path); err != nil {
		w.t.Fatal(err)
	}
}

func flip(pos int) func([]byte) []byte {
	return func(b []byte) []byte {
		b[(pos+len(b))%len(b)] ^= 0x10
		return b
	}
}

// Objects are reached behind the counters.

func (w *world) put(key string, data []byte) {
	w.t.Helper()
	if _, err := w.bucket.Inner().Put(context.Background(), key, bytes.NewReader(data), int64(len(data)), objstore.Condition{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) object(key string) []byte {
	w.t.Helper()
	b, _, err := w.bucket.Inner().Get(context.Background(), key, 1<<30)
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

func (w *world) editObject(key string, change func([]byte) []byte) { w.put(key, change(w.object(key))) }

func (w *world) delete(key string) {
	w.t.Helper()
	if err := w.bucket.Inner().Delete(context.Background(), key); err != nil {
		w.t.Fatal(err)
	}
}

// keys lists the bucket, which may be changing meanwhile.
func (w *world) keys() []string {
	w.t.Helper()
	var keys []string
	err := w.bucket.Inner().List(context.Background(), "", func(o objstore.Object) error {
		keys = append(keys, o.Key)
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return keys
}

// objects is the content of a bucket that nobody changes.
func (w *world) objects() map[string]string {
	w.t.Helper()
	out := make(map[string]string)
	for _, key := range w.keys() {
		out[key] = string(w.object(key))
	}
	return out
}

func (w *world) manifest() *manifest.Manifest {
	w.t.Helper()
	m, err := manifest.Decode("", w.object(tiered.ManifestKey(w.prefix())))
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

// putManifest stores a manifest and its copy on disk.
func (w *world) putManifest(m *manifest.Manifest) {
	w.t.Helper()
	b, err := manifest.Encode(m)
	if err != nil {
		w.t.Fatal(err)
	}
	w.put(tiered.ManifestKey(w.prefix()), b)
	w.write(w.dir("remote", "manifest.json"), b)
}

// index changes the partition's index as its owner could.
func (w *world) index(change func(x *index.Index, b *index.Batch)) {
	w.t.Helper()
	shared := index.NewShared(1<<20, 16)
	defer shared.Close()
	x, err := index.Open(w.dir("kv_index"), index.Options{FS: w.fs, Shared: shared})
	if err != nil {
		w.t.Fatal(err)
	}
	b := x.NewBatch()
	change(x, b)
	if err := errors.Join(b.Commit(x.Applied()), b.Close(), x.Close()); err != nil {
		w.t.Fatal(err)
	}
}

// disk is every file with its content.
func (w *world) disk(dir string, out map[string]string) map[string]string {
	w.t.Helper()
	names, err := w.fs.List(dir)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, name := range names {
		path := w.fs.PathJoin(dir, name)
		info, err := w.fs.Stat(path)
		if err != nil {
			w.t.Fatal(err)
		}
		if info.IsDir() {
			out[path] = "folder"
			w.disk(path, out)
			continue
		}
		out[path] = string(w.read(path))
	}
	return out
}

// result is what a check came to.
type result struct {
	sum      Summary
	findings []Finding
	err      error
}

// check runs a check and demands that it changes nothing.
func (w *world) check(edit ...func(*Options)) result {
	w.t.Helper()
	before, stored := w.disk(dataDir, map[string]string{}), w.objects()
	res := w.checkRunning(w.bucket, edit...)
	if !maps.Equal(before, w.disk(dataDir, map[string]string{})) {
		w.t.Error("the check changed the disk")
	}
	if !maps.Equal(stored, w.objects()) {
		w.t.Error("the check changed the bucket")
	}
	return res
}

// checkRunning is check for a world that others may be changing meanwhile. They go by
// another bucket than the check, over the same objects.
func (w *world) checkRunning(bucket *objstoretest.Faulty, edit ...func(*Options)) result {
	w.t.Helper()
	bucket.ResetCalls()
	var res result
	scratch := vfs.NewMem()
	o := Options{
		FS: w.fs, DataDir: dataDir, Bucket: bucket, ScratchFS: scratch, ScratchDir: "/",
		Report: func(f Finding) { res.findings = append(res.findings, f) },
	}
	for _, e := range edit {
		e(&o)
	}
	res.sum, res.err = Run(w.t.Context(), o)
	if bucket.Count(objstoretest.OpPut, objstoretest.OpDelete) > 0 {
		w.t.Error("the check changed the bucket")
	}
	if names, err := scratch.List("/"); err != nil || len(names) > 0 {
		w.t.Errorf("the check left %v in its scratch directory; %v", names, err)
	}
	damages := 0
	for _, f := range res.findings {
		if f.Severity == Damage {
			damages++
		}
	}
	if damages != res.sum.Damages || len(res.findings)-damages != res.sum.Notes {
		w.t.Errorf("%d findings, %d of them damage; the summary says %+v", len(res.findings), damages, res.sum)
	}
	return res
}

func (r result) dump(t *testing.T) {
	t.Helper()
	t.Logf("%+v, %v", r.sum, r.err)
	for _, f := range r.findings {
		if strings.HasSuffix(f.Message, "waiting for deletion") {
			continue
		}
		t.Logf("%s %s %s:%d %s", f.Severity, f.Tier, f.Object, f.Position, f.Message)
	}
}
