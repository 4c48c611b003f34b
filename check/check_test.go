package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/catalog"
	"keyhole/index"
	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/record"
	"keyhole/tiered"
)

func TestClean(t *testing.T) {
	w := busy(t)
	res := w.check()
	if res.err != nil || len(res.findings) > 0 {
		res.dump(t)
		t.Fatal("findings in a sound world")
	}
	if s := res.sum; s.Topics != 1 || s.Partitions != 1 || s.LocalSegments < 3 || s.RemoteSegments < 6 || s.Keys < 60 || s.Records < 50 || s.Bytes < 500<<10 {
		t.Errorf("did not look at enough: %+v", s)
	}
}

// Damage of an index that only a lookup would meet.
func TestIndexBlock(t *testing.T) {
	w := newWorld(t)
	w.run(func(c *catalog.Catalog) {
		p := w.create(c, "t", plain)
		var recs []record.Record
		for i := range 5000 {
			recs = append(recs, record.Record{Key: fmt.Appendf(nil, "%x", i*i), Value: []byte("v")})
		}
		if _, err := p.Append(t.Context(), recs); err != nil {
			t.Fatal(err)
		}
	})
	w.check().expect(t, nil)
	for _, path := range w.files(w.dir("kv_index"), ".sst") {
		w.edit(path, func(b []byte) []byte { return flip(len(b) / 2)(b) })
	}
	w.check().expect(t, []want{{Damage, ".sst", "checksum"}, {Note, "kv_index", "is built anew"}})
}

// A damaged batch is named where it is.
func TestPosition(t *testing.T) {
	w := busy(t)
	path := w.files(w.dir("log"), ".log")[1]
	w.edit(path, flip(33_333))
	res := w.check()
	if len(res.findings) != 1 {
		res.dump(t)
		t.Fatal("want one finding")
	}
	if f := res.findings[0]; f.Position > 33_333 || f.Position < 33_333-2200 {
		t.Errorf("position %d", f.Position)
	}
}

func TestRunning(t *testing.T) { // case 7-05
	w := newWorld(t)
	w.run(func(c *catalog.Catalog) {
		p := w.create(c, "t", plain)
		w.fill(p, 0, 100, 30)
		w.evict(p, 0)
		own := objstoretest.NewFaulty(w.bucket.Inner())
		res := w.checkRunning(own, func(o *Options) { o.Bucket = nil })
		if !errors.Is(res.err, ErrRunning) || len(res.findings) > 0 {
			t.Errorf("with the data directory: %v, %v", res.err, res.findings)
		}
		if strings.Contains(res.err.Error(), "\n") {
			t.Errorf("more than one line: %v", res.err)
		}
		res = w.checkRunning(own, func(o *Options) { o.DataDir = "" })
		if res.err != nil || len(res.findings) > 0 || res.sum.RemoteSegments < 3 {
			res.dump(t)
			t.Error("the bucket alone")
		}
	})
}

// A copy of a data directory may lack the lock file. It does not get one.
func TestNoLockFile(t *testing.T) {
	w := busy(t)
	w.remove(dataDir + "/LOCK")
	w.check().expect(t, nil)
	if res := w.check(); len(res.findings) > 0 {
		res.dump(t)
		t.Error("findings")
	}
}

// A topic without an index is checked for all but that.
func TestNoIndex(t *testing.T) {
	w := newWorld(t)
	w.run(func(c *catalog.Catalog) {
		p := w.create(c, "t", plain)
		w.fill(p, 0, 100, 30)
		w.evict(p, 0)
		w.fill(p, 100, 10, 30)
		if err := c.AlterTopic(t.Context(), "t", map[string]string{"redpanda.kv.index.enabled": "false"}, nil); err != nil {
			t.Fatal(err)
		}
		eventually(t, "index dropped", func() bool {
			_, err := w.fs.Stat(w.dir("kv_index"))
			return notExist(err)
		})
	})
	if res := w.check(); res.err != nil || len(res.findings) > 0 || res.sum.Records != 10 {
		res.dump(t)
		t.Error("findings")
	}
	if err := w.fs.MkdirAll(w.dir("kv_index"), 0o755); err != nil {
		t.Fatal(err)
	}
	w.check().expect(t, []want{{Note, "kv_index", "of a topic that has none"}})
}

func TestNoDirectory(t *testing.T) {
	w := busy(t)
	res := w.check(func(o *Options) { o.DataDir = "/nowhere" })
	if !notExist(res.err) {
		t.Errorf("%v", res.err)
	}
	if _, err := w.fs.Stat("/nowhere"); err == nil {
		t.Error("it was made")
	}
}

func TestLocalAlone(t *testing.T) {
	w := busy(t)
	res := w.check(func(o *Options) { o.Bucket = nil })
	res.expect(t, []want{{Note, "/log", "not looked at"}})
	w.index(func(_ *index.Index, b *index.Batch) { b.Set([]byte("k5"), 319) })
	w.check(func(o *Options) { o.Bucket = nil }).expect(t, []want{{Damage, "kv_index", `key "k5"`}})
}

// What the bucket can stand in for does not make the index wrong.
func TestHealedByBucket(t *testing.T) {
	w := busy(t)
	path := w.files(w.dir("log"), ".log")[0]
	w.edit(path, flip(20_000))
	w.index(func(_ *index.Index, b *index.Batch) { b.Delete([]byte("k5")) })
	w.check().expect(t, []want{{Damage, path, ""}, {Damage, "kv_index", `key "k5": not in the index`}})
}

func TestStoreAway(t *testing.T) {
	w := busy(t)
	for _, op := range []objstoretest.Op{objstoretest.OpList, objstoretest.OpGet, objstoretest.OpReadRange} {
		w.bucket.Before(func(_ context.Context, c objstoretest.Call) error {
			if c.Op == op {
				return objstore.ErrDenied
			}
			return nil
		})
		if res := w.check(); !errors.Is(res.err, objstore.ErrDenied) || !res.sum.OK() {
			res.dump(t)
			t.Errorf("%s denied: %v", op, res.err)
		}
	}
}

// A crash leaves an index behind the log. Nothing of that is damage.
func TestAfterCrash(t *testing.T) { // cases 1-10, 1-11
	w := newWorld(t)
	var after *vfs.MemFS
	w.run(func(c *catalog.Catalog) {
		p := w.create(c, "t", plain)
		w.fill(p, 0, 100, 30)
		w.evict(p, 0)
		w.fill(p, 100, 60, 30)
		after = w.fs.CrashClone(vfs.CrashCloneCfg{})
	})
	w.fs = after
	res := w.check()
	if res.err != nil || !res.sum.OK() || res.sum.Records < 60 {
		res.dump(t)
		t.Fatal("damage after a crash")
	}
	if !slices.ContainsFunc(res.findings, want{Note, "kv_index", "the next start adds the records up to 159"}.is) {
		res.dump(t)
		t.Error("the index is said to be complete")
	}
}

func TestDeletedTopic(t *testing.T) {
	w := newWorld(t)
	w.run(func(c *catalog.Catalog) {
		p := w.create(c, "t", plain)
		w.fill(p, 0, 100, 30)
		w.evict(p, 0)
		id := w.topic
		if err := c.DeleteTopic(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "deletion marked", func() bool {
			d, err := catalog.DecodeTopic("", w.object(catalog.TopicKey("t", id)), "t", id)
			return err == nil && d.DeletedMS != 0
		})
	})
	res := w.check()
	if res.err != nil || !res.sum.OK() || res.sum.Topics != 0 {
		t.Error("a deleted topic is damage")
	}
	for _, key := range w.keys() {
		if strings.HasPrefix(key, w.prefix()) && !slices.ContainsFunc(res.findings, want{Note, key, "of a topic that was deleted at 20"}.is) {
			t.Errorf("%s is not listed", key)
		}
	}
	if t.Failed() {
		res.dump(t)
	}
}

// A topic that nothing describes is one that an empty disk does not find.
func TestNamelessTopic(t *testing.T) {
	w := busy(t)
	key := catalog.TopicKey("t", w.topic)
	w.delete(key)
	bucketOnly := func(o *Options) { o.DataDir = "" }
	w.check(bucketOnly).expect(t, []want{{Damage, key, "missing, though"}})
	w.delete(tiered.ManifestKey(w.prefix()))
	w.check(bucketOnly).expect(t, []want{{Note, ".log", "nothing describes the topic"}})
}

func TestForeignBucket(t *testing.T) {
	w, other := busy(t), busy(t)
	for key, data := range other.objects() {
		w.put(key, []byte(data))
	}
	w.put("left/over", []byte("x"))
	res := w.check()
	res.expect(t, []want{{Damage, catalog.ClusterKey, "wrong bucket"}})
	for _, f := range res.findings {
		if f.Tier == Remote && f.Object != catalog.ClusterKey {
			t.Errorf("of another cluster's bucket: %+v", f)
		}
	}
}

// What holds nothing of ours is not "all holds".
func TestNothing(t *testing.T) {
	w := newWorld(t)
	if err := w.fs.MkdirAll(dataDir, 0o755); err != nil {
		t.Fatal(err)
	}
	bucketOnly := func(o *Options) { o.DataDir = "" }
	nothing := func(res result, mention string) {
		t.Helper()
		if !errors.Is(res.err, ErrNothing) || !strings.Contains(res.err.Error(), mention) || len(res.findings) > 0 {
			res.dump(t)
			t.Errorf("want %q", mention)
		}
	}
	nothing(w.check(), dataDir)
	nothing(w.check(bucketOnly), "something else: 0")
	w.write(dataDir+"/notes.txt", []byte("x"))
	for i := range 5 {
		w.put(fmt.Sprintf("backup/%d", i), []byte("x"))
	}
	nothing(w.check(), dataDir)
	nothing(w.check(bucketOnly), "something else: 5")

	// A node that has seen its bucket, and one that has not.
	seen := busy(t)
	seen.bucket = w.bucket
	nothing(seen.check(), "something else: 5")
	alone := newWorld(t)
	alone.bucket.Before(func(context.Context, objstoretest.Call) error { return objstore.ErrUnavailable })
	alone.run(func(*catalog.Catalog) {})
	alone.bucket = w.bucket
	alone.check().expect(t, []want{{Note, "backup/0", "this and 4 more objects belong to no topic"}})
}

// A disk that another node has overtaken names what only it has.
func TestSupersededDisk(t *testing.T) { // case 7-18
	a := busy(t) // its last 20 records and more were never uploaded
	b := newWorld(t)
	b.bucket = a.bucket
	b.run(func(c *catalog.Catalog) {
		p := b.partition(c, "t")
		b.fill(p, 300, 100, 50)
		b.evict(p, 0)
	})
	next := a.manifest().Next()
	a.check().expect(t, []want{{Damage, "/0/log", "were acknowledged here and never uploaded"}})
	b.check().expect(t, nil)
	if next < 300 {
		t.Fatalf("the bucket ends at %d", next)
	}
}

// One without such a tail begins anew, and nobody misses anything.
func TestSupersededDiskWithoutTail(t *testing.T) {
	a := newWorld(t)
	a.run(func(c *catalog.Catalog) {
		p := a.create(c, "t", plain)
		a.fill(p, 0, 100, 30)
		a.evict(p, 0)
	})
	b := newWorld(t)
	b.bucket = a.bucket
	b.run(func(c *catalog.Catalog) {
		p := b.partition(c, "t")
		b.fill(p, 100, 50, 50)
		b.evict(p, 0)
	})
	a.check().expect(t, []want{{Note, "/0/log", "begins anew where the bucket ends"}})
}

// What a running gateway replaces while it is looked at is not damage.
func TestSegmentReplacedMeanwhile(t *testing.T) {
	w := busy(t)
	m := w.manifest()
	gone := m.Segments[len(m.Segments)-1]
	w.bucket.After(func(_ context.Context, c objstoretest.Call) error {
		if c.Op == objstoretest.OpGet && strings.HasSuffix(c.Key, "manifest.json") {
			w.bucket.After(nil)
			next := *m
			next.Generation++
			next.Segments = next.Segments[:len(next.Segments)-1]
			b, err := manifest.Encode(&next)
			if err != nil {
				return err
			}
			_, err = w.bucket.Inner().Put(context.Background(), c.Key, bytes.NewReader(b), int64(len(b)), objstore.Condition{})
			return errors.Join(err, w.bucket.Inner().Delete(context.Background(), tiered.LogKey(w.prefix(), &gone)))
		}
		return nil
	})
	o := Options{Bucket: w.bucket, ScratchFS: vfs.NewMem(), ScratchDir: "/", Report: func(f Finding) { t.Errorf("%+v", f) }}
	sum, err := Run(t.Context(), o)
	if err != nil || sum.RemoteSegments != len(m.Segments)-1 {
		t.Errorf("%+v, %v", sum, err)
	}
}

func TestProgress(t *testing.T) {
	var total, done int64
	res := busy(t).check(func(o *Options) {
		o.Begin = func(n int64) { total = n }
		o.Step = func(n int64) { done += n }
	})
	if res.err != nil || total == 0 || done > total || done < total*9/10 || done != res.sum.Bytes {
		t.Errorf("%d of %d bytes; %+v", done, total, res.sum)
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	w := busy(t)
	var res result
	o := Options{FS: w.fs, DataDir: dataDir, Bucket: w.bucket, ScratchFS: vfs.NewMem(), ScratchDir: "/",
		Report: func(Finding) {}, Step: func(int64) { cancel() }}
	if res.sum, res.err = Run(ctx, o); !errors.Is(res.err, context.Canceled) {
		t.Errorf("%v", res.err)
	}
	cancel()
}
