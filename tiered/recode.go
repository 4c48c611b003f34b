package tiered

import (
	"keyhole/record"
	"keyhole/rewrite"
)

// recoder turns the batches of a group into those of the bucket. The first pass
// over a source and the second both use it, and what it makes of a group depends
// on nothing else, so the second pass may begin at any group and gives the same
// bytes.
type recoder struct {
	w       *rewrite.Writer
	out     []byte               // the group's batches, one behind the other
	batches []record.BatchHeader // their headers
	next    int64                // offset behind what was added
}

func newRecoder(p *plan) *recoder {
	rc := new(recoder)
	rc.w = rewrite.NewWriter(rewrite.Options{
		Codec:  p.recode.Codec,
		Target: int(p.chunkBytes),
		Emit: func(batch []byte, _ int64) error {
			h, err := record.ParseHeader(batch)
			if err != nil {
				return err
			}
			if !h.IsControl() && !h.IsTransactional() {
				record.SetLeaderEpoch(batch, int32(p.epoch))
			}
			rc.out = append(rc.out, batch...)
			rc.batches = append(rc.batches, h)
			return nil
		},
	})
	return rc
}

// begin forgets the group before.
func (rc *recoder) begin() { rc.out, rc.batches = rc.out[:0], rc.batches[:0] }

// add takes the next batch of the group, which gets the given base offset.
func (rc *recoder) add(batch []byte, base int64) error {
	h, err := record.ParseHeader(batch)
	if err != nil {
		return err
	}
	rc.next = base + int64(h.LastOffsetDelta) + 1
	return rc.w.Add(batch, base)
}

// end completes the group: all of it is in out then.
func (rc *recoder) end() error { return rc.w.Flush(rc.next) }
