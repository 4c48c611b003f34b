package modeltest

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"keyhole/catalog"
	"keyhole/check"
	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const dataDir = "/data"

// weather is how the store behaves.
type weather int

const (
	fine   weather = iota
	flaky          // some requests fail, some take effect and their reply is lost
	down           // nothing gets through
	denied         // everything is refused with 403
)

func (w weather) String() string { return [...]string{"fine", "flaky", "down", "denied"}[w] }

// sky makes the weather.
type sky struct {
	mu  sync.Mutex
	rng *rand.Rand
	now weather
}

func (s *sky) set(w weather) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = w
}

// strikes decides whether a request fails on its way to the store (or on the
// way back).
func (s *sky) strikes(back bool, c objstoretest.Call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := objstore.ErrUnavailable
	switch s.now {
	case fine:
		return nil
	case flaky:
		if s.rng.IntN(4) > 0 {
			return nil
		}
	case denied:
		kind = objstore.ErrDenied
	}
	if back && s.now != flaky {
		return nil
	}
	return &objstore.OpError{Op: string(c.Op), Key: c.Key, Kind: kind}
}

// node is one node: its disk, its bucket and the catalog that is open on them.
type node struct {
	t       *testing.T
	fs      *vfs.MemFS
	bucket  *objstoretest.Faulty // nil: no store
	sky     *sky
	power   *power               // of this run
	metrics *prometheus.Registry // of this run
	log     logs
	c       *catalog.Catalog // nil: stopped
}

// logs keeps the last lines of the node's log, to be shown when a test fails.
type logs struct {
	mu    sync.Mutex
	lines [][]byte
	loud  int // warnings and errors
}

// loud is how many warnings and errors were logged, over all runs.
func (n *node) loud() int {
	n.log.mu.Lock()
	defer n.log.mu.Unlock()
	return n.log.loud
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if bytes.Contains(b, []byte("level=WARN")) || bytes.Contains(b, []byte("level=ERROR")) {
		l.loud++
	}
	l.lines = append(l.lines, bytes.Clone(b))
	if n := len(l.lines); n > 60 {
		l.lines = l.lines[n-60:]
	}
	return len(b), nil
}

func newNode(t *testing.T, seed uint64, store bool) *node {
	n := &node{t: t, fs: vfs.NewCrashableMem(), sky: &sky{rng: rand.New(rand.NewPCG(seed, 1))}}
	if store {
		n.giveStore()
	}
	return n
}

// giveStore gives the node, which is stopped, an empty bucket.
func (n *node) giveStore() {
	n.bucket = objstoretest.NewFaulty(nil)
	n.bucket.Before(func(_ context.Context, c objstoretest.Call) error { return n.sky.strikes(false, c) })
	n.bucket.After(func(_ context.Context, c objstoretest.Call) error { return n.sky.strikes(true, c) })
}

func (n *node) start() {
	n.t.Helper()
	if err := n.open(); err != nil {
		n.t.Fatalf("open: %v", err)
	}
}

func (n *node) open() error {
	n.metrics = prometheus.NewRegistry()
	n.power = &power{disk: n.fs}
	o := catalog.Options{
		DataDir: dataDir, FS: n.power.fs(),
		Logger:     slog.New(slog.NewTextHandler(&n.log, nil)),
		Registerer: n.metrics,
	}
	if n.bucket != nil {
		o.Bucket = &process{n.bucket, n.power}
	}
	c, err := catalog.Open(context.Background(), o)
	if err != nil {
		return err
	}
	n.c = c
	synctest.Wait()
	return nil
}

// corruptions is the counter keyhole_corruptions_total of this run.
func (n *node) corruptions() (total float64) {
	n.t.Helper()
	families, err := n.metrics.Gather()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "keyhole_corruptions_total" {
			for _, m := range f.GetMetric() {
				total += m.GetCounter().GetValue()
			}
		}
	}
	return total
}

func (n *node) stop() {
	n.t.Helper()
	if n.c == nil {
		return
	}
	c := n.c
	n.c = nil
	if err := c.Close(context.Background()); err != nil {
		n.t.Fatalf("close: %v", err)
	}
}

// crash leaves of the disk what a power cut would, and nothing of the process. If
// the power is off already, it is what was left then.
func (n *node) crash(rng *rand.Rand) {
	n.t.Helper()
	n.power.off(rng)
	c := n.c
	n.c = nil
	_ = c.Close(context.Background()) // it finds a disk that refuses
	n.fs = n.power.left()
}

// check reads both tiers of the stopped node and demands that nothing is
// damaged.
func (n *node) check() check.Summary {
	n.t.Helper()
	o := check.Options{
		FS: n.fs, DataDir: dataDir, ScratchFS: vfs.NewMem(), ScratchDir: "/",
		Report: func(f check.Finding) {
			if f.Severity == check.Damage {
				n.t.Errorf("check: %+v", f)
			}
		},
	}
	if n.bucket != nil {
		o.Bucket = n.bucket.Inner()
	}
	sum, err := check.Run(context.Background(), o)
	if err != nil {
		n.t.Fatalf("check: %v", err)
	}
	if !sum.OK() {
		n.t.FailNow()
	}
	return sum
}

// settle waits, in the time of the bubble, until the node is ready and nothing
// waits for the store.
func (n *node) settle() {
	n.t.Helper()
	// The longest back-off is a minute, and a chore may be in one.
	for range 200 {
		synctest.Wait()
		r := n.c.Ready()
		if len(r.Damaged) > 0 {
			n.t.Fatalf("damaged: %+v", r.Damaged)
		}
		if r.Ready && len(r.Degraded) == 0 {
			return
		}
		time.Sleep(time.Second)
	}
	n.t.Fatalf("not ready: %+v", n.c.Ready())
}

// trouble reports whether err says that the store or the start of a partition
// keeps something from being answered.
func trouble(err error) bool {
	for _, class := range []error{objstore.ErrUnavailable, objstore.ErrDenied, catalog.ErrBucketUnknown, errNotReady, context.DeadlineExceeded} {
		if errors.Is(err, class) {
			return true
		}
	}
	return false
}
