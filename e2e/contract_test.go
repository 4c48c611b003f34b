package e2e

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

const (
	contractRounds     = 3
	contractOverwrites = 1500
	contractKeys       = 100
	contractTombstones = 15
	contractFillers    = 400
	contractFill       = 512 // random bytes of a filler's value
	contractPartitions = 2
)

// TestCompactionContract overwrites, deletes and fills in rounds, with a restart
// before each but the first and a compaction at the end of each. Whatever the tiers
// went through, every key has the answer that its last write gave it; and so it has
// when the index is built anew, and on a disk that knows nothing but the bucket.
func TestCompactionContract(t *testing.T) {
	twoBackends(t, compactionContract)
}

func compactionContract(t *testing.T, s *store) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	random := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	n := startNode(t, s)
	n.setCluster(remoteRead, true)
	n.indexed("t", contractPartitions, map[string]string{"segment.bytes": "65536", "delete.retention.ms": "0"})

	values := map[string][]byte{} // nil: deleted
	var records []object
	write := func(key string, value []byte) {
		values[key] = value
		records = append(records, object{"key": []byte(key), "value": value, "timestamp": 1_700_000_000_000 + int64(rng.IntN(1e9))})
		if value == nil {
			records[len(records)-1]["value"] = nil
		}
	}
	var answers map[string]full
	gone := 0 // records that both compactions, this one and that of the background, have taken away
	for round := range contractRounds {
		if round > 0 {
			n.restart()
			wantAll(t, fmt.Sprintf("restarted before round %d", round), n.readAll("t", sorted(values)), answers)
		}
		for i := range contractOverwrites {
			write(fmt.Sprint("key-", rng.IntN(contractKeys)), fmt.Appendf(nil, "%d/%d %0*d", round, i, rng.IntN(200), i))
		}
		for _, i := range rng.Perm(contractKeys)[:contractTombstones] {
			write(fmt.Sprint("key-", i), nil)
		}
		for i := range contractFillers {
			fill := make([]byte, contractFill)
			_, _ = random.Read(fill) // never fails
			write(fmt.Sprintf("filler-%d-%d", round, i), fill)
		}
		for len(records) > 0 {
			some := min(len(records), 1+rng.IntN(300))
			n.produce("t", records[:some])
			records = records[some:]
		}
		removed := -gone
		for p := range contractPartitions {
			n.compact("t", p)
			removed += int(*n.status("t", p).HighWatermark) - s.view(t, "t", p).records
			if rng.IntN(2) == 0 { // what follows is hot in one partition and cold in the other, or not
				n.adminJSON("POST", fmt.Sprintf("/v1/cloud_storage/evict/t/%d", p), object{"local_target_bytes": 0}, 200, nil)
			}
		}
		gone += removed
		if removed < contractOverwrites/2 {
			t.Errorf("round %d: only %d records were removed", round, removed)
		}
		answers = n.readAll("t", sorted(values))
		wantValues(t, fmt.Sprintf("compacted in round %d", round), answers, values)
	}

	n.evict("t", contractPartitions)
	n.compactAll("t", contractPartitions)
	live, left := 0, 0
	for _, v := range values {
		if v != nil {
			live++
		}
	}
	for p := range contractPartitions {
		left += len(s.view(t, "t", p).decode(t, s))
	}
	if left != live {
		t.Errorf("the bucket has %d records for %d live keys", left, live)
	}
	wantAll(t, "evicted", n.readAll("t", sorted(values)), answers)

	var next [contractPartitions]int64
	for p := range contractPartitions {
		next[p] = *n.status("t", p).HighWatermark
	}
	n.leave()
	n.dropIndexes(t, contractPartitions)
	n.start()
	n.waitReady()
	wantAll(t, "without the index directories", n.readAll("t", sorted(values)), answers)
	n.leave()
	n.mustCheck("at the end")

	fresh := takeOver(t, s)
	wantAll(t, "on an empty disk", fresh.readAll("t", sorted(values)), answers)
	// The offsets that compaction freed are not given again.
	for p := range contractPartitions {
		a := fresh.do("PUT", fresh.kv("t", "another")+fmt.Sprint("?partition=", p), nil, []byte("v"))
		if a.status != 200 || a.header.Get("X-Kv-Offset") != fmt.Sprint(next[p]) {
			t.Errorf("the next record of partition %d: %v at %s, want it at %d", p, a, a.header.Get("X-Kv-Offset"), next[p])
		}
	}
	fresh.leave()
}

// wantValues wants every key to be what was written last, byte by byte.
func wantValues(t *testing.T, when string, got map[string]full, values map[string][]byte) {
	t.Helper()
	wrong := 0
	for _, key := range sorted(values) {
		value, a := values[key], got[key]
		ok := a.status == 200 && a.body == string(value)
		if value == nil {
			ok = a.status == 404 && a.reason == "key_not_found"
		}
		if !ok {
			if wrong++; wrong <= 5 {
				t.Errorf("%s: %s: %.300q, want %.100q", when, key, fmt.Sprint(a), value)
			}
		}
	}
	if wrong > 0 {
		t.Fatalf("%s: %d of %d answers are wrong", when, wrong, len(values))
	}
}
