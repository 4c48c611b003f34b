// Package rewrite turns a sequence of record batches into fewer, larger or
// emptier ones: it merges small batches, compresses them, and leaves out records
// that nobody needs any more. Offsets never move.
//
// It promises:
//
//   - Every record that is kept has the offset, the time, the key, the value and
//     the headers that it had, byte for byte. The time of a batch that was
//     stamped when it was appended becomes the time of its records.
//   - The output depends on nothing but the input, the options and what Keep
//     says: the same again gives the same bytes.
//   - Every batch is checked, its CRC too, before anything of it is used.
//   - Memory is bounded by one input batch, decompressed, and one output batch.
//
// One run, Target being about three of these records:
//
//	          ┌───────┬───────┬─────┬───────────┬──────┬───────┐
//	in        │ a0 b1 │ a2 c3 │ d4  │ control 5 │ b6   │ a7    │
//	          └───────┴───────┴─────┴───────────┴──────┴───────┘
//	          ┌─────────────────────┬───────────┬──────────────┐
//	out       │ b1 c3 d4            │ control 5 │ b6 a7        │
//	          └─────────────────────┴───────────┴──────────────┘
//	dense     covers 0 to 4          as it was   covers 6 to 7
//
// A Writer that is not dense lets a batch begin at its first record and end at its
// last one, and gaps be gaps.
package rewrite

import (
	"errors"
	"fmt"
	"math"

	"keyhole/record"
)

// MaxUncompressed bounds what one input batch decompresses to, in bytes.
const MaxUncompressed = 128 << 20

// maxSpan is the largest distance between two offsets of a batch.
const maxSpan = math.MaxInt32

// Options say what a [Writer] makes of the batches that it gets.
type Options struct {
	// Codec compresses the batches, where that makes them smaller.
	Codec record.Codec
	// KeepCodec takes the codec of the first batch that is merged into each one
	// instead.
	KeepCodec bool
	// Target is the number of plain bytes beyond which a batch does not grow. A
	// record that is larger stands alone. 0: every record stands alone.
	Target int
	// Keep says whether a record stays; nil: all do. Offset is in the numbering of
	// the output, key is valid during the call. Records without a key are kept
	// unasked. An error ends the call of Add, which returns it.
	Keep func(key []byte, offset int64, tombstone bool) (bool, error)
	// Dense covers every offset of a run: batches reach up to where the next one
	// begins, and one without records stands where nothing is left.
	Dense bool
	// Emit gets the batches, the last one in Flush; base is the base offset that
	// stands in the batch. batch is valid during the call and may be changed in
	// it. An error ends the call of Add or Flush, which returns it.
	Emit func(batch []byte, base int64) error
	// Object names the input in errors; "": the caller does so.
	Object string
}

// Stats count what went through a [Writer]. Records of control batches are none.
type Stats struct {
	RecordsIn, RecordsOut int64
	Tombstones            int64 // among RecordsOut
	BytesOut              int64
	MaxTimestamp          int64 // of RecordsOut, Unix milliseconds; 0 if there is none
}

// Writer rewrites one sequence of batches. After an error it is of no use any
// more. One goroutine at a time may use it.
type Writer struct {
	o     Options
	in    record.Reader
	b     record.Builder
	out   []byte
	stats Stats

	running bool  // a run has begun
	next    int64 // offset behind the input of the run so far
	from    int64 // where the pending batch begins; if dense, all below it is covered
	last    int64 // offset of the last pending record
	codec   record.Codec
	epoch   int32 // leader epoch of the pending batch
}

// NewWriter gives a Writer that waits for its first batch.
func NewWriter(o Options) *Writer { return &Writer{o: o} }

// Stats count what was added, and what was given to Emit.
func (w *Writer) Stats() Stats { return w.stats }

// Add takes one whole batch whose base offset is to be base in the output. Batches
// come in the order of their offsets; between them may be gaps. The batch is not
// changed and not kept. One that fails a check, or that lies before the end of the
// one before it, is record.ErrCorrupt.
//
// Control batches and those of transactions are given on as they are, behind all
// that came before them.
func (w *Writer) Add(batch []byte, base int64) error {
	h, err := record.ParseHeader(batch)
	if err == nil && (h.IsControl() || h.IsTransactional()) {
		return w.pass(batch, base)
	}
	if err := w.in.Reset(batch, MaxUncompressed); err != nil {
		return w.corrupt(err)
	}
	if err := w.reach(h, base); err != nil {
		return err
	}
	if h.LeaderEpoch != w.epoch {
		// Each batch names one epoch, and each offset keeps its own.
		if err := w.finish(base); err != nil {
			return err
		}
		w.epoch = h.LeaderEpoch
	}
	for w.in.Next() {
		v := w.in.Record()
		w.stats.RecordsIn++
		offset := base + v.Offset - h.BaseOffset
		if w.o.Keep != nil && v.Key != nil {
			keep, err := w.o.Keep(v.Key, offset, v.Value == nil)
			if err != nil {
				return err
			}
			if !keep {
				continue
			}
		}
		if err := w.add(v, offset, h.Codec()); err != nil {
			return err
		}
	}
	if err := w.in.Err(); err != nil {
		return w.corrupt(err)
	}
	w.next = base + int64(h.LastOffsetDelta) + 1
	return nil
}

// reach checks that a batch follows what came before, and begins a run with it if
// there is none.
func (w *Writer) reach(h record.BatchHeader, base int64) error {
	if base < 0 || base > math.MaxInt64-1-int64(h.LastOffsetDelta) {
		return fmt.Errorf("%w: base offset %d", record.ErrInvalid, base)
	}
	if !w.running {
		if base < w.from {
			return w.corrupt(fmt.Errorf("offset %d behind offset %d", base, w.from-1))
		}
		w.running, w.next, w.from, w.epoch = true, base, base, h.LeaderEpoch
	}
	if base < w.next {
		return w.corrupt(fmt.Errorf("offset %d behind offset %d", base, w.next-1))
	}
	return nil
}

// pass gives a batch on as it is. Its records are looked at all the same, for
// Stats and because whoever reads the output will.
func (w *Writer) pass(batch []byte, base int64) error {
	if err := w.in.Reset(batch, MaxUncompressed); err != nil {
		return w.corrupt(err)
	}
	h := w.in.Header()
	if err := w.reach(h, base); err != nil {
		return err
	}
	if err := w.finish(base); err != nil {
		return err
	}
	for w.in.Next() {
		if !h.IsControl() {
			w.stats.RecordsIn++
			w.count(w.in.Record())
		}
	}
	if err := w.in.Err(); err != nil {
		return w.corrupt(err)
	}
	w.out = append(w.out[:0], batch...)
	record.SetBaseOffset(w.out, base)
	w.next = base + int64(h.LastOffsetDelta) + 1
	w.from = w.next
	return w.emit(base)
}

// count counts a record that stays.
func (w *Writer) count(v *record.View) {
	w.stats.RecordsOut++
	if v.Value == nil {
		w.stats.Tombstones++
	}
	w.stats.MaxTimestamp = max(w.stats.MaxTimestamp, v.Timestamp)
}

// add puts a record into the pending batch, or into a new one if it does not fit.
func (w *Writer) add(v *record.View, offset int64, codec record.Codec) error {
	if n := w.b.Len(); n > 0 && (int64(w.b.Size())+v.PlainSize() > int64(w.o.Target) || offset-w.from > maxSpan) {
		if err := w.finish(offset); err != nil {
			return err
		}
	}
	if w.b.Len() == 0 {
		if !w.o.Dense {
			w.from = offset
		}
		for offset-w.from > maxSpan {
			if err := w.build(w.from+maxSpan, record.None); err != nil {
				return err
			}
		}
		w.codec = w.o.Codec
		if w.o.KeepCodec {
			w.codec = codec
		}
	}
	if err := w.b.Add(v, offset); err != nil {
		return err
	}
	w.last = offset
	w.count(v)
	return nil
}

// Flush ends a run: every batch with offsets below next was added. The next Add
// begins a new one at its own base offset, which is not below next. A run without
// a batch covers nothing.
func (w *Writer) Flush(next int64) error {
	if !w.running {
		return nil
	}
	if next < w.next {
		return fmt.Errorf("%w: run ends at %d, but offset %d was added", record.ErrInvalid, next, w.next-1)
	}
	w.running = false
	return w.finish(next)
}

// finish emits what is pending. If dense, all below next is covered then.
func (w *Writer) finish(next int64) error {
	if w.b.Len() > 0 {
		last := w.last
		if w.o.Dense {
			last = w.furthest(next)
		}
		if err := w.build(last, w.codec); err != nil {
			return err
		}
	}
	for w.o.Dense && w.from < next {
		if err := w.build(w.furthest(next), record.None); err != nil {
			return err
		}
	}
	w.from = next
	return nil
}

// furthest is how far a batch from w.from on can reach in what lies below next.
func (w *Writer) furthest(next int64) int64 {
	return w.from + min(next-1-w.from, maxSpan)
}

// build emits the pending records as a batch that reaches from w.from to last.
func (w *Writer) build(last int64, codec record.Codec) error {
	out, err := w.b.Append(w.out[:0], record.BatchOptions{
		BaseOffset: w.from, LastOffset: last, LeaderEpoch: w.epoch, Codec: codec,
	})
	if err != nil {
		return err
	}
	w.out = out
	w.b.Reset()
	base := w.from
	w.from = last + 1
	return w.emit(base)
}

func (w *Writer) emit(base int64) error {
	w.stats.BytesOut += int64(len(w.out))
	return w.o.Emit(w.out, base)
}

// corrupt names the object that does not hold.
func (w *Writer) corrupt(err error) error {
	if w.o.Object != "" || !errors.Is(err, record.ErrCorrupt) {
		return record.Corrupt(w.o.Object, 0, err)
	}
	return err
}
