package check

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"keyhole/catalog"
	"keyhole/index"
	"keyhole/manifest"
	"keyhole/tiered"
)

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
		"active segment, shorter than the index, which does not prove it": { // a crash, with flush.ms
			func(w *world) {
				w.remove(stop)
				w.index(func(x *index.Index, b *index.Batch) {
					at := x.Applied()
					at.SyncedLog -= 60
					if err := b.Commit(at); err != nil {
						t.Fatal(err)
					}
				})
				w.edit(active, func(b []byte) []byte { return b[:len(b)-500] })
			},
			[]want{{Note, active, "torn tail"}, {Damage, "kv_index", "acknowledged records are gone"}},
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
				old := shortened(m, len(m.Segments)-1)
				old.Generation--
				b, err := manifest.Encode(old)
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
				w.putManifest(shortened(m, 2))
			},
			[]want{{Damage, manifestKey, "in neither tier"}, {Note, ".log", "no manifest names it"}},
		},
		"segments missing in the manifest": {
			func(w *world) {
				cut := *m
				cut.Segments = cut.Segments[:2]
				w.putManifest(&cut)
			},
			[]want{{Damage, manifestKey, `key "k0": its latest record at offset 249 is in the local log alone`},
				{Damage, manifestKey, `key "k13": it was deleted at offset 262, and the bucket`},
				{Damage, "kv_index", "its latest record is at"}, {Damage, "/log", "more keys like these"}},
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
			[]want{{Damage, "kv_index", "key "}},
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

// shortened is a manifest that ends with the first n segments.
func shortened(m *manifest.Manifest, n int) *manifest.Manifest {
	out := *m
	out.Segments = m.Segments[:n]
	out.NextOffset = m.Segments[n-1].LastOffset + 1
	out.DeleteHorizon = min(out.DeleteHorizon, out.NextOffset)
	out.LeaderEpochs = slices.DeleteFunc(slices.Clone(m.LeaderEpochs), func(e manifest.EpochStart) bool { return e.StartOffset >= out.NextOffset })
	return &out
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
