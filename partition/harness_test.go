package partition

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"golang.org/x/sync/semaphore"

	"keyhole/fsync"
	"keyhole/index"
	"keyhole/objstore/objstoretest"
	"keyhole/record"
	"keyhole/tiered"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is one node's worth of shared parts around one partition, on a file system
// and a bucket that outlive it, so that a test can close, crash and reopen it.
type rig struct {
	t        *testing.T
	fs       vfs.FS
	store    *objstoretest.Faulty
	settings Settings
	writer   string
	isNew    bool
	noStore  bool
	space    *Space
	dying    bool           // its disk fails, so closing may too
	options  func(*Options) // changes what the next start uses; nil: nothing

	p       *Partition
	metrics *Metrics
	close   func()
}

// patience bounds what must happen soon. It is never waited out when all is well, and
// generous, because the machine may be busy with other tests, or stand still for
// seconds.
const patience = 2 * time.Minute

const topicID = "0123456789abcdef0123456789abcdef"

func defaults() Settings {
	return Settings{
		IndexMaintained:  true,
		IndexActive:      true,
		RemoteRead:       true,
		RemoteWrite:      true,
		SegmentBytes:     4 << 10,
		LocalTargetBytes: -1,
		LocalTargetAge:   -1,
		MaxRecordBytes:   1 << 20,
		ChunkBytes:       1 << 10,
		DirtyRatio:       2, // no compaction in the background
		DeleteRetention:  24 * time.Hour,
		RetentionBytes:   -1,
		RetentionAge:     -1,
	}
}

func newRig(t *testing.T) *rig {
	return &rig{
		t:        t,
		fs:       disk(t),
		store:    objstoretest.NewFaulty(objstoretest.NewMemory()),
		settings: defaults(),
		writer:   "node-a",
		isNew:    true,
	}
}

// disk is an empty file system on which the topic's directory is durable.
func disk(t *testing.T) vfs.FS {
	t.Helper()
	fs := vfs.NewCrashableMem()
	if err := fs.MkdirAll("/data/t", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/data", "/"} {
		if err := fsync.Dir(fs, dir); err != nil {
			t.Fatal(err)
		}
	}
	return fs
}

// other is a second node on the same bucket, with an empty disk of its own.
func (r *rig) other(writer string) *rig {
	return &rig{t: r.t, fs: disk(r.t), store: r.store, settings: r.settings, writer: writer}
}

// start opens the partition and does not wait for it.
func (r *rig) start() *Partition {
	r.t.Helper()
	reg := prometheus.NewRegistry()
	tiers := tiered.NewShared(1<<20, 16, reg)
	indexes := index.NewShared(1<<20, 100)
	r.metrics = NewMetrics(reg)
	o := Options{
		FS: r.fs, Dir: "/data/t/0", Topic: "t", TopicID: topicID, Writer: r.writer, New: r.isNew,
		Bucket: r.store, Conditional: true, Tiers: tiers, Indexes: indexes, Metrics: r.metrics,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Settings: r.settings, Space: r.space,
		Inflations: semaphore.NewWeighted(2),
	}
	if r.noStore {
		o.Bucket = nil
	}
	if r.options != nil {
		r.options(&o)
	}
	r.p = Open(o)
	r.isNew = false
	p := r.p
	r.close = func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := p.Close(ctx); err != nil && !r.dying {
			r.t.Errorf("close: %v", err)
		}
		if err := tiers.Close(ctx); err != nil {
			r.t.Errorf("close tiers: %v", err)
		}
		indexes.Close()
	}
	return r.p
}

// open is start, and waits until lookups are served.
func (r *rig) open() *Partition {
	r.t.Helper()
	p := r.start()
	r.t.Cleanup(r.stop)
	eventually(r.t, "partition ready", func() bool { ready, _, _ := p.State(); return ready })
	return p
}

func (r *rig) stop() {
	if r.close != nil {
		r.close()
		r.close = nil
	}
}

func (r *rig) reopen() *Partition {
	r.t.Helper()
	r.stop()
	return r.open()
}

// eventually polls cond until it holds, for as long as patience says.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for begun := time.Now(); ; {
		late := time.Since(begun) > patience // asked before: a pause in between is none of cond's
		if cond() {
			return
		}
		if late {
			t.Fatalf("timed out: %s", what)
		}
		<-tick.C
	}
}

func put(t *testing.T, p *Partition, key, value string) int64 {
	t.Helper()
	off, err := p.Append(t.Context(), []record.Record{{Key: []byte(key), Value: []byte(value), Timestamp: 1700000000000}})
	if err != nil {
		t.Fatalf("append %q: %v", key, err)
	}
	return off
}

func del(t *testing.T, p *Partition, key string) int64 {
	t.Helper()
	off, err := p.Append(t.Context(), []record.Record{{Key: []byte(key), Timestamp: 1700000000001}})
	if err != nil {
		t.Fatalf("delete %q: %v", key, err)
	}
	return off
}

func get(p *Partition, key string) (Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return p.Lookup(ctx, []byte(key), Query{})
}

func mustGet(t *testing.T, p *Partition, key string) Result {
	t.Helper()
	res, err := get(p, key)
	if err != nil {
		t.Fatalf("lookup %q: %v", key, err)
	}
	return res
}

func evict(t *testing.T, p *Partition) Status {
	t.Helper()
	st, err := p.Evict(t.Context(), 0)
	if err != nil {
		t.Fatalf("evict: %v", err)
	}
	return st
}

// fill appends n keys with values long enough to roll segments.
func fill(t *testing.T, p *Partition, prefix string, n int) map[string]string {
	t.Helper()
	want := map[string]string{}
	for i := range n {
		k := fmt.Sprintf("%s-%03d", prefix, i)
		v := fmt.Sprintf("value of %s %0200d", k, i)
		put(t, p, k, v)
		want[k] = v
	}
	return want
}

func seeded(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
