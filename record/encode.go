package record

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
)

// BatchOptions says how [AppendBatch] builds a batch.
type BatchOptions struct {
	BaseOffset  int64
	LastOffset  int64 // -1: the offset of the last record; larger keeps offsets that have no record any more
	LeaderEpoch int32
	Codec       Codec
	Control     bool // set the control attribute: the records are markers, not data
}

// AppendBatch encodes recs as ONE batch and appends it to dst. Offsets must
// ascend strictly and lie within BaseOffset and LastOffset; without records,
// LastOffset must be given. The records are compressed with o.Codec only if
// that makes them smaller, so a batch is never larger than its plain form.
//
// On an error the result is dst as it was: [ErrInvalid] for options or offsets
// that do not fit, [ErrUnknownCodec], or [ErrTooLarge] when the batch would
// pass the 2 GiB of the format.
func AppendBatch(dst []byte, o BatchOptions, recs []Record) ([]byte, error) {
	last, err := checkOffsets(o, recs)
	if err != nil {
		return dst, err
	}
	if !o.Codec.known() {
		return dst, fmt.Errorf("%w: %d", ErrUnknownCodec, int8(o.Codec))
	}
	size, err := plainSize(o.BaseOffset, recs)
	if err != nil {
		return dst, err
	}

	start := len(dst)
	out := slices.Grow(dst, size)[:start+HeaderSize]
	var baseTime, maxTime int64 = -1, -1 // Kafka's "no timestamp", for a batch without records
	if len(recs) > 0 {
		baseTime, maxTime = recs[0].Timestamp, recs[0].Timestamp
	}
	for i := range recs {
		r := &recs[i]
		maxTime = max(maxTime, r.Timestamp)
		out = appendRecord(out, r, r.Timestamp-baseTime, r.Offset-o.BaseOffset)
	}

	return finishBatch(out, start, o, batchTail{last: last, baseTime: baseTime, maxTime: maxTime, records: len(recs)}), nil
}

// batchTail is what a header says about the records behind it.
type batchTail struct {
	last              int64 // offset
	baseTime, maxTime int64
	records           int
}

// finishBatch compresses the plain records that stand in out behind the room for
// the header at start, if that makes them smaller, and writes the header.
func finishBatch(out []byte, start int, o BatchOptions, t batchTail) []byte {
	attrs := uint16(0)
	if o.Control {
		attrs |= attrControl
	}
	if o.Codec != None {
		if n, ok := compressTail(o.Codec, out[start+HeaderSize:]); ok {
			out = out[:start+HeaderSize+n]
			attrs |= uint16(o.Codec)
		}
	}

	b := out[start:]
	be := binary.BigEndian
	be.PutUint64(b[posBaseOffset:], uint64(o.BaseOffset))
	be.PutUint32(b[posLength:], uint32(len(b)-lengthOverhead))
	be.PutUint32(b[posLeaderEpoch:], uint32(o.LeaderEpoch))
	b[posMagic] = magic
	be.PutUint16(b[posAttributes:], attrs)
	be.PutUint32(b[posLastOffsetDelta:], uint32(t.last-o.BaseOffset))
	be.PutUint64(b[posBaseTimestamp:], uint64(t.baseTime))
	be.PutUint64(b[posMaxTimestamp:], uint64(t.maxTime))
	be.PutUint64(b[posProducerID:], math.MaxUint64) // -1: no idempotent producer
	be.PutUint16(b[posProducerEpoch:], math.MaxUint16)
	be.PutUint32(b[posBaseSequence:], math.MaxUint32)
	be.PutUint32(b[posNumRecords:], uint32(t.records))
	be.PutUint32(b[posCRC:], crc32.Checksum(b[posAttributes:], castagnoli))
	return out
}

// checkOffsets returns the batch's last offset.
func checkOffsets(o BatchOptions, recs []Record) (int64, error) {
	last := o.LastOffset
	if last == -1 {
		if len(recs) == 0 {
			return 0, fmt.Errorf("%w: neither records nor a last offset", ErrInvalid)
		}
		last = recs[len(recs)-1].Offset
	}
	if err := checkRange(o.BaseOffset, last); err != nil {
		return 0, err
	}
	next := o.BaseOffset
	for i := range recs {
		if off := recs[i].Offset; off < next || off > last {
			return 0, fmt.Errorf("%w: record %d has offset %d, want %d to %d", ErrInvalid, i, off, next, last)
		}
		next = recs[i].Offset + 1
	}
	return last, nil
}

// checkRange says whether one batch can cover the offsets from base to last.
func checkRange(base, last int64) error {
	if base < 0 || last < base || last == math.MaxInt64 || last-base > math.MaxInt32 {
		return fmt.Errorf("%w: offsets %d to %d", ErrInvalid, base, last)
	}
	return nil
}

// plainSize is the size of the uncompressed batch in bytes.
func plainSize(base int64, recs []Record) (int, error) {
	total := int64(HeaderSize)
	for i := range recs {
		body := bodySize(&recs[i], recs[i].Timestamp-recs[0].Timestamp, recs[i].Offset-base)
		total += int64(varintLen(body)) + body
		if total > math.MaxInt32 {
			return 0, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, math.MaxInt32)
		}
	}
	return int(total), nil
}

// bodySize is the number of bytes that a record takes behind its length.
func bodySize(r *Record, tsDelta, offsetDelta int64) int64 {
	n := 1 + varintLen(tsDelta) + varintLen(offsetDelta) + varintLen(int64(len(r.Headers)))
	size := int64(n) + bytesSize(r.Key) + bytesSize(r.Value)
	for i := range r.Headers {
		h := &r.Headers[i]
		size += int64(varintLen(int64(len(h.Name)))+len(h.Name)) + bytesSize(h.Value)
	}
	return size
}

func bytesSize(b []byte) int64 {
	if b == nil {
		return 1
	}
	return int64(varintLen(int64(len(b)))) + int64(len(b))
}

func appendRecord(dst []byte, r *Record, tsDelta, offsetDelta int64) []byte {
	dst = binary.AppendVarint(dst, bodySize(r, tsDelta, offsetDelta))
	dst = append(dst, 0) // record attributes: none are defined
	dst = binary.AppendVarint(dst, tsDelta)
	dst = binary.AppendVarint(dst, offsetDelta)
	dst = appendBytes(dst, r.Key)
	dst = appendBytes(dst, r.Value)
	dst = binary.AppendVarint(dst, int64(len(r.Headers)))
	for i := range r.Headers {
		dst = binary.AppendVarint(dst, int64(len(r.Headers[i].Name)))
		dst = append(dst, r.Headers[i].Name...)
		dst = appendBytes(dst, r.Headers[i].Value)
	}
	return dst
}

func appendBytes(dst, b []byte) []byte {
	if b == nil {
		return append(dst, 1) // -1 in zigzag form
	}
	return append(binary.AppendVarint(dst, int64(len(b))), b...)
}
