package partition

import (
	"context"
	"fmt"
	"time"

	"keyhole/record"
)

// batchTarget is the uncompressed size at which the records of one append are
// split over several batches. A lookup checks the CRC of a whole batch and walks
// over its records, so small batches make hot lookups cheap: with 16 KiB the CRC
// alone was a tenth of a GET. A batch costs 61 bytes and its entry in the log's
// sparse index. Compression needs more to work on, and then its cost dominates
// both ways: that is batch.size of Kafka's producers.
const (
	batchTarget           = 4 << 10
	compressedBatchTarget = 16 << 10
)

// Validate says whether rec could be appended: ErrNoKey, ErrKeyTooLong or
// ErrRecordTooLarge if not.
func (p *Partition) Validate(rec *record.Record) error {
	return validate(rec, p.settings.Load().MaxRecordBytes)
}

func validate(rec *record.Record, maxBytes int64) error {
	switch {
	case rec.Key == nil:
		return ErrNoKey
	case len(rec.Key) > MaxKeyBytes:
		return fmt.Errorf("%w: %d bytes, at most %d", ErrKeyTooLong, len(rec.Key), MaxKeyBytes)
	case int64(rec.Size()) > maxBytes:
		return fmt.Errorf("%w: %d bytes, at most %d", ErrRecordTooLarge, rec.Size(), maxBytes)
	}
	return nil
}

// Append writes recs in order and gives the offset of the first; the others
// follow without a gap. On return they are durable by the flush rule and every
// later lookup here sees them. After an error they may or may not have been
// written, unless it is one of Validate's: then none was.
//
// Offset fields of recs are ignored and overwritten.
func (p *Partition) Append(ctx context.Context, recs []record.Record) (int64, error) {
	if p.ctx.Err() != nil {
		return 0, ErrClosed
	}
	if p.fenced.Load() || p.o.Replica {
		return 0, ErrNotHosted
	}
	log := p.log.Load()
	if log == nil || !p.writable.Load() {
		return 0, p.notServing()
	}
	s := p.settings.Load()
	for i := range recs {
		if err := validate(&recs[i], s.MaxRecordBytes); err != nil {
			return 0, err
		}
	}
	batches, size, err := encode(recs, s.Codec)
	if err != nil {
		return 0, err
	}
	if !p.o.Space.take(size) {
		return 0, ErrDiskFull
	}
	bases, err := log.Append(ctx, batches)
	if err != nil {
		return 0, p.appendTrouble(err)
	}
	p.noteFuture(recs)
	p.o.Metrics.AppendedBytes.Add(float64(size))
	p.o.Metrics.AppendedRecord.Add(float64(len(recs)))
	if p.waiting.Add(size) >= s.SegmentBytes {
		// A segment was sealed, give or take one.
		p.waiting.Store(0)
		p.wake()
	}
	return bases[0], nil
}

// encode packs recs into batches whose offsets start at 0, as locallog wants
// them, and gives their total size.
func encode(recs []record.Record, codec record.Codec) (batches [][]byte, size int64, err error) {
	target := batchTarget
	if codec != record.None {
		target = compressedBatchTarget
	}
	for len(recs) > 0 {
		n, bytes := 0, 0
		for n < len(recs) && (n == 0 || bytes+recs[n].Size() <= target) {
			recs[n].Offset = int64(n)
			bytes += recs[n].Size()
			n++
		}
		b, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: -1, Codec: codec}, recs[:n])
		if err != nil {
			return nil, 0, err
		}
		batches = append(batches, b)
		size += int64(len(b))
		recs = recs[n:]
	}
	return batches, size, nil
}

// futureSlack is how far clocks may be apart.
const futureSlack = 24 * time.Hour

// noteFuture counts records that are dated in the future, which is a clock or a
// unit gone wrong somewhere: microseconds, say. They are stored as they are, and
// nothing here goes by their time, but retention elsewhere may.
func (p *Partition) noteFuture(recs []record.Record) {
	limit := time.Now().Add(futureSlack).UnixMilli()
	for i := range recs {
		if recs[i].Timestamp <= limit {
			continue
		}
		p.o.Metrics.FutureRecords.Inc()
		if !p.future.Swap(true) {
			p.o.Logger.Warn("a record is dated in the future; more of them are only counted", "timestamp", recs[i].Timestamp)
		}
	}
}
