package e2e

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"keyhole/internal/s3test"
)

// pausedKeys are few enough that both nodes overwrite the same ones.
const pausedKeys = 60

// TestPausedWriter stops a gateway by SIGSTOP, has a second one take the bucket
// over and write, and lets the first go on: from then on nothing that it answers
// may reach the bucket, nothing of the second one may suffer, and it must find
// out and say so. Cases 7-17 and 7-18.
func TestPausedWriter(t *testing.T) {
	// Nothing makes it write: it must look by itself, and because it was stopped. Were
	// that by the clock alone, it would take longer, as it may on a busy machine.
	t.Run("idle", func(t *testing.T) {
		const soon, tries = 3 * time.Second, 4
		for range tries {
			if took := (pausedVariant{partitions: 2, idle: true}).run(t, "aws"); took <= soon || t.Failed() {
				return
			}
		}
		t.Errorf("refuses what is not its own later than %v after it went on, %d times", soon, tries)
	})
	// Its last manifest arrives at the store after that of the other.
	t.Run("manifest under way", func(t *testing.T) { pausedVariant{partitions: 2, held: true}.run(t, "minio") })
	// KEYHOLE_WRITER_ROUNDS: stopped at any place, so often; make soak sets it.
	for i := range envRounds(t, "KEYHOLE_WRITER_ROUNDS", 0) {
		backend := backends[i%2]
		t.Run(fmt.Sprintf("anywhere %d %s", i, backend), func(t *testing.T) { pausedVariant{partitions: 1}.run(t, backend) })
	}
}

type pausedVariant struct {
	partitions int
	idle       bool // stopped without clients, and without any after it goes on
	held       bool // stopped while its manifests are on their way
}

// run gives how long it took the older writer to find out.
func (v pausedVariant) run(t *testing.T, backend string) time.Duration {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	newStore := sharedStore(t, backend)
	a := startNode(t, newStore())
	a.indexed("t", v.partitions, map[string]string{"segment.bytes": "4096", "retention.local.target.bytes": "8192"})
	a.setCluster(remoteRead, true)
	la := newLedger("t", fmt.Sprint(seed), pausedKeys)
	clients := la.runLoad(a, seed, 4, 2, v.partitions, nil)
	clients.add("compact", compactor("t", v.partitions))
	answered(t, la, 100)

	release := func() {}
	switch {
	case v.held:
		release = holdManifests(t, a, v.partitions)
		defer release()
		poll(t, "each partition has records that are not in the bucket", func() bool {
			return len(la.beyond(a.uploaded(t, v.partitions))) == v.partitions
		})
	case v.idle:
		clients.stop()
		for p := range v.partitions { // a tail in each partition
			a.adminJSON("POST", fmt.Sprintf("/v1/cloud_storage/evict/t/%d", p), object{"local_target_bytes": 0}, 200, nil)
		}
		rng := rand.New(rand.NewPCG(seed, 99))
		for len(la.beyond(a.uploaded(t, v.partitions))) < v.partitions {
			if r, err := la.write(a, rng); err != nil || r.status != 200 {
				t.Fatalf("write: %v %v", r, err)
			}
		}
		settle(a)
	}
	a.signal(syscall.SIGSTOP)
	stopped := time.Now()

	b := newNode(t, newStore())
	b.start()
	b.waitReady()
	b.switchOn()
	b.setCluster(remoteRead, true)
	b.waitReady()
	next := b.highWatermarks(t, v.partitions)
	lb := la.below(next)
	lb.settle(t, b, "taken over")
	release()
	b.work(t, lb, seed+1, v.partitions)
	if v.idle {
		// Long enough to be noticed as a pause, too short for the look by the clock.
		pause(context.Background(), 4*time.Second-time.Since(stopped))
	}

	before := b.store.contents(t)
	a.store.proxy.ResetRequests()
	b.store.proxy.ResetRequests()
	a.signal(syscall.SIGCONT)
	resumed := time.Now()
	poll(t, "the older writer says that it is one", func() bool { return a.refusesAll(t, la) })
	took := time.Since(resumed)
	t.Logf("stopped for %v; refuses everything %v after it went on", resumed.Sub(stopped).Round(time.Millisecond), took.Round(time.Millisecond))
	clients.stop()
	if !a.refusesAll(t, la) {
		t.Error("it answers again")
	}
	want(t, "write", a.do("PUT", a.kv("t", la.names[0]), nil, []byte("late")), 421, "not_hosted")
	want(t, "deletion", a.do("DELETE", a.kv("t", la.names[0]), nil, nil), 421, "not_hosted")
	if r, err := la.post(a, []write{{key: la.names[0], value: "late"}}); err != nil || r.status == 200 {
		t.Errorf("produce: %v %v, want it refused", r, err)
	}
	a.adminJSON("POST", "/v1/cloud_storage/evict/t/0", object{"local_target_bytes": 0}, 421, nil)
	la.report(t, "at the older writer")
	v.unharmed(t, a, b, before)
	lb.settle(t, b, "with the older writer back")

	a.leave()
	tails := la.beyond(next)
	wantTails(t, a.check(), tails)
	if len(tails) == v.partitions { // else its start would take over what holds nothing of its own
		a.start()
		poll(t, "the overtaken disk refuses after a restart", func() bool { return a.refusesAll(t, la) })
		want(t, "write after a restart", a.do("PUT", a.kv("t", la.names[0]), nil, []byte("late")), 421, "not_hosted")
		v.unharmed(t, a, b, before)
		a.leave()
		wantTails(t, a.check(), tails)
	}
	lb.settle(t, b, "with the older writer gone")

	b.work(t, lb, seed+2, v.partitions)
	b.evict("t", v.partitions)
	b.leave()
	b.mustCheck("of the newer writer")
	c := newNode(t, newStore())
	c.start()
	c.waitReady()
	c.switchOn()
	c.setCluster(remoteRead, true)
	c.waitReady()
	lb.settle(t, c, "on an empty disk")
	c.leave()
	t.Logf("older writer: %v; newer writer: %v; acknowledged by the older one and not taken over: %v", la.totals(), lb.totals(), tails)
	return took
}

// sharedStore makes stores that are one bucket, each behind a proxy of its own.
func sharedStore(t *testing.T, backend string) func() *store {
	t.Helper()
	t.Cleanup(client.CloseIdleConnections)
	if backend == "dir" {
		s := openStore(t, backend)
		return func() *store { return s }
	}
	gateway := s3test.StartGateway(t)
	return func() *store {
		proxy := s3test.StartProxy(t, gateway.Endpoint)
		return &store{
			url:   s3test.URL(proxy.Endpoint, prefix, backend),
			env:   s3test.Environment(),
			dir:   filepath.Join(gateway.Dir, s3test.Bucket, filepath.FromSlash(prefix)),
			proxy: proxy,
		}
	}
}

// answered waits for n more answers.
func answered(t *testing.T, l *ledger, n int) {
	t.Helper()
	n += l.totals().acked
	poll(t, "writes are answered", func() bool { return l.totals().acked >= n })
}

// holdManifests keeps the manifests that a node writes on their way until the
// result is called, and waits until one is.
func holdManifests(t *testing.T, n *node, partitions int) (release func()) {
	t.Helper()
	gate := make(chan struct{})
	var held atomic.Int32
	n.store.proxy.SetFault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/manifest.json") {
			held.Add(1)
			<-gate
		}
		next.ServeHTTP(w, r)
	})
	poll(t, "manifests are on their way", func() bool { return held.Load() >= int32(partitions) })
	var once atomic.Bool
	return func() {
		if once.CompareAndSwap(false, true) {
			n.store.proxy.SetFault(nil)
			close(gate)
		}
	}
}

func (n *node) signal(s syscall.Signal) {
	n.t.Helper()
	if err := n.cmd.Process.Signal(s); err != nil {
		n.t.Fatal(err)
	}
}

// leave is stop for a node whose clients have gone. A connection that was opened
// and never used, as the pool of clients makes some, would hold it up: net/http
// gives those five seconds.
func (n *node) leave() {
	n.t.Helper()
	client.CloseIdleConnections()
	n.stop()
}

// uploaded is where the bucket ends as far as the node knows, by partition.
func (n *node) uploaded(t *testing.T, partitions int) map[int32]int64 {
	t.Helper()
	next := map[int32]int64{}
	for p := range partitions {
		next[int32(p)] = 0
		if s := n.status("t", p); s.CloudLast != nil {
			next[int32(p)] = *s.CloudLast + 1
		}
	}
	return next
}

func (n *node) highWatermarks(t *testing.T, partitions int) map[int32]int64 {
	t.Helper()
	next := map[int32]int64{}
	for p := range partitions {
		s := n.status("t", p)
		if s.HighWatermark == nil {
			t.Fatalf("partition %d has no high watermark", p)
		}
		next[int32(p)] = *s.HighWatermark
	}
	return next
}

// work runs clients, moves everything to the bucket, writes a little more that
// stays local, and leaves nothing to be done in the background.
func (n *node) work(t *testing.T, l *ledger, seed uint64, partitions int) {
	t.Helper()
	clients := l.runLoad(n, seed, 4, 2, partitions, func(op string, a answer, err error) {
		if op != "evict" {
			t.Errorf("%s at the newer writer: %v %v", op, a, err)
		}
	})
	answered(t, l, 100)
	clients.stop()
	n.evict("t", partitions)
	n.compactAll("t", partitions)
	rng := rand.New(rand.NewPCG(seed, 98))
	for range 5 { // too little to fill a segment, which would be uploaded later
		if a, err := l.send(n, l.begin(rng, 1)); err != nil || a.status != 200 {
			t.Fatalf("write: %v %v", a, err)
		}
	}
	settle(n)
	l.settle(t, n, "after its work")
}

// refusesAll reports whether the node says of every key that it has gone.
func (n *node) refusesAll(t *testing.T, l *ledger) bool {
	t.Helper()
	var others atomic.Int32
	parallel(lookupWorkers, l.names, func(key string) {
		a, err := n.try("GET", n.kv(l.topic, key), nil, nil)
		if err != nil || a.status != 421 || a.header.Get("X-Kv-Reason") != "not_hosted" {
			others.Add(1)
		}
	})
	return others.Load() == 0
}

// contents are the objects below the prefix with a digest of each.
func (s *store) contents(t *testing.T) map[string][32]byte {
	t.Helper()
	all := map[string][32]byte{}
	for _, key := range s.objects(t) {
		all[key] = sha256.Sum256(s.object(t, key))
	}
	return all
}

// unharmed wants every object to be as it was before the older writer went on,
// the manifests among them: so nothing that it has put since is named anywhere.
func (v pausedVariant) unharmed(t *testing.T, older, newer *node, before map[string][32]byte) {
	t.Helper()
	now := newer.store.contents(t)
	for _, key := range sorted(before) {
		if d, ok := now[key]; !ok {
			t.Errorf("%s is gone", key)
		} else if d != before[key] {
			t.Errorf("%s was overwritten", key)
		}
	}
	manifests := 0
	for key := range before {
		if strings.HasSuffix(key, "/manifest.json") {
			manifests++
		}
	}
	if manifests != v.partitions {
		t.Errorf("%d manifests, want %d", manifests, v.partitions)
	}
	if n := newer.store.proxy.Count(func(r s3test.Request) bool { return r.Method != http.MethodGet }); n > 0 {
		t.Errorf("the newer writer was to be at rest and wrote %d times", n)
	}
	for _, r := range older.store.proxy.Requests() {
		_, known := before[strings.TrimPrefix(r.Key, prefix+"/")]
		conditional := r.Header.Get("If-Match") != "" || r.Header.Get("If-None-Match") != ""
		switch {
		case r.Method == http.MethodDelete && known:
			t.Errorf("the older writer deletes %s", r.Key)
		case r.Method == http.MethodPut && known && !conditional:
			t.Errorf("the older writer puts %s without a condition", r.Key)
		}
	}
}

var tailFinding = regexp.MustCompile(`/(\d+)/log\S*\s+offsets (\d+) to (\d+) were acknowledged here and never uploaded`)

// wantTails wants check to name what was acknowledged and is on this disk alone.
func wantTails(t *testing.T, r cliResult, tails map[int32][2]int64) {
	t.Helper()
	code := 0
	if len(tails) > 0 {
		code = 1
	}
	named := map[int32][2]int64{}
	for _, m := range tailFinding.FindAllStringSubmatch(r.stdout, -1) {
		var n [3]int64
		for i := range n {
			n[i], _ = strconv.ParseInt(m[i+1], 10, 64) // only digits match
		}
		named[int32(n[0])] = [2]int64{n[1], n[2]}
	}
	ok := r.code == code && len(named) == len(tails)
	for p, tail := range tails {
		ok = ok && named[p][0] <= tail[0] && named[p][1] >= tail[1]
	}
	if !ok {
		t.Errorf("check: exit %d, want %d; tails named %v, want %v\n%s%s", r.code, code, named, maps.Clone(tails), r.stdout, r.stderr)
	}
}
