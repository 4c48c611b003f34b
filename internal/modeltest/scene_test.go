package modeltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/record"
)

// place is a file on disk or an object of the bucket.
type place struct {
	remote bool
	name   string // full path, or key
}

func (p place) String() string {
	if p.remote {
		return "bucket:" + p.name
	}
	return p.name
}

// kind says what stands at a place of topic "t", partition 0, or of the node as a
// whole; empty: not of interest here.
func (s *scene) kind(p place) string {
	base := path.Base(p.name)
	part := "/" + s.topics["t"].id + "/0/"
	switch {
	case base == "LOCK", strings.Contains(p.name, "keyhole-probe"):
		return ""
	case p.remote && base == "cluster.json":
		return "cluster.json"
	case !p.remote && (base == "config.json" || base == "node.json"):
		return base
	case base == "topic.json" && strings.Contains(p.name, s.topics["t"].id):
		return "topic.json, " + p.tier()
	case !strings.Contains(p.name, part), s.replaced(base):
		return ""
	case base == "manifest.json":
		return "manifest, " + p.tier()
	case p.remote:
		return "remote " + strings.TrimPrefix(path.Ext(base), ".") + " object"
	case strings.Contains(p.name, "/kv_index/"):
		return "Pebble " + pebbleKind(base)
	case strings.HasSuffix(base, ".table"):
		return "chunk table"
	case base == "clean-stop", base == "compacted":
		return base
	case strings.HasSuffix(base, ".index"):
		return "sparse index"
	case strings.HasSuffix(base, ".log"):
		return s.segmentKind(p)
	}
	return ""
}

// replaced reports whether a file or an object is of a segment that compaction has
// replaced: nobody reads it any more.
func (s *scene) replaced(base string) bool {
	return slices.ContainsFunc(s.manifest(s.topics["t"], 0).Removed, func(r manifest.Removed) bool { return strings.Contains(base, r.UploadID) })
}

func pebbleKind(base string) string {
	if name, ok := strings.CutPrefix(base, "marker."); ok {
		name, _, _ = strings.Cut(name, ".")
		return "marker " + name
	}
	if ext := path.Ext(base); ext != "" {
		return ext[1:]
	}
	kind, _, _ := strings.Cut(base, "-")
	return kind
}

func (p place) tier() string {
	if p.remote {
		return "bucket"
	}
	return "disk"
}

// segmentKind tells segments by their order: the older half of the local ones is
// in the bucket too, the last one is active.
func (s *scene) segmentKind(p place) string {
	var logs []string
	for _, q := range s.places() {
		if !q.remote && strings.HasSuffix(q.name, ".log") && path.Dir(q.name) == path.Dir(p.name) {
			logs = append(logs, q.name)
		}
	}
	slices.Sort(logs)
	switch i := slices.Index(logs, p.name); {
	case i == len(logs)-1:
		return "local segment, active"
	case i == 0:
		return "local segment, also in the bucket"
	}
	return "local segment, sealed"
}

// scene is a node at rest whose records are in all places, and a copy of it is
// damaged again and again.
type scene struct {
	*world
	killed  bool            // it did not stop cleanly
	compact bool            // both tiers were compacted
	hot     map[string]bool // the newest record of which keys is on disk
	what    string          // was done to it
	lost    bool            // the index of the partition that is damaged is gone too
	refusal error           // why the node does not start
	index   bool            // a file of the index is damaged
}

// newScene makes topic "t", whose partition 0 has records in the bucket alone, in
// both tiers and on disk alone, newer ones hiding older ones in each; and
// neighbours: its partition 1 and topic "u". With compact, the bucket and the local
// log were compacted in between, and hold what later records hide all the same.
func newScene(t *testing.T, seed uint64, killed, compact bool) *scene {
	t.Helper()
	cfg := config{topics: 0, partitions: 1, keys: 24, valueBytes: 200,
		topic: map[string]string{"segment.bytes": "2048", "retention.local.target.ms": "-1"}}
	w := newWorld(t, seed, cfg)
	w.start()
	w.switchOn()
	w.createWith("t", 2, cfg.topic)
	w.createWith("u", 1, cfg.topic)
	fill := func(topic string, n, count int, key func(i int) int) {
		m := w.topics[topic].parts[n]
		for i := range count {
			off := m.next()
			rec := record.Record{Key: fmt.Appendf(nil, "key-%d", key(i)), Value: fmt.Appendf(nil, "%s/%d record %d %0150d", topic, n, off, off), Timestamp: off}
			if off%11 == 10 {
				rec.Value = nil
			}
			w.append(w.topics[topic], n, []record.Record{rec})
		}
	}
	for topic, n := range map[string]int{"t": 1, "u": 0} {
		fill(topic, n, 20, func(i int) int { return i })
		w.evictTo(topic, n, 0)
		fill(topic, n, 5, func(i int) int { return 17 + i })
	}
	// Each segment has keys that nobody wrote again, and keys that hide older
	// records.
	fill("t", 0, 30, func(i int) int { return i })
	w.evictTo("t", 0, 0)
	fill("t", 0, 12, func(i int) int { return 3 * i })
	if compact {
		w.compactNow("t", 0)
		fill("t", 0, 10, func(i int) int { return 3*i + 1 })
	}
	w.evictTo("t", 0, 4<<10) // uploads what is sealed and keeps some of it
	w.setTopic(w.topics["t"], "redpanda.remote.write", "false")
	fill("t", 0, 22, func(i int) int { return 5 + 3*i })
	if compact {
		w.compactNow("t", 0)
		fill("t", 0, 12, func(i int) int { return 2 * i })
	}
	m := w.manifest(w.topics["t"], 0)
	if records, _ := recordsOf(m); compact == (records == m.Next()) {
		w.t.Errorf("compacted %v, and the bucket has %d records of offsets up to %d", compact, records, m.Next())
	}
	s := &scene{world: w, killed: killed, compact: compact, hot: make(map[string]bool)}
	for name, t := range w.topics {
		for n, m := range t.parts {
			start, _ := w.status(t, n)
			for key, off := range m.latest {
				s.hot[hotName(name, n, key)] = off >= start
			}
		}
	}
	if killed {
		after := w.fs.CrashClone(vfs.CrashCloneCfg{})
		w.stop()
		w.fs = after
	} else {
		w.stop()
	}
	return s
}

func (w *world) evictTo(topic string, n int, target int64) {
	w.t.Helper()
	if _, err := w.partition(w.topics[topic], n).Evict(context.Background(), target); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) compactNow(topic string, n int) {
	w.t.Helper()
	done, err := w.partition(w.topics[topic], n).Compact(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	w.note("%+v", done.Done)
}

// clone copies a scene at rest.
func (s *scene) clone() *scene {
	w := *s.world
	w.node = newNode(s.t, 1, true)
	w.fs = s.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(0, 0))})
	for _, p := range s.places() {
		if p.remote {
			w.put(p.name, s.read(p))
		}
	}
	return &scene{world: &w, killed: s.killed, compact: s.compact, hot: s.hot}
}

func hotName(topic string, n int, key string) string { return fmt.Sprintf("%s/%d %s", topic, n, key) }

// begin starts the node and lets it do what it does by itself.
func (s *scene) begin() bool {
	s.t.Helper()
	if s.refusal = s.open(); s.refusal != nil {
		return false
	}
	time.Sleep(100 * time.Second) // longer than any back-off
	synctest.Wait()
	return true
}

// evictAll offers everything to the bucket, also what is damaged.
func (s *scene) evictAll() {
	s.t.Helper()
	for name, t := range s.topics {
		topic, err := s.c.Topic(name)
		if err != nil {
			continue
		}
		if err := s.c.AlterTopic(context.Background(), name, map[string]string{"redpanda.remote.write": "true"}, nil); err != nil {
			s.t.Errorf("%s: alter %s: %v", s.what, name, err)
		}
		for n := range t.parts {
			p, err := topic.Partition(int32(n))
			if err != nil {
				s.t.Fatal(err)
			}
			if _, err := p.Evict(context.Background(), 0); err != nil && !honest(err) {
				s.t.Errorf("%s: evict %s/%d: %v", s.what, name, n, err)
			}
		}
	}
}

// compactAll compacts everything, also what is damaged.
func (s *scene) compactAll() {
	s.t.Helper()
	for name, t := range s.topics {
		topic, err := s.c.Topic(name)
		if err != nil {
			continue
		}
		for n := range t.parts {
			p, err := topic.Partition(int32(n))
			if err != nil {
				s.t.Fatal(err)
			}
			if _, err := p.Compact(context.Background()); err != nil && !honest(err) {
				s.t.Errorf("%s: compact %s/%d: %v", s.what, name, n, err)
			}
		}
	}
}

func (w *world) put(key string, data []byte) {
	w.t.Helper()
	if _, err := w.bucket.Inner().Put(context.Background(), key, bytes.NewReader(data), int64(len(data)), objstore.Condition{}); err != nil {
		w.t.Fatal(err)
	}
}

// places lists everything there is.
func (s *scene) places() (out []place) {
	var walk func(dir string)
	walk = func(dir string) {
		names, err := s.fs.List(dir)
		if err != nil {
			s.t.Fatal(err)
		}
		slices.Sort(names)
		for _, name := range names {
			full := s.fs.PathJoin(dir, name)
			info, err := s.fs.Stat(full)
			if err != nil {
				s.t.Fatal(err)
			}
			if info.IsDir() {
				walk(full)
			} else {
				out = append(out, place{name: full})
			}
		}
	}
	walk(dataDir)
	err := s.bucket.Inner().List(context.Background(), "", func(o objstore.Object) error {
		out = append(out, place{remote: true, name: o.Key})
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

func (s *scene) read(p place) []byte {
	s.t.Helper()
	if p.remote {
		b, _, err := s.bucket.Inner().Get(context.Background(), p.name, 1<<30)
		if err != nil {
			s.t.Fatal(err)
		}
		return b
	}
	f, err := s.fs.Open(p.name)
	if err != nil {
		s.t.Fatal(err)
	}
	b, err := io.ReadAll(f)
	if err := errors.Join(err, f.Close()); err != nil {
		s.t.Fatal(err)
	}
	return b
}

// write puts data at a place; nil removes what is there.
func (s *scene) write(p place, data []byte) {
	s.t.Helper()
	switch {
	case p.remote && data == nil:
		if err := s.bucket.Inner().Delete(context.Background(), p.name); err != nil {
			s.t.Fatal(err)
		}
	case p.remote:
		s.put(p.name, data)
	case data == nil:
		if err := s.fs.Remove(p.name); err != nil {
			s.t.Fatal(err)
		}
	default:
		f, err := s.fs.Create(p.name, vfs.WriteCategoryUnspecified)
		if err != nil {
			s.t.Fatal(err)
		}
		_, err = f.Write(bytes.Clone(data))
		if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
			s.t.Fatal(err)
		}
	}
}
