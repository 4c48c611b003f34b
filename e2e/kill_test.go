package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// defaultKillRounds is how many kills TestKill9 makes without KEYHOLE_KILL_ROUNDS.
const defaultKillRounds = 9

// killsPerLife bounds how many kills one data directory goes through before another
// configuration is tried. Few, so that a short run sees every backend; more in a
// long one, where a bucket shall grow old.
func killsPerLife(rounds int) int { return max(3, min(20, rounds/len(killConfigs))) }

// killConfig is one way to run the topic.
type killConfig struct {
	backend string
	topic   map[string]string
}

// killConfigs are taken in turn. Segments hold a few batches, and whatever is
// uploaded is due for eviction at once or soon. Nearly everything is due for
// compaction, some of it before it is uploaded, and what is replaced goes soon.
var killConfigs = []killConfig{
	{"aws", map[string]string{"segment.bytes": "4096", "retention.local.target.bytes": "0",
		"delete.retention.ms": "0", "min.cleanable.dirty.ratio": "0"}},
	{"minio", map[string]string{"segment.bytes": "16384", "retention.local.target.bytes": "32768", "compression.type": "zstd",
		"delete.retention.ms": "0", "keyhole.remote.compression.type": "producer"}},
	{"dir", map[string]string{"segment.bytes": "8192", "retention.local.target.bytes": "8192", "flush.ms": "50",
		"delete.retention.ms": "200"}},
	{"aws", map[string]string{"segment.bytes": "65536", "segment.ms": "300", "retention.local.target.bytes": "1",
		"delete.retention.ms": "0", "min.compaction.lag.ms": "200", "keyhole.remote.compression.type": "lz4"}},
}

const (
	killPartitions = 2
	killKeys       = 120
	killGrace      = 1000 // milliseconds that an object outlives its replacement
)

// TestKill9 kills the program with signal 9 again and again, under writes,
// deletions, lookups and evictions, while both tiers are compacted and the bucket
// is cleaned up, and while it recovers from the kill before, sometimes without an
// index. After each kill both tiers must be sound, and after each restart the
// ledger decides. Cases 6-02, 6-03,
// 7-05, 7-15.
func TestKill9(t *testing.T) {
	rounds := envRounds(t, "KEYHOLE_KILL_ROUNDS", defaultKillRounds)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var total tally
	done := 0
	for life := 0; done < rounds && !t.Failed(); life++ {
		c := killConfigs[life%len(killConfigs)]
		n := min(killsPerLife(rounds), rounds-done)
		t.Run(fmt.Sprintf("life %d %s", life, c.backend), func(t *testing.T) {
			total.add(killLife(t, c, n, seed+uint64(life)))
		})
		done += n
	}
	t.Logf("%d kills: %v", done, total)
}

// killLife takes one data directory through a number of kills.
func killLife(t *testing.T, c killConfig, rounds int, seed uint64) tally {
	s := openStore(t, c.backend)
	n := startNode(t, s)
	n.indexed("t", killPartitions, c.topic)
	n.setCluster(remoteRead, true)
	n.setGrace(killGrace)
	l := newLedger("t", fmt.Sprint(seed), killKeys)
	rng := rand.New(rand.NewPCG(seed, 1<<32))
	compactions := 0.0 // of segments, by all processes
	for round := range rounds {
		before := l.totals().acked
		clients := l.runLoad(n, seed+uint64(round)<<16, 4, 2, killPartitions, nil)
		clients.add("compact", compactor("t", killPartitions))
		enough := before + 20 + rng.IntN(300)
		compacted := 0.0
		poll(t, "some writes are answered, some segments compacted", func() bool {
			compacted = n.sum("keyhole_compacted_segments_total")
			return l.totals().acked >= enough && compacted > 0
		})
		compactions += compacted
		pause(context.Background(), time.Duration(rng.IntN(80))*time.Millisecond) // to any place of the next ones
		n.kill()
		clients.stop()
		n.mustCheck(fmt.Sprintf("after kill %d", round+1))
		if rng.IntN(3) == 0 { // then what the tiers hold has to say it all
			n.dropIndexes(t, killPartitions)
		}
		for range rng.IntN(3) { // dies again on its way up, at any place
			n.start()
			pause(context.Background(), time.Duration(rng.IntN(120))*time.Millisecond)
			n.kill()
		}
		n.start()
		n.waitReady()
		l.settle(t, n, fmt.Sprintf("after kill %d", round+1))
		if t.Failed() {
			break
		}
	}
	uploaded := 0
	for p := range killPartitions {
		uploaded += n.status("t", p).CloudSegments
	}
	if uploaded == 0 {
		t.Error("nothing was uploaded: the kills did not reach the bucket")
	}
	n.compactAll("t", killPartitions)
	l.settle(t, n, "compacted at last")
	n.kill()
	n.mustCheck("after many a kill -9")
	fresh := takeOver(t, s)
	l.settle(t, fresh, "on an empty disk")
	fresh.kill()
	t.Logf("%d kills: %v, %d segments in the bucket, %v compacted by processes that were killed", rounds, l.totals(), uploaded, compactions)
	return l.totals()
}
