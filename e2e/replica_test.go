package e2e

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"keyhole/internal/s3test"
)

const (
	replicaPartitions = 2
	replicaKeys       = 80
	replicaRefresh    = 200 * time.Millisecond
	replicaGrace      = 2000 // milliseconds
	// replicaStale is how far behind the bucket a replica may be, most of the time: the
	// interval, and what reading takes on a busy machine. A machine that stands still
	// may take the longest that anybody can wait for a position.
	replicaStale = replicaRefresh + 2*time.Second
	replicaWait  = 30 * time.Second

	asReplica = "--read-replica"
)

// TestReadReplica has replicas beside a writer that overwrites, deletes, evicts,
// compacts and cleans up all the time: one that is there from the start and is
// restarted and killed, and a second one that comes late. Every answer of theirs
// must be one that the topic had at some moment not before the position that comes
// with it, and the position must follow the bucket. What is in the bucket is the
// writer's work alone.
func TestReadReplica(t *testing.T) {
	for _, backend := range []string{"aws", "dir"} {
		t.Run(backend, func(t *testing.T) { besideWriter(t, backend) })
	}
}

func besideWriter(t *testing.T, backend string) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	newStore := sharedStore(t, backend)
	w := startNode(t, newStore())
	w.indexed("t", replicaPartitions, map[string]string{"segment.bytes": "8192", "delete.retention.ms": "0", "retention.local.target.bytes": "16384"})
	w.setCluster(remoteRead, true)
	w.setGrace(replicaGrace)
	l := newLedger("t", fmt.Sprint(seed), replicaKeys)
	clients := newLoad(w, seed, func(op string, a answer, err error) {
		chore := (op == "evict" || op == "compact") && a.status == 503 // which may be given up
		if err != nil || !chore && !w.outOfTime(a) {
			t.Errorf("%s at the writer: %v %v", op, a, err)
		}
	})
	l.addClients(clients, 3, 1)
	defer clients.stop()
	answered(t, l, 100)
	w.evictPart(0)
	w.evictPart(1)
	clients.add("evict", evictor("t", replicaPartitions))
	clients.add("compact", compactor("t", replicaPartitions))

	seen := &watch{t: t, l: l, positions: map[int32]map[int64]bool{}}
	first := startReplica(t, newStore())
	stop := seen.start(first, seed+1)
	wantFresh(t, w, first, seen)
	stop()
	first.restart()
	stop = seen.start(first, seed+2)
	wantFresh(t, w, first, seen)
	first.refuses(t, l)
	stop()
	first.kill()
	first.start()
	first.waitReady()
	stop = seen.start(first, seed+3)
	second := startReplica(t, newStore())
	stopSecond := seen.start(second, seed+4)
	wantFresh(t, w, first, seen)
	wantFresh(t, w, second, seen)
	removed := w.sum("keyhole_collected_objects_total")
	compacted := w.sum("keyhole_compacted_segments_total")
	stop()
	stopSecond()
	clients.stop()
	l.report(t, "at the writer")
	seen.judge(t)
	slices.Sort(seen.delays)
	median, slowest := seen.delays[len(seen.delays)/2], seen.delays[len(seen.delays)-1]
	t.Logf("%d answers of replicas at %d positions, %d put off, %v to follow, %v at the slowest; at the writer %v, %v segments compacted, %v objects deleted",
		len(seen.all), len(seen.positions[0])+len(seen.positions[1]), seen.putOff, median.Round(time.Millisecond), slowest.Round(time.Millisecond),
		l.totals(), compacted, removed)
	if median > replicaStale {
		t.Errorf("the replicas were %v behind the bucket, half of the time, want %v", median, replicaStale)
	}
	if seen.putOff > len(seen.all) {
		t.Errorf("the replicas put off %d lookups and answered %d", seen.putOff, len(seen.all))
	}
	if compacted == 0 || removed == 0 {
		t.Error("nothing was compacted, or nothing deleted from the bucket, beside the replicas")
	}

	// At rest all say the same.
	w.evict("t", replicaPartitions)
	want := w.readAll("t", l.names)
	next := w.highWatermarks(t, replicaPartitions)
	for i, r := range []*node{first, second} {
		r.reaches(t, l, next)
		wantAll(t, fmt.Sprintf("replica %d, the writer at rest", i+1), r.readAll("t", l.names), want)
	}
	// A replica that is away while keys are deleted, and the deletions forgotten, must
	// not go on from what it had.
	second.leave()
	gone := 0
	for _, key := range l.names {
		if want[key].status == 200 && gone < 10 {
			gone++
			if a := w.do("DELETE", w.kv("t", key), nil, nil); a.status != 200 {
				t.Fatalf("delete: %v", a)
			}
		}
	}
	w.evict("t", replicaPartitions)
	w.compactAll("t", replicaPartitions)
	for p := range replicaPartitions {
		if v := w.store.view(t, "t", p); v.tombstones > 0 {
			t.Fatalf("partition %d: %d tombstones are left in the bucket", p, v.tombstones)
		}
	}
	want, next = w.readAll("t", l.names), w.highWatermarks(t, replicaPartitions)
	second.start()
	second.waitReady()
	for i, r := range []*node{first, second} {
		r.reaches(t, l, next)
		wantAll(t, fmt.Sprintf("replica %d, deletions forgotten", i+1), r.readAll("t", l.names), want)
	}
	w.leave()
	before := w.store.contents(t)
	second.trimCache()
	wantAll(t, "without a writer", second.readAll("t", l.names), want)
	first.restart()
	wantAll(t, "restarted without a writer", first.readAll("t", l.names), want)
	first.kill()
	first.start()
	first.waitReady()
	wantAll(t, "killed without a writer", first.readAll("t", l.names), want)
	first.refuses(t, l)
	third := startReplica(t, newStore())
	third.reaches(t, l, next)
	wantAll(t, "on an empty disk without a writer", third.readAll("t", l.names), want)
	for _, r := range []*node{first, second, third} {
		r.leave()
		r.wroteNothing(t)
	}
	if !maps.Equal(before, w.store.contents(t)) {
		t.Error("the bucket changed while no writer was there")
	}
	w.start()
	w.waitReady()
	wantAll(t, "the writer is back", w.readAll("t", l.names), want)
	w.leave()
	w.mustCheck("of the writer")
}

// startReplica is a running, ready replica on an empty disk.
func startReplica(t *testing.T, s *store) *node {
	t.Helper()
	r := startNode(t, s, asReplica)
	upsert := object{"read_replica_refresh_ms": replicaRefresh.Milliseconds(), lookupTimeout: r.lookups}
	r.adminJSON("PUT", "/v1/cluster_config", object{"upsert": upsert, "remove": []string{}}, 200, nil)
	return r
}

// evictPart moves a partition to the bucket and gives where the bucket ends then.
func (n *node) evictPart(partition int) int64 {
	n.t.Helper()
	var s tierStatus
	n.adminJSON("POST", fmt.Sprintf("/v1/cloud_storage/evict/t/%d", partition), object{"local_target_bytes": 0}, 200, &s)
	if s.CloudLast == nil {
		n.t.Fatalf("nothing in the bucket: %+v", s)
	}
	return *s.CloudLast + 1
}

// keyOf is a key that went to a partition.
func (l *ledger) keyOf(t *testing.T, partition int32) string {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for at, w := range l.places {
		if at.partition == partition {
			return w.key
		}
	}
	t.Fatalf("no key is in partition %d", partition)
	return ""
}

// positionOf is the position that came with an answer, -1 if none did.
func positionOf(a answer) int64 {
	p, err := strconv.ParseInt(a.header.Get("X-Kv-Position"), 10, 64)
	if err != nil {
		return -1
	}
	return p
}

// wantFresh moves partitions to the bucket again and again, wants the replica to
// follow, and notes how long that takes.
func wantFresh(t *testing.T, w, r *node, seen *watch) {
	t.Helper()
	l := seen.l
	for i := range 3 {
		p := i % replicaPartitions
		url := r.kv("t", l.keyOf(t, int32(p)))
		answered(t, l, 20)
		next := w.evictPart(p)
		begin := time.Now()
		if i%3 == 2 {
			target := fmt.Sprintf("%s?min_position=%d&wait_ms=%d", url, next, replicaWait.Milliseconds())
			if a := r.do("GET", target, nil, nil); !r.outOfTime(a) && (sightOf(a).status != "" || positionOf(a) < next) {
				t.Errorf("min_position=%d after %v: %v at position %d", next, time.Since(begin), a, positionOf(a))
			}
		} else {
			poll(t, fmt.Sprintf("the replica is where the bucket is, at %d", next), func() bool {
				return positionOf(r.do("GET", url, nil, nil)) >= next
			})
		}
		seen.delays = append(seen.delays, time.Since(begin))
	}
	// What is not there yet is not pretended to be.
	target := r.kv("t", l.keyOf(t, 0)) + "?min_position=1000000000"
	want(t, "a position far ahead", r.do("GET", target, nil, nil), 503, "position_not_reached")
}

// reaches waits until the replica has what the bucket has, by partition.
func (n *node) reaches(t *testing.T, l *ledger, next map[int32]int64) {
	t.Helper()
	for p, to := range next {
		target := fmt.Sprintf("%s?min_position=%d&wait_ms=%d", n.kv("t", l.keyOf(t, p)), to, replicaWait.Milliseconds())
		a := n.do("GET", target, nil, nil)
		for begun := time.Now(); n.outOfTime(a) && time.Since(begun) < patience; {
			pause(t.Context(), 10*time.Millisecond)
			a = n.do("GET", target, nil, nil)
		}
		if a.status >= 500 || positionOf(a) != to {
			t.Fatalf("partition %d: %v at position %d, want %d", p, a, positionOf(a), to)
		}
	}
}

// refuses wants everything refused that would change anything but the replica.
func (n *node) refuses(t *testing.T, l *ledger) {
	t.Helper()
	key := l.names[0]
	want(t, "write at a replica", n.do("PUT", n.kv("t", key), nil, []byte("v")), 421, "not_hosted")
	want(t, "deletion at a replica", n.do("DELETE", n.kv("t", key), nil, nil), 421, "not_hosted")
	if a, err := l.post(n, []write{{key: key, value: "v"}}); err != nil || a.status != 421 || !strings.Contains(string(a.body), "42101") {
		t.Errorf("produce at a replica: %v %v", a, err)
	}
	for _, c := range []struct {
		method, path string
		body         object
	}{
		{"POST", "/v1/topics", object{"name": "another", "partitions": 1}},
		{"DELETE", "/v1/topics/t", nil},
		{"PUT", "/v1/topics/t/config", object{"upsert": object{"segment.bytes": "65536"}, "remove": []string{}}},
		{"POST", "/v1/cloud_storage/evict/t/0", object{"local_target_bytes": 0}},
		{"POST", "/v1/compact/t/0", object{}},
		{"POST", "/v1/cloud_storage/gc", object{}},
	} {
		if a := n.do(c.method, n.admin+c.path, nil, c.body); a.status != 409 {
			t.Errorf("%s %s at a replica: %v, want 409", c.method, c.path, a)
		}
	}
	if r := n.cli("", "tier", "compact", "t"); r.code != 1 || !strings.Contains(r.stderr, "read replica") {
		t.Errorf("tier compact at a replica: exit %d, %q", r.code, r.stderr)
	}
}

// wroteNothing wants that only reads of the replica reached the store.
func (n *node) wroteNothing(t *testing.T) {
	t.Helper()
	if n.store.proxy == nil {
		return
	}
	writes := n.store.proxy.Count(func(r s3test.Request) bool { return r.Method != http.MethodGet && r.Method != http.MethodHead })
	if writes > 0 {
		t.Errorf("a replica sent %d requests to the store that read nothing", writes)
	}
	if n.store.proxy.Count(isLook) == 0 {
		t.Error("the replica never asked for a manifest with a condition")
	}
}

// watch gathers what replicas answer under load. It is judged when all that the
// writer did is known.
type watch struct {
	t *testing.T
	l *ledger

	mu        sync.Mutex
	all       []witness
	putOff    int                      // answers that were none: see outOfTime
	positions map[int32]map[int64]bool // that any answer came with, by partition

	delays []time.Duration // from the bucket to a replica; see wantFresh
}

// witness is one answer of a replica.
type witness struct {
	key       string
	partition int32
	position  int64
	sight     sight
}

// watchers is how many clients look at one replica.
const watchers = 3

// start lets clients look keys up at a replica that is ready. The result ends it.
func (o *watch) start(r *node, seed uint64) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range watchers {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		wg.Go(func() {
			last := map[string]witness{} // what this client has seen, by key
			at := map[int32]int64{}
			for ctx.Err() == nil {
				key := o.l.names[rng.IntN(len(o.l.names))]
				a, err := r.try("GET", r.kv("t", key), nil, nil)
				if err == nil && r.outOfTime(a) {
					o.mu.Lock()
					o.putOff++
					o.mu.Unlock()
					pause(ctx, 20*time.Millisecond)
					continue
				}
				w := witness{key: key, position: positionOf(a), sight: sightOf(a)}
				partition, perr := strconv.ParseInt(a.header.Get("X-Kv-Partition"), 10, 32)
				if err != nil || perr != nil || w.position < 0 || w.sight.status != "" {
					o.t.Errorf("%s at a replica: %v, %v", key, a, err)
					pause(ctx, 20*time.Millisecond)
					continue
				}
				w.partition = int32(partition)
				if was, ok := last[key]; ok && was.sight.found && w.sight.found && w.sight.place.offset < was.sight.place.offset {
					o.t.Errorf("%s at a replica: offset %d after offset %d", key, w.sight.place.offset, was.sight.place.offset)
				}
				if w.position < at[w.partition] {
					o.t.Errorf("partition %d of a replica: position %d after %d", w.partition, w.position, at[w.partition])
				}
				last[key], at[w.partition] = w, w.position
				o.note(w)
				pause(ctx, time.Millisecond)
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

func (o *watch) note(w witness) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, w)
	if o.positions[w.partition] == nil {
		o.positions[w.partition] = map[int64]bool{}
	}
	o.positions[w.partition][w.position] = true
}

// judge wants each answer to be that of a moment between its position and the
// next one: while a replica moves from one to the next, it may have some of what is
// in between.
func (o *watch) judge(t *testing.T) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.l.mu.Lock()
	defer o.l.mu.Unlock()
	history := map[string][]write{}
	for at, w := range o.l.places {
		w.offset = at.offset
		history[w.key] = append(history[w.key], w)
	}
	for _, writes := range history {
		slices.SortFunc(writes, func(a, b write) int { return cmp.Compare(a.offset, b.offset) })
	}
	stops := map[int32][]int64{}
	for p, set := range o.positions {
		stops[p] = slices.Sorted(maps.Keys(set))
	}
	wrong := 0
	for _, w := range o.all {
		end := int64(1) << 62
		if i, _ := slices.BinarySearch(stops[w.partition], w.position+1); i < len(stops[w.partition]) {
			end = stops[w.partition][i]
		}
		if !possible(history[w.key], w, end) {
			if wrong++; wrong <= 5 {
				t.Errorf("%s at position %d of a replica, the next one being %d: %.60q at %v (found: %v); written: %.300q",
					w.key, w.position, end, w.sight.value, w.sight.place, w.sight.found, fmt.Sprint(around(history[w.key], w.position)))
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d answers of replicas are wrong", wrong, len(o.all))
	}
}

// possible says whether an answer is one that the key, whose writes are given in
// order, had once everything below the position had happened, and before anything
// from end on had.
func possible(writes []write, w witness, end int64) bool {
	state := write{} // none counts as deleted
	for i := 0; ; i++ {
		if i == len(writes) || writes[i].offset >= w.position {
			same := state.deletes() && !w.sight.found ||
				w.sight.found && state.value == w.sight.value && state.offset == w.sight.place.offset
			if same {
				return true
			}
		}
		if i == len(writes) || writes[i].offset >= end {
			return false
		}
		state = writes[i]
	}
}

// around are the writes next to a position.
func around(writes []write, position int64) []write {
	i, _ := slices.BinarySearchFunc(writes, position, func(w write, at int64) int { return cmp.Compare(w.offset, at) })
	return writes[max(0, i-2):min(len(writes), i+3)]
}

// TestPossible shows the judge answers on which its word is known.
func TestPossible(t *testing.T) {
	writes := []write{{"k", "a", 3}, {"k", "", 5}, {"k", "b", 8}, {"k", "c", 12}}
	found := func(value string, offset, position int64) witness {
		return witness{position: position, sight: sight{found: true, value: value, place: place{0, offset}}}
	}
	for name, c := range map[string]struct {
		w    witness
		end  int64
		want bool
	}{
		"nothing yet":                  {witness{position: 3}, 4, true},
		"first":                        {found("a", 3, 4), 5, true},
		"lost":                         {witness{position: 4}, 5, false},
		"deleted":                      {witness{position: 6}, 8, true},
		"deleted and back":             {found("a", 3, 6), 8, false},
		"part of the next":             {found("b", 8, 6), 9, true},
		"more than the next":           {found("b", 8, 6), 8, false},
		"stale":                        {found("b", 8, 13), 20, false},
		"another offset":               {found("c", 11, 13), 20, false},
		"another value":                {found("x", 12, 13), 20, false},
		"deleted in what comes":        {witness{position: 4}, 6, true},
		"what was there before it all": {found("a", 3, 3), 9, true},
	} {
		if got := possible(writes, c.w, c.end); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
