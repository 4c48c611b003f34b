package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// load is a number of clients at work on one node, until stop. Each keeps on over
// refusals, with a pause.
type load struct {
	n       *node
	seed    uint64
	refused func(op string, a answer, err error) // nil, or told of everything but a 200 and "key not found"

	ctx     context.Context
	cancel  context.CancelFunc
	clients uint64
	wg      sync.WaitGroup
}

func newLoad(n *node, seed uint64, refused func(op string, a answer, err error)) *load {
	ctx, cancel := context.WithCancel(context.Background())
	return &load{n: n, seed: seed, refused: refused, ctx: ctx, cancel: cancel}
}

// step is what a client does again and again.
type step func(ctx context.Context, n *node, rng *rand.Rand) (answer, error)

// add starts one more client.
func (ld *load) add(op string, do step) {
	rng := rand.New(rand.NewPCG(ld.seed, ld.clients))
	ld.clients++
	ld.wg.Go(func() {
		for ld.ctx.Err() == nil {
			a, err := do(ld.ctx, ld.n, rng)
			if err == nil && (a.status == 200 || a.header.Get("X-Kv-Reason") == "key_not_found") {
				continue
			}
			if ld.refused != nil {
				ld.refused(op, a, err)
			}
			pause(ld.ctx, 10*time.Millisecond)
		}
	})
}

// stop waits for the clients to end.
func (ld *load) stop() {
	ld.cancel()
	ld.wg.Wait()
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// addClients adds those whose answers the ledger judges.
func (l *ledger) addClients(ld *load, writers, readers int) {
	for range writers {
		ld.add("write", func(_ context.Context, n *node, rng *rand.Rand) (answer, error) { return l.write(n, rng) })
	}
	for range readers {
		ld.add("read", func(_ context.Context, n *node, rng *rand.Rand) (answer, error) { return l.look(n, rng) })
	}
}

// runLoad starts writers, readers and one who evicts all the time.
func (l *ledger) runLoad(n *node, seed uint64, writers, readers, partitions int, refused func(op string, a answer, err error)) *load {
	ld := newLoad(n, seed, refused)
	l.addClients(ld, writers, readers)
	ld.add("evict", evictor(l.topic, partitions))
	return ld
}

// evictor moves what a partition has to the bucket, or empties the cache.
func evictor(topic string, partitions int) step {
	return func(ctx context.Context, n *node, rng *rand.Rand) (answer, error) {
		pause(ctx, time.Duration(rng.IntN(30))*time.Millisecond)
		path := fmt.Sprintf("/v1/cloud_storage/evict/%s/%d", topic, rng.IntN(partitions))
		body := object{"local_target_bytes": rng.IntN(3) * 4096}
		if rng.IntN(4) == 0 {
			path, body = "/v1/cloud_storage/cache/trim", nil
		}
		return n.try("POST", n.admin+path, nil, body)
	}
}

// compactor compacts partitions, and now and then has the bucket cleaned up.
func compactor(topic string, partitions int) step {
	return func(ctx context.Context, n *node, rng *rand.Rand) (answer, error) {
		pause(ctx, time.Duration(rng.IntN(60))*time.Millisecond)
		if rng.IntN(4) == 0 {
			return n.try("POST", n.admin+"/v1/cloud_storage/gc", nil, object{"topic": topic})
		}
		return n.try("POST", fmt.Sprintf("%s/v1/compact/%s/%d", n.admin, topic, rng.IntN(partitions)), nil, nil)
	}
}
