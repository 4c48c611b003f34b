package partition

import (
	"context"
	"errors"
	"fmt"

	"keyhole/tiered"
)

// CheckOwner asks the bucket whether a newer writer has the partition, and
// fences it if so; lost says that this call found it out. Whoever writes the
// manifest learns the same from it: this is for a node that only answers
// lookups, or was paused. It costs one request without a body as long as nothing
// has changed, and none before the partition is claimed or once it is fenced. An
// error is the store's, or damage, and leaves the partition as it is.
func (p *Partition) CheckOwner(ctx context.Context) (lost bool, err error) {
	if p.fenced.Load() || !p.claimed.Load() {
		return false, nil
	}
	err = p.tier.Look(ctx)
	if !errors.Is(err, context.Canceled) {
		p.mu.Lock()
		p.mu.ownerErr = nil
		if unavailable(err) || isCorrupt(err) {
			p.mu.ownerErr = err
		}
		p.mu.Unlock()
	}
	switch {
	case errors.Is(err, tiered.ErrFenced):
		p.fence(p.unuploaded(err))
		return true, nil
	case errors.Is(err, tiered.ErrClosed):
		return false, ErrClosed
	case isCorrupt(err):
		p.corrupted("remote", err)
	}
	return false, err
}

// unuploaded adds to the reason of a fencing which records were acknowledged
// here and are in no bucket. They stay on this disk, and nowhere else.
func (p *Partition) unuploaded(err error) error {
	log := p.log.Load()
	if log == nil {
		return err
	}
	from, to := p.tail(log.State())
	if to <= from {
		return err
	}
	return fmt.Errorf("offsets %d to %d were acknowledged here and never uploaded: %w", from, to-1, err)
}
