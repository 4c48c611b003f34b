package record

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// Builder makes one batch after the other out of records that a [Reader] handed
// out, copying key, value and headers byte for byte. It keeps its memory between
// batches, so that building allocates nothing once it has seen the largest one.
// The zero value is ready for use; one goroutine at a time may use it.
type Builder struct {
	// bodies holds, one behind the other, what of each record does not depend on
	// the batch it is in: everything from the length of its key on.
	bodies  []byte
	records []builderRecord
	size    int // of the plain batch if it begins at the first record's offset
	maxTime int64
}

type builderRecord struct {
	offset, timestamp int64
	end               int // in bodies
}

// Reset forgets all records, but not the memory they were in.
func (b *Builder) Reset() {
	b.bodies, b.records, b.size, b.maxTime = b.bodies[:0], b.records[:0], 0, 0
}

// Len is the number of records.
func (b *Builder) Len() int { return len(b.records) }

// Size is the number of bytes of the plain batch, its header included, that
// begins at the first record's offset. One with a lower base offset may take a
// few bytes more for each record.
func (b *Builder) Size() int { return HeaderSize + b.size }

// Add copies v, at its own time and the given offset, behind the records that
// are there. [ErrInvalid] says that the offset does not ascend or is out of one
// batch's reach, [ErrTooLarge] that the batch would pass the 2 GiB of the format.
// After an error the Builder is as it was.
func (b *Builder) Add(v *View, offset int64) error {
	first, firstTime := offset, v.Timestamp
	if n := len(b.records); n > 0 {
		first, firstTime = b.records[0].offset, b.records[0].timestamp
		if last := b.records[n-1].offset; offset <= last {
			return fmt.Errorf("%w: offset %d behind offset %d", ErrInvalid, offset, last)
		}
	}
	if err := checkRange(first, offset); err != nil {
		return err
	}
	size := recordSize(v.PlainSize(), v.Timestamp-firstTime, offset-first)
	if int64(b.Size())+size > math.MaxInt32 {
		return fmt.Errorf("%w: more than %d bytes", ErrTooLarge, math.MaxInt32)
	}
	b.bodies = appendBytes(b.bodies, v.Key)
	b.bodies = appendBytes(b.bodies, v.Value)
	b.bodies = binary.AppendVarint(b.bodies, int64(v.numHeaders))
	b.bodies = append(b.bodies, v.headers...)
	if len(b.records) == 0 {
		b.maxTime = v.Timestamp
	}
	b.maxTime = max(b.maxTime, v.Timestamp)
	b.records = append(b.records, builderRecord{offset: offset, timestamp: v.Timestamp, end: len(b.bodies)})
	b.size += int(size)
	return nil
}

// Append encodes the records as one batch and appends it to dst, by the rules and
// with the errors of [AppendBatch]. The records stay; Reset makes room for others.
func (b *Builder) Append(dst []byte, o BatchOptions) ([]byte, error) {
	last := o.LastOffset
	if n := len(b.records); n > 0 {
		if last == -1 {
			last = b.records[n-1].offset
		}
		if b.records[0].offset < o.BaseOffset || b.records[n-1].offset > last {
			return dst, fmt.Errorf("%w: records from %d to %d in offsets %d to %d", ErrInvalid,
				b.records[0].offset, b.records[n-1].offset, o.BaseOffset, last)
		}
	}
	if err := checkRange(o.BaseOffset, last); err != nil {
		return dst, err
	}
	if !o.Codec.known() {
		return dst, fmt.Errorf("%w: %d", ErrUnknownCodec, int8(o.Codec))
	}
	t := batchTail{last: last, baseTime: -1, maxTime: -1, records: len(b.records)}
	size := int64(HeaderSize)
	if len(b.records) > 0 {
		t.baseTime, t.maxTime = b.records[0].timestamp, b.maxTime
	}
	start := 0
	for i := range b.records {
		r := &b.records[i]
		size += recordSize(int64(r.end-start), r.timestamp-t.baseTime, r.offset-o.BaseOffset)
		start = r.end
	}
	if size > math.MaxInt32 {
		return dst, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, math.MaxInt32)
	}

	at := len(dst)
	out := slices.Grow(dst, int(size))[:at+HeaderSize]
	start = 0
	for i := range b.records {
		r := &b.records[i]
		tsDelta, offsetDelta := r.timestamp-t.baseTime, r.offset-o.BaseOffset
		out = binary.AppendVarint(out, restSize(int64(r.end-start), tsDelta, offsetDelta))
		out = append(out, 0) // record attributes: none are defined
		out = binary.AppendVarint(out, tsDelta)
		out = binary.AppendVarint(out, offsetDelta)
		out = append(out, b.bodies[start:r.end]...)
		start = r.end
	}
	return finishBatch(out, at, o, t), nil
}

// restSize is the number of bytes that a record takes behind its length, if body
// of them do not depend on its batch.
func restSize(body, tsDelta, offsetDelta int64) int64 {
	return int64(1+varintLen(tsDelta)+varintLen(offsetDelta)) + body
}

// recordSize is restSize with the length.
func recordSize(body, tsDelta, offsetDelta int64) int64 {
	n := restSize(body, tsDelta, offsetDelta)
	return int64(varintLen(n)) + n
}

// PlainSize is the number of bytes that the record takes in any plain batch: key,
// value and headers with their lengths. What its place in the batch adds, its own
// length and two differences, is at most 25 bytes.
func (v *View) PlainSize() int64 {
	return bytesSize(v.Key) + bytesSize(v.Value) + int64(varintLen(int64(v.numHeaders))) + int64(len(v.headers))
}
