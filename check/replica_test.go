package check

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/catalog"
	"keyhole/index"
	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/tiered"
)

// follower is a read replica of w's bucket that has come as far as the bucket goes,
// and was stopped.
func (w *world) follower() *world {
	w.t.Helper()
	r := newWorld(w.t)
	r.bucket, r.replica = w.bucket, true
	r.run(func(c *catalog.Catalog) {
		p := r.partition(c, "t")
		next := w.manifest().Next()
		eventually(w.t, "replica has all of the bucket", func() bool {
			st := p.Status()
			return st.IndexLastApplied != nil && *st.IndexLastApplied == next-1
		})
	})
	return r
}

func TestReplica(t *testing.T) {
	w := shrunk(t)
	r := w.follower()
	res := r.check()
	res.only(t, "waiting for deletion")
	if s := res.sum; s.Topics != 1 || s.LocalSegments != 0 || s.RemoteSegments < 2 || s.Keys < 30 {
		t.Errorf("did not look at enough: %+v", s)
	}
	if _, err := r.fs.Stat(r.dir("log")); !notExist(err) {
		t.Fatalf("a replica has a log: %v", err)
	}
	r.check(func(o *Options) { o.Bucket = nil }).only(t, "nothing to compare the index of a read replica with")

	// The writer goes on, and takes back what it has replaced.
	w.run(func(c *catalog.Catalog) {
		p := w.partition(c, "t")
		w.fill(p, 185, 60, 45)
		w.evict(p, 0)
		w.compact(p)
	})
	m := w.manifest()
	for _, gone := range m.Removed {
		w.delete(tiered.LogKey(w.prefix(), removedSegment(gone)))
		w.delete(tiered.IndexKey(w.prefix(), removedSegment(gone)))
	}
	r.check().only(t, "tombstones below") // are gone, so its index is built anew
}

// A replica that is behind misses nothing that its next start does not add.
func TestReplicaBehind(t *testing.T) {
	w := busy(t)
	r := w.follower()
	w.run(func(c *catalog.Catalog) {
		p := w.partition(c, "t")
		w.fill(p, 320, 100, 83)
		w.evict(p, 0)
	})
	r.check().only(t, "nothing at all")
	r.index(func(_ *index.Index, b *index.Batch) { b.Set([]byte("k5"), 1) }) // it has moved on
	r.check().only(t, "nothing at all")
	if at := w.latest("k5"); at < 320 {
		t.Fatalf("k5 is at %d", at)
	}
	r.index(func(_ *index.Index, b *index.Batch) { // as when it is filled for the first time
		if err := b.Commit(index.Position{}); err != nil {
			t.Fatal(err)
		}
	})
	r.check().expect(t, []want{{Note, "kv_index", "the next start builds it anew"}})
}

// latest is the offset that the index has of a key.
func (w *world) latest(key string) (at int64) {
	w.t.Helper()
	w.index(func(x *index.Index, _ *index.Batch) {
		var ok bool
		var err error
		if at, ok, err = x.Get([]byte(key)); err != nil || !ok {
			w.t.Fatalf("%s: %v, %v", key, ok, err)
		}
	})
	return at
}

func TestReplicaDamage(t *testing.T) {
	base := shrunk(t).follower()
	m := base.manifest()
	key := tiered.ManifestKey(base.prefix())
	for name, c := range map[string]struct {
		damage func(w *world)
		want   []want
	}{
		"index leads to another record": {
			func(w *world) { w.index(func(_ *index.Index, b *index.Batch) { b.Set([]byte("k30"), 1) }) },
			[]want{{Damage, "kv_index", `key "k30": the index says offset 1`}},
		},
		"index lacks a key": {
			func(w *world) { w.index(func(_ *index.Index, b *index.Batch) { b.Delete([]byte("k30")) }) },
			[]want{{Damage, "kv_index", `key "k30": not in the index`}},
		},
		"index beyond the bucket": {
			func(w *world) {
				w.index(func(_ *index.Index, b *index.Batch) {
					if err := b.Commit(index.Position{NextKafka: m.Next() + 1}); err != nil {
						t.Fatal(err)
					}
				})
			},
			[]want{{Damage, "kv_index", "the bucket went back"}},
		},
		"index that was being filled": {
			func(w *world) {
				w.index(func(_ *index.Index, b *index.Batch) {
					if err := b.Commit(index.Position{}); err != nil {
						t.Fatal(err)
					}
				})
			},
			[]want{{Note, "kv_index", "the next start builds it anew"}},
		},
		"index missing": {
			func(w *world) { w.remove(w.dir("kv_index")) },
			[]want{{Note, "kv_index", "the next start builds it from the bucket"}},
		},
		"second index in its place": {
			func(w *world) {
				if err := w.fs.Rename(w.dir("kv_index"), w.dir("kv_index.next")); err != nil {
					t.Fatal(err)
				}
			},
			nil,
		},
		"second index beside": {
			func(w *world) { w.write(w.dir("kv_index.next"), []byte("x")) },
			[]want{{Note, "kv_index.next", "the next start removes it"}},
		},
		"manifest's copy missing": {
			func(w *world) { w.remove(w.dir("remote", "manifest.json.replica")) },
			[]want{{Note, "manifest.json.replica", "no copy"}},
		},
		"manifest's copy, garbage": {
			func(w *world) { w.edit(w.dir("remote", "manifest.json.replica"), flip(200)) },
			[]want{{Note, "manifest.json.replica", "not usable"}},
		},
		"manifest missing": {
			func(w *world) { w.delete(key) },
			[]want{{Damage, key, "missing, though"}},
		},
		"manifest, garbage": {
			func(w *world) { w.editObject(key, flip(200)) },
			[]want{{Damage, key, ""}},
		},
		"bucket went back": {
			func(w *world) {
				b, err := manifest.Encode(shortened(m, 1))
				if err != nil {
					t.Fatal(err)
				}
				w.put(key, b)
			},
			[]want{{Damage, "kv_index", "the bucket went back"}, {Note, "manifest.json.replica", "differs from the bucket's"}},
		},
		"segment": {
			func(w *world) { w.editObject(tiered.LogKey(w.prefix(), &m.Segments[0]), flip(100)) },
			[]want{{Damage, ".log", "segment of offsets"}},
		},
		"files of a writer": {
			func(w *world) {
				w.write(w.dir("log"), []byte("x"))
				w.write(w.dir("compacted"), []byte("x"))
				w.write(w.dir("remote", "manifest.json"), []byte("x"))
				w.write(w.dir("remote", "x.table"), []byte("x"))
			},
			[]want{{Note, "0/log", "not a file"}, {Note, "0/compacted", "not a file"}, {Note, "remote/manifest.json", "a writer's copy"}, {Note, "x.table", "belongs to no segment"}},
		},
		"topic gone from the bucket": {
			func(w *world) {
				for _, k := range w.keys() {
					if strings.HasPrefix(k, "t/") {
						w.delete(k)
					}
				}
			},
			[]want{{Note, "t/" + base.topic, "removes it here"}},
		},
		"topic.json gone from the bucket": {
			func(w *world) { w.delete(catalog.TopicKey("t", w.topic)) },
			[]want{{Note, "t/" + base.topic, "removes it here"}, {Damage, catalog.TopicKey("t", base.topic), "missing, though"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := base.clone(t)
			c.damage(w)
			res := w.check()
			if res.err != nil {
				t.Fatal(res.err)
			}
			res.expect(t, c.want)
		})
	}
}

// A bucket whose writer goes on is not damaged because of that, nor is the index
// of a replica beside it.
func TestReplicaWhileSegmentsAreReplaced(t *testing.T) {
	w := busy(t)
	r := w.follower()
	m := w.manifest()
	met := 0
	check := func(base *world, i int, object string, reads int) {
		t.Helper()
		c := base.clone(t)
		c.bucket.After(func(_ context.Context, call objstoretest.Call) error {
			if call.Key != object || call.Op != objstoretest.OpReadRange {
				return nil
			}
			if reads--; reads >= 0 {
				return nil
			}
			c.bucket.After(nil)
			met++
			return c.replace(m, i)
		})
		var res result
		res.sum, res.err = Run(t.Context(), Options{
			FS: c.fs, DataDir: dataDir, Bucket: c.bucket, ScratchFS: vfs.NewMem(), ScratchDir: "/",
			Report: func(f Finding) { res.findings = append(res.findings, f) },
		})
		res.only(t, "belongs to no segment")
	}
	for i := range m.Segments {
		for _, object := range []string{tiered.LogKey(w.prefix(), &m.Segments[i]), tiered.IndexKey(w.prefix(), &m.Segments[i])} {
			for reads := range 4 {
				check(r, i, object, reads)
				check(w, i, object, reads) // by a node that takes over meanwhile
			}
		}
	}
	if met < 4*len(m.Segments) {
		t.Errorf("%d segments were replaced in the middle", met)
	}
}

// replace has a segment copied under another name, and the old objects deleted.
func (w *world) replace(m *manifest.Manifest, i int) error {
	old, by := m.Segments[i], m.Segments[i]
	by.UploadID = "01234567-89ab-4def-8123-456789abcdef"
	for _, key := range []func(string, *manifest.Segment) string{tiered.LogKey, tiered.IndexKey} {
		b := w.object(key(w.prefix(), &old))
		if _, err := w.bucket.Inner().Put(context.Background(), key(w.prefix(), &by), bytes.NewReader(b), int64(len(b)), objstore.Condition{}); err != nil {
			return err
		}
		if err := w.bucket.Inner().Delete(context.Background(), key(w.prefix(), &old)); err != nil {
			return err
		}
	}
	next := *m
	next.Generation++
	next.Segments = slices.Clone(m.Segments)
	next.Segments[i] = by
	b, err := manifest.Encode(&next)
	if err != nil {
		return err
	}
	_, err = w.bucket.Inner().Put(context.Background(), tiered.ManifestKey(w.prefix()), bytes.NewReader(b), int64(len(b)), objstore.Condition{})
	return err
}

// What a deleted topic has left is listed until the grace period is over; then
// nothing is left, and nothing to say.
func TestSweptTopic(t *testing.T) {
	w := newWorld(t)
	w.run(func(c *catalog.Catalog) {
		p := w.create(c, "t", plain)
		w.fill(p, 0, 100, 30)
		w.evict(p, 0)
		other := w.topic
		eventually(t, "second topic", func() bool {
			_, err := c.CreateTopic(t.Context(), "u", 1, nil)
			return err == nil
		})
		w.topic = other
		if err := c.DeleteTopic(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "deletion marked", func() bool {
			d, err := catalog.DecodeTopic("", w.object(catalog.TopicKey("t", other)), "t", other)
			return err == nil && d.DeletedMS != 0
		})
	})
	res := w.check()
	if n := res.only(t, "of a topic that was deleted at 20"); n < 5 {
		t.Errorf("%d notes", n)
	}
	// Half of it is gone.
	keys := []string{}
	for _, key := range w.keys() {
		if strings.HasPrefix(key, w.prefix()) {
			keys = append(keys, key)
		}
	}
	for _, key := range keys[:len(keys)/2] {
		w.delete(key)
	}
	w.check().only(t, "of a topic that was deleted at 20")
	w.run(func(c *catalog.Catalog) {
		if _, err := c.AlterCluster(t.Context(), map[string]any{"kv_index_lookup_timeout_ms": 500, "cloud_storage_gc_grace_ms": 1000}, nil); err != nil {
			t.Fatal(err)
		}
		eventually(t, "prefix emptied", func() bool {
			for _, key := range w.keys() {
				if strings.HasPrefix(key, "t/") {
					return false
				}
			}
			return true
		})
	})
	if res := w.check(); res.sum.Topics != 1 || res.only(t, "nothing at all") != 0 {
		res.dump(t)
		t.Error("findings of a topic that is gone")
	}
	if res := w.check(func(o *Options) { o.DataDir = "" }); res.only(t, "nothing at all") != 0 {
		t.Error("findings in the bucket")
	}
}
