package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
)

// TestCompactFileHistory compacts real input, of which one record in fifteen is
// alive, while clients look keys up and write: what remains in the bucket is little
// more than what is alive, and no answer is wrong before, during and after. Run
// with -v it tells what the bucket holds, with batches as they were and with merged
// and compressed ones.
func TestCompactFileHistory(t *testing.T) {
	h := needHistory(t)
	for _, c := range []struct{ name, backend, codec string }{
		{"producer", "dir", "producer"},
		{"default", "aws", ""},
	} {
		t.Run(c.name, func(t *testing.T) { compactHistory(t, h, openStore(t, c.backend), c.codec) })
	}
}

// compactHistoryHot is the partition that stays on local disk as well.
const compactHistoryHot = historyPartitions - 1

func compactHistory(t *testing.T, h *history, s *store, codec string) {
	n := startNode(t, s)
	n.setCluster(remoteRead, true)
	configs := map[string]string{
		"segment.bytes":         "262144",
		"min.compaction.lag.ms": "3600000", // until it is all in the bucket
		"delete.retention.ms":   "0",
	}
	if codec != "" {
		configs["keyhole.remote.compression.type"] = codec
	}
	n.indexed(historyTopic, historyPartitions, configs)
	n.mustCLI("", "produce", historyTopic, h.file)
	for p := range historyPartitions {
		if c := n.compact(historyTopic, p); c.Done.RecordsRemoved > 0 || c.CloudLast == nil || *c.CloudLast+1 != *c.HighWatermark {
			t.Fatalf("partition %d: not everything is in the bucket, or something was compacted too early: %+v", p, c)
		}
		if p != compactHistoryHot {
			n.adminJSON("POST", fmt.Sprintf("/v1/cloud_storage/evict/%s/%d", historyTopic, p), object{"local_target_bytes": 0}, 200, nil)
		}
	}
	before := s.historySize(t)
	if before.records != historyRecords {
		t.Fatalf("the bucket has %d records, %d were produced", before.records, historyRecords)
	}
	r := &historyRun{h: h, n: n}
	r.phase(t, "before", "")

	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	load := newHistoryLoad(t, r, seed)
	load.start(t)
	defer load.end()
	n.setTopic(historyTopic, object{"min.compaction.lag.ms": 0})
	out := n.mustCLI("", "tier", "compact", historyTopic, "--json")
	var done []struct {
		Status compacted `json:"status"`
	}
	if err := json.Unmarshal([]byte(out), &done); err != nil || len(done) != historyPartitions {
		t.Fatalf("tier compact: %v, %s", err, out)
	}
	// The background may have come before the command.
	for p, d := range done {
		if d.Status.Done.CloudSegments == 0 && len(s.view(t, historyTopic, p).kept) == 0 {
			t.Errorf("partition %d: nothing was replaced in the bucket: %+v", p, d.Status.Done)
		}
	}
	if local := done[compactHistoryHot].Status.Done.LocalSegments; local == 0 && n.metrics()[`keyhole_compacted_segments_total{tier="local"}`] == "0" {
		t.Error("nothing was replaced in the local log")
	}
	load.wantCount(t, "compacted under load", s.historySize(t), false)
	load.stop(t)

	// What came meanwhile is compacted too, and nobody disturbs.
	n.compactAll(historyTopic, historyPartitions)
	after := s.historySize(t)
	load.wantCount(t, "compacted", after, true)
	if after.tombstones > 0 {
		t.Errorf("%d tombstones are left that nothing needs", after.tombstones)
	}
	load.wantAnswers(t, "after")
	n.evict(historyTopic, historyPartitions)
	n.trimCache()
	load.wantAnswers(t, "after, all of it cold")
	t.Logf("bucket, remote compression %q: %d bytes for %d records (%d bytes per live record) before, %d bytes for %d records after",
		codec, before.bytes, before.records, before.bytes/historyLive, after.bytes, after.records)
	n.leave()
	n.mustCheck("of the compacted topic")

	fresh := takeOver(t, s)
	load.r.n = fresh
	load.wantAnswers(t, "on an empty disk")
	fresh.leave()
}

// historySize is what the bucket has of the history: as the manifests claim, and
// as the segments are found to be.
type historySize struct {
	records, tombstones int
	bytes               int64
	keys                map[string]int // records by key
}

func (s *store) historySize(t *testing.T) historySize {
	t.Helper()
	size := historySize{keys: map[string]int{}}
	for p := range historyPartitions {
		v := s.view(t, historyTopic, p)
		found := v.decode(t, s)
		if len(found) != v.records {
			t.Fatalf("partition %d: the segments have %d records, the manifest says %d", p, len(found), v.records)
		}
		size.records += v.records
		size.tombstones += v.tombstones
		size.bytes += v.bytes
		for _, r := range found {
			size.keys[r.key]++
		}
	}
	return size
}

// historyLoad are clients of a node that holds the history: some write and read
// keys that the ledger follows, among them keys of the history; others want of
// the rest of the history what it has always been.
type historyLoad struct {
	r      *historyRun // what is left to the history alone
	l      *ledger
	seed   uint64
	load   *load
	cancel context.CancelFunc
	wg     sync.WaitGroup
	local  atomic.Int64 // values by where they came from
	cold   atomic.Int64
}

// historyShared is how many live and how many dead keys of the history, and how
// many new ones, the ledger gets.
const historyShared = 150

func newHistoryLoad(t *testing.T, r *historyRun, seed uint64) *historyLoad {
	t.Helper()
	rest := &history{live: map[string][]byte{}}
	l := newLedger(historyTopic, fmt.Sprint("load-", seed), historyShared)
	rng := rand.New(rand.NewPCG(seed, 7))
	keys := sorted(r.h.live)
	rng.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for i, key := range keys {
		if i >= historyShared {
			rest.live[key] = r.h.live[key]
			continue
		}
		s := sightOf(r.n.get(historyTopic, key))
		if !s.found {
			t.Fatalf("%s: %+v", key, s)
		}
		l.adopt(key, &s)
	}
	for _, i := range rng.Perm(len(r.h.dead)) {
		if len(rest.dead) < len(r.h.dead)-historyShared {
			rest.dead = append(rest.dead, r.h.dead[i])
			continue
		}
		l.adopt(r.h.dead[i], nil)
	}
	offsets := map[string]string{}
	for key := range rest.live {
		offsets[key] = r.offsets[key]
	}
	return &historyLoad{r: &historyRun{h: rest, n: r.n, offsets: offsets}, l: l, seed: seed}
}

// start lets the clients begin and waits until they have met both tiers.
func (hl *historyLoad) start(t *testing.T) {
	t.Helper()
	var ctx context.Context
	ctx, hl.cancel = context.WithCancel(t.Context())
	hl.load = newLoad(hl.r.n, hl.seed, func(op string, a answer, err error) {
		t.Errorf("%s while it is compacted: %v %v", op, a, err)
	})
	hl.l.addClients(hl.load, 2, 2)
	hl.load.add("evict", evictor(historyTopic, compactHistoryHot)) // all but that one
	keys := sorted(hl.r.h.live)
	for i := range 3 {
		rng := rand.New(rand.NewPCG(hl.seed, uint64(100+i)))
		hl.wg.Go(func() {
			for ctx.Err() == nil {
				hl.look(t, rng, keys)
			}
		})
	}
	poll(t, "lookups in both tiers, and writes, are answered", func() bool {
		return hl.local.Load() > 50 && hl.cold.Load() > 50 && hl.l.totals().acked > 100
	})
}

// look wants one key of the history to be as always.
func (hl *historyLoad) look(t *testing.T, rng *rand.Rand, keys []string) {
	if rng.IntN(4) == 0 {
		key := hl.r.h.dead[rng.IntN(len(hl.r.h.dead))]
		a, err := hl.r.n.try("GET", hl.r.n.kv(historyTopic, key), nil, nil)
		if err != nil || a.status != http.StatusNotFound || a.header.Get("X-Kv-Reason") != "key_not_found" {
			t.Errorf("deleted %s while it is compacted: %v %v", key, a, err)
		}
		return
	}
	key := keys[rng.IntN(len(keys))]
	a, err := hl.r.n.try("GET", hl.r.n.kv(historyTopic, key), nil, nil)
	at := a.header.Get("X-Kv-Partition") + "/" + a.header.Get("X-Kv-Offset")
	if err != nil || a.status != http.StatusOK || string(a.body) != string(hl.r.h.live[key]) || at != hl.r.offsets[key] {
		t.Errorf("%s while it is compacted: %v %v at %s, want %q at %s", key, a, err, at, hl.r.h.live[key], hl.r.offsets[key])
		return
	}
	if a.header.Get("X-Kv-Source") == "local" {
		hl.local.Add(1)
	} else {
		hl.cold.Add(1)
	}
}

// end waits for the clients to end.
func (hl *historyLoad) end() {
	hl.cancel()
	hl.load.stop()
	hl.wg.Wait()
}

func (hl *historyLoad) stop(t *testing.T) {
	t.Helper()
	hl.end()
	hl.l.report(t, "while it was compacted")
	t.Logf("while it was compacted: %d local and %d cold values of the history, and %v", hl.local.Load(), hl.cold.Load(), hl.l.totals())
}

// wantAnswers looks everything up with no client around.
func (hl *historyLoad) wantAnswers(t *testing.T, when string) {
	t.Helper()
	hl.r.phase(t, when, "")
	hl.l.settle(t, hl.r.n, when)
}

// wantCount wants little more than the live records in the bucket, and each of
// those. While clients write, what they have written does not count.
func (hl *historyLoad) wantCount(t *testing.T, when string, size historySize, quiet bool) {
	t.Helper()
	live, records := len(hl.r.h.live), size.records
	if quiet {
		live += hl.l.live()
	} else {
		for _, key := range hl.l.names {
			records -= size.keys[key]
		}
	}
	if float64(records) > 1.3*float64(live) {
		t.Errorf("%s: the bucket has %d records for %d live keys", when, records, live)
	}
	for key := range hl.r.h.live {
		if size.keys[key] == 0 {
			t.Errorf("%s: the bucket has no record of %s", when, key)
		}
	}
	t.Logf("%s: %d records for %d live keys (%.3f), %d tombstones", when, records, live, float64(records)/float64(live), size.tombstones)
}
