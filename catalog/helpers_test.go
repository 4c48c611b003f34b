package catalog

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"keyhole/objstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const dataDir = "/data"

// logBuffer keeps what was logged.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), s)
}

// node is a data directory that catalogs are opened on, one after the other.
type node struct {
	t      testing.TB
	fs     vfs.FS
	dir    string
	bucket objstore.Bucket
	logs   logBuffer
	dev    bool

	replica bool
	clock   func() time.Time // nil: the real one
	noSweep bool
}

func newNode(t testing.TB, bucket objstore.Bucket) *node {
	return &node{t: t, fs: vfs.NewMem(), dir: dataDir, bucket: bucket}
}

func (n *node) open() (*Catalog, error) {
	return Open(context.Background(), Options{
		DataDir: n.dir, FS: n.fs, Bucket: n.bucket, AutoCreate: n.dev, ReadReplica: n.replica, now: n.clock, noSweeper: n.noSweep,
		Logger:     slog.New(slog.NewTextHandler(&n.logs, nil)),
		Registerer: prometheus.NewRegistry(),
	})
}

// start opens a catalog and closes it at the end of the test at the latest.
func (n *node) start() *Catalog {
	n.t.Helper()
	c, err := n.open()
	if err != nil {
		n.t.Fatalf("open: %v", err)
	}
	n.t.Cleanup(func() { stop(n.t, c) })
	return c
}

func stop(t testing.TB, c *Catalog) {
	t.Helper()
	if err := c.Close(context.Background()); err != nil {
		t.Errorf("close: %v", err)
	}
}

// patience bounds what must happen soon. It is never waited out when all is well, and
// generous, because the machine may be busy with other tests, or stand still for
// seconds.
const patience = 2 * time.Minute

// eventually polls, because what it waits for happens in the background.
func eventually(t testing.TB, what string, cond func() bool) {
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

func known(t testing.TB, c *Catalog) {
	t.Helper()
	eventually(t, "topics of the bucket known", func() bool { return c.snap.Load().known })
}

// allOn switches everything on that a topic with an index needs.
func allOn(t testing.TB, c *Catalog) {
	t.Helper()
	if err := c.SetFeature(context.Background(), FeatureIndex, StateActive); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AlterCluster(context.Background(), map[string]any{propIndexEnabled: true, propRemoteRead: true}, nil); err != nil {
		t.Fatal(err)
	}
}

func create(t testing.TB, c *Catalog, name string, partitions int32, configs map[string]string) *Topic {
	t.Helper()
	topic, err := c.CreateTopic(context.Background(), name, partitions, configs)
	if err != nil {
		t.Fatalf("create %s: %v", name, err)
	}
	return topic
}

// fullDisk has no room for the description of topic b while it is on.
type fullDisk struct {
	vfs.FS
	on atomic.Bool
}

func (f *fullDisk) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if f.on.Load() && strings.Contains(name, "/topics/b/") {
		return nil, syscall.ENOSPC
	}
	return f.FS.Create(name, category)
}
