package check

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/catalog"
	"keyhole/index"
	"keyhole/locallog"
	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/partition"
	"keyhole/record"
	"keyhole/tiered"
)

// shrinking are the properties of a topic in which compaction finds much to do, and
// tombstones go at once.
var shrinking = map[string]string{"segment.bytes": "16384", "delete.retention.ms": "0", "min.cleanable.dirty.ratio": "0"}

func (w *world) compact(p *partition.Partition) partition.Compaction {
	w.t.Helper()
	c, err := p.Compact(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// shrunk is a world that was compacted in both tiers: with segments that are gone,
// others that were rewritten, and objects that wait for their deletion.
func shrunk(t *testing.T) *world {
	t.Helper()
	// The background compacts as well, and begins when a node is some seconds old: what
	// is made before that is always the same.
	const young, tries = 4 * time.Second, 10
	for try := 1; ; try++ {
		begun := time.Now()
		w, done := shrink(t)
		switch {
		case time.Since(begun) > young && try < tries:
			continue
		case done.LocalSegments == 0 || done.CloudSegments == 0 || done.TombstonesRemoved == 0:
			t.Fatalf("not much of a compaction: %+v", done)
		}
		return w
	}
}

func shrink(t *testing.T) (w *world, done partition.CompactionStats) {
	t.Helper()
	w = newWorld(t)
	w.run(func(c *catalog.Catalog) {
		p := w.create(c, "t", shrinking)
		w.fill(p, 0, 60, 30)
		w.evict(p, 0)
		w.fill(p, 60, 60, 30)
		w.compact(p)
		w.fill(p, 120, 40, 50)
		w.evict(p, 100<<10)
		done = w.compact(p).Done
		w.fill(p, 160, 20, 20)
		w.evict(p, 100<<10) // uploads some of it
		w.fill(p, 180, 5, 20)
	})
	return w, done
}

// only reports whether all findings are notes with the given words.
func (r result) only(t *testing.T, message string) (n int) {
	t.Helper()
	for _, f := range r.findings {
		if f.Severity != Note || !strings.Contains(f.Message, message) {
			t.Errorf("unexpected: %+v", f)
		}
	}
	if r.err != nil {
		t.Error(r.err)
	}
	if t.Failed() {
		r.dump(t)
	}
	return len(r.findings)
}

func TestCompacted(t *testing.T) {
	w := shrunk(t)
	m := w.manifest()
	if len(m.Removed) == 0 || m.DeleteHorizon == 0 || len(m.Segments) < 2 {
		t.Fatalf("not much of a compaction: %+v", m)
	}
	var total, done int64
	res := w.check(func(o *Options) {
		o.Begin = func(n int64) { total = n }
		o.Step = func(n int64) { done += n }
	})
	if done > total || done < total*9/10 {
		t.Errorf("progress was %d of %d bytes", done, total)
	}
	if n := res.only(t, "waiting for deletion"); n != 2*len(m.Removed) {
		t.Errorf("%d notes of %d removed segments", n, len(m.Removed))
	}
	if !slices.ContainsFunc(res.findings, want{Note, tiered.LogKey(w.prefix(), removedSegment(m.Removed[0])), "replaced at 20"}.is) {
		t.Error("a replaced object is not named")
	}
	if s := res.sum; s.LocalSegments < 3 || s.RemoteSegments == 0 || s.Keys < 30 || s.Records < 20 {
		t.Errorf("did not look at enough: %+v", s)
	}
	w.check(func(o *Options) { o.DataDir = "" }).only(t, "waiting for deletion")
	w.check(func(o *Options) { o.Bucket = nil }).expect(t, []want{{Note, "/log", "not looked at"}})

	// Replaced objects that are gone already, one by one, are none of anybody's business.
	for _, r := range m.Removed {
		w.delete(tiered.LogKey(w.prefix(), removedSegment(r)))
	}
	if n := w.check().only(t, "waiting for deletion"); n != len(m.Removed) {
		t.Errorf("%d notes", n)
	}
	for _, r := range m.Removed {
		w.delete(tiered.IndexKey(w.prefix(), removedSegment(r)))
	}
	if n := w.check().only(t, ""); n != 0 {
		t.Errorf("%d notes", n)
	}
}

// All segments of the bucket are dead: they are gone, and only NextOffset tells.
func TestNothingAlive(t *testing.T) {
	w := newWorld(t)
	w.run(func(c *catalog.Catalog) {
		p := w.create(c, "t", shrinking)
		for i := range 60 {
			rec := record.Record{Key: fmt.Appendf(nil, "k%d", i%10)}
			if i < 50 {
				rec.Value = make([]byte, 2000)
			}
			if _, err := p.Append(t.Context(), []record.Record{rec}); err != nil {
				t.Fatal(err)
			}
		}
		w.evict(p, 0)
		w.compact(p)
	})
	if m := w.manifest(); len(m.Segments) > 0 || m.NextOffset != 60 {
		t.Fatalf("%+v", m)
	}
	w.check().only(t, "waiting for deletion")
	w.check(func(o *Options) { o.DataDir = "" }).only(t, "waiting for deletion")
}

func TestCompactedDamage(t *testing.T) {
	base := shrunk(t)
	m := base.manifest()
	key := tiered.ManifestKey(base.prefix())
	seg := func(change func(*manifest.Segment)) func(*world) {
		return func(w *world) {
			out := *m
			out.Segments = slices.Clone(m.Segments)
			change(&out.Segments[0])
			w.putManifest(&out)
		}
	}
	// bucketOnly changes the bucket's manifest, a generation on.
	bucketOnly := func(change func(*manifest.Manifest)) func(*world) {
		return func(w *world) {
			out := *m
			out.Generation++
			out.LeaderEpochs = slices.Clone(m.LeaderEpochs)
			change(&out)
			b, err := manifest.Encode(&out)
			if err != nil {
				t.Fatal(err)
			}
			w.put(key, b)
		}
	}
	for name, c := range map[string]struct {
		damage func(w *world)
		want   []want
	}{
		"records": {seg(func(s *manifest.Segment) { s.Records++ }), []want{{Damage, ".log", "records up to timestamp"}, {Damage, ".index", "of another segment"}}},
		"tombstones": {
			seg(func(s *manifest.Segment) {
				if s.Tombstones++; s.Tombstones == s.Records {
					t.Fatal("all of them may be unknown")
				}
			}),
			[]want{{Damage, ".log", "tombstones, the manifest says"}},
		},
		"epoch of a segment": {seg(func(s *manifest.Segment) { s.Epoch += 5 }), []want{{Damage, key, "the list of epochs says"}}},
		"epochs since the copy": {
			bucketOnly(func(m *manifest.Manifest) { m.LeaderEpochs[0].Epoch += 5 }),
			[]want{{Damage, key, "other records have been written there"}, {Damage, key, "the list of epochs says"}, {Damage, key, "the local log has it in"}},
		},
		"epoch of a local segment": {
			func(w *world) {
				out := *m
				out.LeaderEpochs = slices.Clone(m.LeaderEpochs)
				out.Segments = slices.Clone(m.Segments)
				out.LeaderEpochs[0].Epoch += 5
				for i := range out.Segments {
					out.Segments[i].Epoch += 5
				}
				w.putManifest(&out)
			},
			[]want{{Damage, key, "the local log has it in"}},
		},
		"start went back": {
			func(w *world) {
				raised := *m
				raised.StartOffset, raised.Segments, raised.Removed = m.NextOffset, nil, nil
				w.putManifest(&raised)
				bucketOnly(func(*manifest.Manifest) {})(w)
			},
			[]want{{Damage, key, "went back and was written since"}},
		},
		"horizon went back": {
			bucketOnly(func(m *manifest.Manifest) { m.DeleteHorizon = 0 }),
			[]want{{Damage, key, "went back and was written since"}},
		},
		"a segment that the manifest removed by mistake": {
			func(w *world) {
				out, err := m.Replace(m.Segments[:1], nil, 0, time.UnixMilli(1))
				if err != nil {
					t.Fatal(err)
				}
				w.putManifest(out)
			},
			[]want{{Damage, key, `key "k30": its latest record at offset 130 is in the local log alone`}, {Damage, "kv_index", "no record has this key"}, {Note, ".log", "waiting for deletion"}},
		},
		"a record that compaction of the local log removed by mistake": {
			func(w *world) { w.drop("k41") },
			[]want{{Damage, "0/log", `key "k41": the bucket has its record at offset 141, the local log`}},
		},
		"a deletion that the bucket has forgotten already": {func(w *world) { w.drop("k36") }, nil},
		"index misses a deletion": {
			func(w *world) { w.index(func(_ *index.Index, b *index.Batch) { b.Set([]byte("k36"), 36) }) },
			[]want{{Damage, "kv_index", `key "k36": the index says offset 36, and the key was deleted at 136`}},
		},
		"index behind the horizon": {
			func(w *world) {
				w.index(func(_ *index.Index, b *index.Batch) {
					b.Set([]byte("zz"), 1)
					if err := b.Commit(index.Position{NextKafka: m.DeleteHorizon - 1}); err != nil {
						t.Fatal(err)
					}
				})
			},
			[]want{{Note, "kv_index", "are gone from the bucket; the next start builds it anew"}},
		},
		"stray files": {
			func(w *world) {
				logs := w.files(w.dir("log"), ".log")
				for _, path := range []string{w.dir("remote", "compact.tmp"), logs[0] + ".tmp", strings.TrimSuffix(logs[0], ".log") + ".compact.tmp",
					w.dir("compacted.tmp"), w.dir("log.outdated"), w.dir("kv_index.next"), w.dir("remote", "manifest.json.replica")} {
					w.write(path, []byte("x"))
				}
				w.write(w.dir("compacted"), []byte("local=1 remote=1\n"))
			},
			[]want{{Note, "remote/compact.tmp", "rewrite"}, {Note, ".log.tmp", "temporary"}, {Note, ".compact.tmp", "temporary"}, {Note, "/compacted.tmp", "temporary"},
				{Note, "log.outdated", "set aside"}, {Note, "kv_index.next", "not a file"}, {Note, "manifest.json.replica", "read replica's copy"}},
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
			for _, f := range res.findings { // no notes beyond those
				if !strings.Contains(f.Message, "waiting for deletion") && !slices.ContainsFunc(c.want, func(w want) bool { return w.severity == f.Severity && strings.Contains(f.Message, w.message) }) && f.Severity == Note && !strings.Contains(f.Message, "generation") {
					t.Errorf("unexpected: %+v", f)
				}
			}
		})
	}
}

// A deletion that the local log alone has lost comes back with the next rebuild.
func TestDeletionLost(t *testing.T) {
	w := busy(t)
	none := w.clone(t)
	none.drop("k61") // its only record is the tombstone at offset 227
	none.check().only(t, "nothing at all")
	w.drop("k13")
	w.check().expect(t, []want{{Damage, "0/log", `key "k13": the bucket has its record at offset 262, the local log`}})
}

// drop compacts the local log so that records of a key go, which nothing replaces.
func (w *world) drop(key string) {
	w.t.Helper()
	ctx := w.t.Context()
	var at index.Position
	w.index(func(x *index.Index, _ *index.Batch) { at = x.Applied() })
	log, err := locallog.Open(ctx, locallog.Options{
		FS: w.fs, Dir: w.dir("log"), ProvenNextLog: at.NextLog, Epoch: 1,
		SegmentBytes: func() int64 { return 1 << 20 }, FlushInterval: func() time.Duration { return 0 },
		Apply: func([]locallog.Appended) error { return nil },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, seg := range log.Segments() {
		if !seg.Sealed {
			continue
		}
		_, err := log.CompactSegment(ctx, seg.BaseLog, locallog.CompactOptions{
			Codec: record.Zstd, Target: 64 << 10,
			Keep: func(k []byte, _ int64, _ bool) (bool, error) { return string(k) != key, nil },
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	if err := log.Close(); err != nil {
		w.t.Fatal(err)
	}
}

// Retention that has just raised the start, and an index that still has entries
// below it.
func TestRetention(t *testing.T) {
	w := newWorld(t)
	w.run(func(c *catalog.Catalog) {
		p := w.create(c, "t", map[string]string{"segment.bytes": "16384", "cleanup.policy": "compact,delete", "min.compaction.lag.ms": "86400000",
			"keyhole.remote.compression.type": "producer"})
		w.fill(p, 0, 100, 90)
		w.evict(p, 60<<10)
		if err := c.AlterTopic(t.Context(), "t", map[string]string{"retention.bytes": "100000"}, nil); err != nil {
			t.Fatal(err)
		}
		w.compact(p)
		w.fill(p, 100, 5, 90)
	})
	m := w.manifest()
	if m.StartOffset == 0 {
		t.Fatal("nothing was removed")
	}
	w.check().only(t, "waiting for deletion")
	w.check(func(o *Options) { o.DataDir = "" }).only(t, "waiting for deletion")

	unpurged := w.clone(t)
	unpurged.index(func(_ *index.Index, b *index.Batch) { b.Set([]byte("k20"), 20); b.Set([]byte("k21"), 21) })
	unpurged.check().expect(t, []want{{Note, "kv_index", fmt.Sprintf("2 entries of records below offset %d", m.StartOffset)}})

	wrong := w.clone(t)
	wrong.index(func(_ *index.Index, b *index.Batch) { b.Set([]byte("k89"), 3) })
	wrong.check().expect(t, []want{{Damage, "kv_index", `key "k89"`}})

	// The manifest was committed, and then the process ended.
	var at int64
	local := w.files(w.dir("log"), ".log")
	if len(local) < 3 {
		t.Fatalf("%d local segments", len(local))
	}
	for i := range m.Segments {
		if m.Segments[i].LastOffset < 95 {
			at = m.Segments[i].LastOffset + 1
		}
	}
	cut, err := m.Truncate(at, time.UnixMilli(1))
	if err != nil {
		t.Fatal(err)
	}
	w.putManifest(cut)
	w.check().expect(t, []want{{Note, "0/log", fmt.Sprintf("though nothing below %d is retained", at)}, {Note, "kv_index", "which are no longer retained"}})
}

// Where there has never been a bucket, retention moves the start of the local log.
func TestRetentionWithoutBucket(t *testing.T) {
	w := newWorld(t)
	w.withoutBucket(func(c *catalog.Catalog) {
		p := w.create(c, "t", map[string]string{"segment.bytes": "16384", "cleanup.policy": "compact,delete", "retention.bytes": "50000"})
		w.fill(p, 0, 100, 90)
		w.compact(p)
	})
	alone := func(o *Options) { o.Bucket = nil }
	w.check(alone).only(t, "nothing is wrong")
	w.check().only(t, "does not have the topic's description yet")
	w.index(func(_ *index.Index, b *index.Batch) { b.Set([]byte("zz"), 1) })
	w.check(alone).expect(t, []want{{Note, "kv_index", "1 entries of records below"}})
}

// withoutBucket is run without a store.
func (w *world) withoutBucket(fn func(c *catalog.Catalog)) {
	w.t.Helper()
	bucket := w.bucket
	w.bucket = nil
	defer func() { w.bucket = bucket }()
	w.run(fn)
}

// Whatever the moment at which a compaction ends, nothing is damaged.
func TestCrashInCompaction(t *testing.T) {
	for name, properties := range map[string]map[string]string{
		"tombstones go at once": shrinking,
		"tombstones stay":       {"segment.bytes": "16384", "min.cleanable.dirty.ratio": "0"},
		"as they are":           {"segment.bytes": "16384", "delete.retention.ms": "0", "keyhole.remote.compression.type": "producer", "compression.type": "zstd"},
		"retention":             {"segment.bytes": "16384", "cleanup.policy": "compact,delete", "retention.bytes": "60000", "keyhole.remote.compression.type": "none"},
	} {
		t.Run(name, func(t *testing.T) { crashInCompaction(t, properties) })
	}
}

// serial is a bucket that is changed by one at a time, with the background among
// them, and that a test can look at in between.
type serial struct {
	objstore.Bucket
	mu     sync.Mutex
	before func() // called ahead of each change, alone; may be nil
}

func (s *serial) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond objstore.Condition) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.before != nil {
		s.before()
	}
	return s.Bucket.Put(ctx, key, body, size, cond)
}

func (s *serial) Delete(ctx context.Context, key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.before != nil {
		s.before()
	}
	return s.Bucket.Delete(ctx, key)
}

// look sets what is called ahead of each change from now on.
func (s *serial) look(before func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = before
}

func crashInCompaction(t *testing.T, properties map[string]string) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t)
	bucket := &serial{Bucket: objstoretest.NewMemory()}
	w.bucket = objstoretest.NewFaulty(bucket)
	var crashed []*world
	w.run(func(c *catalog.Catalog) {
		p := w.create(c, "t", properties)
		bucket.look(func() {
			out := newWorld(t)
			out.fs = w.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
			out.topic = w.topic
			for key, data := range w.objects() {
				out.put(key, []byte(data))
			}
			crashed = append(crashed, out)
		})
		defer bucket.look(nil)
		for round := range 4 {
			w.fill(p, round*50, 50, 20+10*round)
			if round%2 == 1 {
				w.evict(p, int64(round)*10<<10)
			}
			w.compact(p)
		}
	})
	m := w.manifest()
	if len(crashed) < 20 || len(m.Removed) == 0 || properties["retention.bytes"] != "" && m.StartOffset == 0 {
		t.Fatalf("%d points, and then %+v", len(crashed), m)
	}
	for i, c := range crashed {
		if res := c.check(); res.err != nil || !res.sum.OK() {
			res.dump(t)
			t.Fatalf("crash %d of %d", i, len(crashed))
		}
	}
	w.check().only(t, "waiting for deletion")
}
