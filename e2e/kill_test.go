package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// defaultKillRounds is how many kills TestKill9 makes without KEYHOLE_KILL_ROUNDS.
const defaultKillRounds = 6

// roundsPerLife bounds how many kills one data directory goes through before
// both tiers are checked and another configuration is tried: what is checked is
// read whole.
const roundsPerLife = 20

// killConfig is one way to run the topic.
type killConfig struct {
	backend string
	topic   map[string]string
}

// killConfigs are taken in turn. Segments hold a few batches, and whatever is
// uploaded is due for eviction at once or soon.
var killConfigs = []killConfig{
	{"aws", map[string]string{"segment.bytes": "4096", "retention.local.target.bytes": "0"}},
	{"minio", map[string]string{"segment.bytes": "16384", "retention.local.target.bytes": "32768", "compression.type": "zstd"}},
	{"dir", map[string]string{"segment.bytes": "8192", "retention.local.target.bytes": "8192", "flush.ms": "50"}},
	{"aws", map[string]string{"segment.bytes": "65536", "segment.ms": "300", "retention.local.target.bytes": "1"}},
}

const (
	killPartitions = 2
	killKeys       = 120
)

// TestKill9 kills the program with signal 9 again and again, under writes,
// deletions, lookups and evictions, and while it recovers from the kill before.
// After each restart the ledger decides. Cases 6-02, 6-03, 7-05.
func TestKill9(t *testing.T) {
	rounds := envRounds(t, "KEYHOLE_KILL_ROUNDS", defaultKillRounds)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var total tally
	done := 0
	for life := 0; done < rounds && !t.Failed(); life++ {
		c := killConfigs[life%len(killConfigs)]
		n := min(roundsPerLife, rounds-done)
		t.Run(fmt.Sprintf("life %d %s", life, c.backend), func(t *testing.T) {
			total.add(killLife(t, c, n, seed+uint64(life)))
		})
		done += n
	}
	t.Logf("%d kills: %v", done, total)
}

// killLife takes one data directory through a number of kills and checks both
// tiers at its end.
func killLife(t *testing.T, c killConfig, rounds int, seed uint64) tally {
	s := openStore(t, c.backend)
	n := startNode(t, s)
	n.indexed("t", killPartitions, c.topic)
	n.setCluster(remoteRead, true)
	l := newLedger("t", fmt.Sprint(seed), killKeys)
	rng := rand.New(rand.NewPCG(seed, 1<<32))
	for round := range rounds {
		before := l.totals().acked
		clients := l.runLoad(n, seed+uint64(round)<<16, 4, 2, killPartitions, nil)
		enough := before + 20 + rng.IntN(300)
		poll(t, time.Minute, "some writes are answered", func() bool { return l.totals().acked >= enough })
		n.kill()
		clients.stop()
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
	n.kill()
	n.mustCheck("after many a kill -9")
	t.Logf("%d kills: %v, %d segments in the bucket", rounds, l.totals(), uploaded)
	return l.totals()
}
