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

// want is a finding that a damaged world must give.
type want struct {
	severity Severity
	object   string // what it ends in
	message  string // what it contains
}

func TestDamage(t *testing.T) {
	base := busy(t)
	localLogs := base.files(base.dir("log"), ".log")
	sealed, active := localLogs[0], localLogs[len(localLogs)-1]
	m := base.manifest()
	cold := &m.Segments[1] // no longer on disk
	logKey, indexKey := tiered.LogKey(base.prefix(), cold), tiered.IndexKey(base.prefix(), cold)
	manifestKey := tiered.ManifestKey(base.prefix())
	table := base.dir("remote", tiered.TableName(cold))
	sparse := strings.TrimSuffix(sealed, ".log") + ".index"
	stop := base.dir("log", "clean-stop")
	offset := func(key string) (at int64) {
		base.clone(t).index(func(x *index.Index, _ *index.Batch) {
			var ok bool
			var err error
			if at, ok, err = x.Get([]byte(key)); err != nil || !ok {
				t.Fatalf("%s: %v, %v", key, ok, err)
			}
		})
		return at
	}
	k5, k60 := offset("k5"), offset("k60")

	for name, c := range map[string]struct {
		damage func(w *world)
		want   []want
	}{
		"local segment, middle": {
			func(w *world) { w.edit(sealed, flip(20_000)) },
			[]want{{Damage, sealed, "cannot be read"}},
		},
		"local segment, first checkpoint": {
			func(w *world) { w.edit(sealed, flip(30)) },
			[]want{{Note, sealed, "no record is lost"}},
		},
		"active segment, tail": {
			func(w *world) { w.edit(active, flip(-10)) },
			[]want{{Damage, active, "cannot be read"}},
		},
		"active segment, shorter than it was left": {
			func(w *world) { w.edit(active, func(b []byte) []byte { return b[:len(b)-500] }) },
			[]want{{Damage, active, "cannot be read"}},
		},
		"active segment, shorter than the index proves": {
			func(w *world) {
				w.remove(stop)
				w.edit(active, func(b []byte) []byte { return b[:len(b)-500] })
			},
			[]want{{Damage, active, "cannot be read"}},
		},
		"torn tail": { // case 1-10
			func(w *world) {
				w.remove(stop)
				w.edit(active, func(b []byte) []byte { return append(b, b[200:700]...) })
			},
			[]want{{Note, active, "torn tail of 500 bytes"}},
		},
		"torn tail behind a clean stop": {
			func(w *world) { w.edit(active, func(b []byte) []byte { return append(b, "torn"...) }) },
			[]want{{Note, active, "torn tail of 4 bytes"}},
		},
		"local segment missing": {
			func(w *world) { w.remove(localLogs[1]) },
			[]want{{Damage, localLogs[0], "the segment behind it is missing"}, {Note, strings.TrimSuffix(localLogs[1], ".log") + ".index", "is gone"}},
		},
		"all local segments missing": {
			func(w *world) {
				for _, path := range localLogs {
					w.remove(path)
				}
			},
			[]want{{Damage, "clean-stop", "all segments are missing"}},
		},
		"local log missing": {
			func(w *world) { w.remove(w.dir("log")) },
			[]want{{Damage, "kv_index", "acknowledged records are gone"}},
		},
		"sparse index, garbage": {
			func(w *world) { w.edit(sparse, flip(150)) },
			[]want{{Note, sparse, "will be rebuilt"}},
		},
		"sparse index missing": {
			func(w *world) { w.remove(sparse) },
			[]want{{Note, sparse, "missing"}},
		},
		"temporary files": {
			func(w *world) {
				w.write(sparse+".tmp", []byte("x"))
				w.write(w.dir("remote", "manifest.json.tmp"), []byte("x"))
				w.write(dataDir+"/node.json.tmp", []byte("x"))
				w.write(w.dir("what"), []byte("x"))
			},
			[]want{{Note, sparse + ".tmp", "temporary"}, {Note, "remote/manifest.json.tmp", "temporary"}, {Note, "/node.json.tmp", "left over"}, {Note, "0/what", "not a file"}},
		},

		"remote chunk": { // case 3-25
			func(w *world) { w.editObject(logKey, flip(30_000)) },
			[]want{{Damage, logKey, "segment of offsets"}},
		},
		"chunk table in the bucket": {
			func(w *world) { w.editObject(indexKey, flip(50)) },
			[]want{{Damage, indexKey, "chunk table"}},
		},
		"key run": {
			func(w *world) { w.editObject(indexKey, flip(-30)) },
			[]want{{Damage, indexKey, ""}},
		},
		"segment object missing": {
			func(w *world) { w.delete(logKey) },
			[]want{{Damage, logKey, "no such object"}},
		},
		"index object missing": {
			func(w *world) { w.delete(indexKey) },
			[]want{{Damage, indexKey, "no such object"}},
		},
		"segment object truncated": {
			func(w *world) { w.editObject(logKey, func(b []byte) []byte { return b[:len(b)-1] }) },
			[]want{{Damage, logKey, ""}},
		},
		"segment object too long": {
			func(w *world) { w.editObject(logKey, func(b []byte) []byte { return append(b, 0) }) },
			[]want{{Damage, logKey, "the manifest says"}},
		},
		"orphans": {
			func(w *world) {
				w.put(strings.Replace(logKey, ".log", "0.log", 1), []byte("x"))
				w.put(w.prefix()+"what/else", []byte("x"))
				w.put("~probe/x", []byte("x"))
				w.put("t/"+w.topic+"/7/x", []byte("x"))
			},
			[]want{{Note, "0.log", "no manifest names it"}, {Note, "what/else", "orphan"}, {Note, "~probe/x", "orphan"}, {Note, "/7/x", "does not have this partition"}},
		},
		"local chunk table, garbage": {
			func(w *world) { w.edit(table, flip(60)) },
			[]want{{Note, table, "not usable"}},
		},
		"local chunk table of another segment": {
			func(w *world) { w.write(table, w.read(w.dir("remote", tiered.TableName(&m.Segments[0])))) },
			[]want{{Note, table, "not usable"}},
		},
		"local chunk table of no segment": {
			func(w *world) { w.write(w.dir("remote", "x.table"), []byte("x")) },
			[]want{{Note, "x.table", "belongs to no segment"}},
		},

		"manifest": {
			func(w *world) { w.editObject(manifestKey, flip(200)) },
			[]want{{Damage, manifestKey, ""}},
		},
		"manifest missing": {
			func(w *world) { w.delete(manifestKey) },
			[]want{{Damage, manifestKey, "missing, though"}},
		},
		"manifest and its copy missing": {
			func(w *world) {
				w.delete(manifestKey)
				w.remove(w.dir("remote", "manifest.json"))
			},
			[]want{{Damage, manifestKey, "objects of segments"}, {Damage, manifestKey, "in neither tier"}},
		},
		"manifest went back": {
			func(w *world) {
				old := *m
				old.Generation--
				old.Segments = old.Segments[:len(old.Segments)-1]
				b, err := manifest.Encode(&old)
				if err != nil {
					t.Fatal(err)
				}
				w.put(manifestKey, b)
			},
			[]want{{Damage, manifestKey, "the bucket went back"}, {Note, ".log", "no manifest names it"}},
		},
		"manifest's copy, garbage": {
			func(w *world) { w.edit(w.dir("remote", "manifest.json"), flip(200)) },
			[]want{{Note, "remote/manifest.json", "not usable"}},
		},
		"manifest's copy missing": {
			func(w *world) { w.remove(w.dir("remote", "manifest.json")) },
			[]want{{Note, "remote/manifest.json", "no copy"}},
		},
		"hole between the tiers": {
			func(w *world) {
				cut := *m
				cut.Segments = cut.Segments[:2]
				w.putManifest(&cut)
			},
			[]want{{Damage, manifestKey, "in neither tier"}, {Note, ".log", "no manifest names it"}},
		},
		"hole in the bucket": {
			func(w *world) {
				cut := *m
				at, ok := m.Find(offset("k51"))
				if !ok {
					t.Fatal("k51 is not in the bucket")
				}
				cut.Segments = slices.Delete(slices.Clone(cut.Segments), at, at+1)
				w.putManifest(&cut)
			},
			[]want{{Note, manifestKey, "no segment has offsets"}, {Damage, "kv_index", "key "}},
		},

		"index leads to another record": { // case 1-04
			func(w *world) {
				w.index(func(_ *index.Index, b *index.Batch) { b.Set([]byte("k5"), k60) })
			},
			[]want{{Damage, "kv_index", fmt.Sprintf(`key "k5": the index says offset %d, and its latest record is at %d`, k60, k5)}},
		},
		"index has an outdated record": {
			func(w *world) {
				w.index(func(_ *index.Index, b *index.Batch) { b.Set([]byte("k60"), 1) })
			},
			[]want{{Damage, "kv_index", `key "k60"`}},
		},
		"index lacks a key": {
			func(w *world) { w.index(func(_ *index.Index, b *index.Batch) { b.Delete([]byte("k5")) }) },
			[]want{{Damage, "kv_index", `key "k5": not in the index`}},
		},
		"index has a key of nobody": {
			func(w *world) { w.index(func(_ *index.Index, b *index.Batch) { b.Set([]byte("zz"), 3) }) },
			[]want{{Damage, "kv_index", `no record has this key`}},
		},
		"index has a deleted key": {
			func(w *world) {
				// The last record of k38 is offset 318, 318 % 7 == 3.
				w.index(func(_ *index.Index, b *index.Batch) { b.Set([]byte("k38"), 10) })
			},
			[]want{{Damage, "kv_index", `the key was deleted at 318`}},
		},
		"index lacks everything": {
			func(w *world) {
				w.index(func(x *index.Index, b *index.Batch) {
					if err := x.Scan(func(key []byte, _ int64) error { b.Delete(key); return nil }); err != nil {
						t.Fatal(err)
					}
				})
			},
			[]want{{Damage, "kv_index", "not in the index"}, {Damage, "kv_index", "more keys like these"}},
		},
		"index missing": {
			func(w *world) { w.remove(w.dir("kv_index")) },
			[]want{{Note, "kv_index", "no index"}},
		},
		"index, first table": {
			func(w *world) {
				for _, path := range w.files(w.dir("kv_index"), ".sst") {
					w.edit(path, flip(20))
				}
			},
			[]want{{Note, "kv_index", "does not open"}},
		},
		"index without its manifest": {
			func(w *world) {
				for _, path := range w.files(w.dir("kv_index"), "") {
					if strings.Contains(path, "MANIFEST-") {
						w.remove(path)
					}
				}
			},
			[]want{{Note, "kv_index", "does not open"}},
		},
		"index beyond the log": {
			func(w *world) {
				w.index(func(x *index.Index, b *index.Batch) {
					at := x.Applied()
					if err := b.Commit(index.Position{NextLog: at.NextLog + 5, NextKafka: at.NextKafka + 5}); err != nil {
						t.Fatal(err)
					}
				})
			},
			[]want{{Damage, "kv_index", "acknowledged records are gone, offsets 320 to 324"}},
		},

		"topic.json": {
			func(w *world) { w.edit(dataDir+"/topics/t/"+w.topic+"/topic.json", flip(120)) },
			[]want{{Damage, "topics/t/" + base.topic + "/topic.json", ""}, {Note, "/topic.json", "in the bucket only"}},
		},
		"topic.json in the bucket": {
			func(w *world) { w.editObject(catalog.TopicKey("t", w.topic), flip(120)) },
			[]want{{Damage, catalog.TopicKey("t", base.topic), ""}},
		},
		"topic.json missing in the bucket": {
			func(w *world) { w.delete(catalog.TopicKey("t", w.topic)) },
			[]want{{Note, catalog.TopicKey("t", base.topic), "does not have the topic's description"}},
		},
		"node.json": {
			func(w *world) { w.edit(dataDir+"/node.json", flip(90)) },
			[]want{{Damage, "/data/node.json", ""}},
		},
		"config.json": {
			func(w *world) { w.edit(dataDir+"/config.json", flip(90)) },
			[]want{{Damage, "/data/config.json", ""}},
		},
		"cluster.json": {
			func(w *world) { w.editObject(catalog.ClusterKey, flip(90)) },
			[]want{{Damage, catalog.ClusterKey, ""}},
		},
		"cluster.json missing": {
			func(w *world) { w.delete(catalog.ClusterKey) },
			[]want{{Note, catalog.ClusterKey, "right bucket"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := base.clone(t)
			c.damage(w)
			res := w.check()
			if res.err != nil {
				res.dump(t)
				t.Fatal(res.err)
			}
			res.expect(t, c.want)
		})
	}
}

// expect demands the findings that are wanted, no damage of anything else, and no
// note that none of them explains.
func (r result) expect(t *testing.T, wants []want) {
	t.Helper()
	damage := false
	for _, c := range wants {
		damage = damage || c.severity == Damage
		if !slices.ContainsFunc(r.findings, c.is) {
			t.Errorf("no %s of %s with %q", c.severity, c.object, c.message)
		}
	}
	for _, f := range r.findings {
		if !slices.ContainsFunc(wants, func(c want) bool { return c.severity == f.Severity && strings.HasSuffix(f.Object, c.object) }) && f.Severity == Damage {
			t.Errorf("unexpected: %+v", f)
		}
		if f.Position < 0 || f.Message == "" {
			t.Errorf("no use: %+v", f)
		}
	}
	if r.sum.OK() == damage {
		t.Errorf("OK is %v", r.sum.OK())
	}
	if t.Failed() {
		r.dump(t)
	}
}

func (c want) is(f Finding) bool {
	return c.severity == f.Severity && strings.HasSuffix(f.Object, c.object) && strings.Contains(f.Message, c.message)
}

// Damage of an index that only a lookup would meet.
func TestIndexBlock(t *testing.T) {
	w := newWorld(t)
	w.run(func(c *catalog.Catalog) {
		p := w.create(c, "t")
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
		p := w.create(c, "t")
		w.fill(p, 0, 100, 30)
		w.evict(p, 0)
		res := w.check(func(o *Options) { o.Bucket = nil })
		if !errors.Is(res.err, ErrRunning) || len(res.findings) > 0 {
			t.Errorf("with the data directory: %v, %v", res.err, res.findings)
		}
		if strings.Contains(res.err.Error(), "\n") {
			t.Errorf("more than one line: %v", res.err)
		}
		res = w.check(func(o *Options) { o.DataDir = "" })
		if res.err != nil || len(res.findings) > 0 || res.sum.RemoteSegments < 3 {
			res.dump(t)
			t.Error("the bucket alone")
		}
	})
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
		p := w.create(c, "t")
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
		p := w.create(c, "t")
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
	for key := range w.objects() {
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
	w.put(catalog.ClusterKey, other.object(catalog.ClusterKey))
	w.check().expect(t, []want{{Damage, catalog.ClusterKey, "wrong bucket"}})
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
		p := a.create(c, "t")
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
