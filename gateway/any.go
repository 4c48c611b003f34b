package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"

	"keyhole/partition"
)

// findAny answers from whichever hosted partition has the newest record of the
// key, by timestamp, then by partition number.
//
// All of them are asked from their indexes first, which costs no read. One that
// has the key answers as if it had been named. Only where several have it must
// their records be read, since the index knows no timestamps; a HEAD, which reads
// nothing, then says that the key is there and leaves out what it does not know.
//
// A partition that cannot say whether it has the key makes the whole answer
// unknowable, since its record could be the newest.
func (a *answer) findAny(ctx context.Context, h http.Header, q partition.Query) error {
	hosted := a.topic.Hosted()
	if len(hosted) == 0 {
		return partition.ErrNotHosted
	}
	holders, err := a.holders(ctx, hosted, q)
	if err != nil {
		return err
	}
	q.MinPosition, q.Wait = 0, 0 // reached; positions do not go back
	a.together = false           // from here on the holders answer
	if len(holders) == 1 {
		a.placed = true
		q.Matches = a.matcher(h, holders[0].ID())
		return a.ask(ctx, holders[0], q)
	}
	a.ambiguous = true
	if q.ResolveOnly {
		return nil
	}
	return a.newest(ctx, h, holders, q)
}

// holders gives the partitions whose index has the key, at least one.
func (a *answer) holders(ctx context.Context, hosted []keyLog, q partition.Query) (holders []keyLog, err error) {
	q.ResolveOnly = true
	until := time.Now().Add(q.Wait)
	var absent, trouble, elsewhere verdict
	for _, p := range hosted {
		q.Wait = max(0, time.Until(until))
		res, err := p.Lookup(ctx, a.target.key, q)
		if err == nil || classify(err).position {
			a.sees(res.Position)
		}
		switch {
		case err == nil:
			holders = append(holders, p)
		case errors.Is(err, partition.ErrNotHosted):
			elsewhere.hear(err) // taken over by another node: not one of ours
		case classify(err).isAbsence():
			absent.hear(err)
		default:
			trouble.hear(err)
		}
	}
	switch {
	case trouble.err != nil:
		return nil, trouble.err
	case len(holders) > 0:
		return holders, nil
	case absent.err != nil:
		return nil, absent.err
	}
	return nil, elsewhere.err
}

// sees takes down the smallest position of the partitions that were asked, which
// is what an answer of all of them together can vouch for: every record below it,
// in any of them, is reflected.
func (a *answer) sees(position int64) {
	if !a.together || position < a.res.Position {
		a.res.Position = position
	}
	a.together = true
}

// newest reads the key's record in each of the holders.
func (a *answer) newest(ctx context.Context, h http.Header, holders []keyLog, q partition.Query) error {
	best := *a
	q.Buf = nil // several values are at hand at once
	var absent verdict
	found := 0
	for _, p := range holders {
		err := a.ask(ctx, p, q)
		switch {
		case err == nil:
			if found == 0 || a.res.Timestamp >= best.res.Timestamp {
				best = *a
			}
			found++
		case classify(err).isAbsence():
			absent.hear(err) // deleted since the index was asked
		default:
			return err
		}
	}
	if found == 0 {
		return absent.err
	}
	*a = best
	a.placed, a.ambiguous = true, found > 1
	if matches := a.matcher(h, a.res.Partition); matches != nil && matches(a.res.Offset, a.res.Epoch) {
		a.res.NotModified, a.read = true, false
	}
	return nil
}

// verdict keeps, of the errors of several partitions, the one whose step comes
// first.
type verdict struct{ err error }

func (v *verdict) hear(err error) {
	if v.err == nil || classify(err).step < classify(v.err).step {
		v.err = err
	}
}
