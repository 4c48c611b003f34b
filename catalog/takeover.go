package catalog

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"keyhole/partition"
)

// ErrTakenOver refuses to change a topic of which another node has taken over a
// partition: this node's description of it is no longer the one that counts, and
// a mark of deletion would have the other node's objects swept. It is a
// partition.ErrNotHosted.
var ErrTakenOver = fmt.Errorf("%w: another node has taken over partitions of the topic", partition.ErrNotHosted)

// ownerPatience bounds how long a change of a topic waits for the bucket to say
// who has its partitions.
const ownerPatience = 5 * time.Second

// askOwner asks the bucket about all partitions of t, because one that only
// answers lookups may not have noticed yet that another node has it. If the bucket
// does not answer, what is known counts: a topic can be changed while it is away.
func askOwner(ctx context.Context, t *Topic) {
	ctx, cancel := context.WithTimeout(ctx, ownerPatience)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(looksAtOnce)
	for _, p := range t.partitions {
		g.Go(func() error {
			_, err := p.CheckOwner(ctx)
			return err
		})
	}
	_ = g.Wait() // the first failure ends it, and is said wherever something is read
}

// changeable gives ErrTakenOver if any partition of t is another node's.
func (t *Topic) changeable() error {
	for _, p := range t.partitions {
		if p.TakenOver() != nil {
			return fmt.Errorf("%w: %s/%d", ErrTakenOver, t.name, p.ID())
		}
	}
	return nil
}
