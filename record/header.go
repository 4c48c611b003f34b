package record

import (
	"encoding/binary"
	"hash/crc32"
	"math"
)

// HeaderSize is the length of a batch header in bytes, through the record count.
const HeaderSize = 61

// Byte positions of the fields in a batch header.
const (
	posBaseOffset      = 0
	posLength          = 8
	posLeaderEpoch     = 12
	posMagic           = 16
	posCRC             = 17
	posAttributes      = 21 // the checksum covers everything from here
	posLastOffsetDelta = 23
	posBaseTimestamp   = 27
	posMaxTimestamp    = 35
	posProducerID      = 43
	posProducerEpoch   = 51
	posBaseSequence    = 53
	posNumRecords      = 57
)

const (
	magic = 2

	// lengthOverhead is what the length field does not count: itself and the
	// base offset.
	lengthOverhead = 12
	minLength      = HeaderSize - lengthOverhead

	codecMask         = 0b111
	attrLogAppendTime = 1 << 3
	attrTransactional = 1 << 4
	attrControl       = 1 << 5
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// BatchHeader is the fixed head of a record batch.
type BatchHeader struct {
	BaseOffset      int64
	Length          int32 // as stored: the number of bytes behind the length field
	LeaderEpoch     int32
	CRC             uint32 // CRC-32C of everything behind it
	Attributes      int16
	LastOffsetDelta int32 // LastOffset - BaseOffset; compaction may have removed the record there
	BaseTimestamp   int64 // Unix milliseconds; what the records' deltas are added to
	MaxTimestamp    int64 // Unix milliseconds
	ProducerID      int64
	ProducerEpoch   int16
	BaseSequence    int32
	NumRecords      int32
}

// Size is the length of the whole batch in bytes.
func (h BatchHeader) Size() int64 { return int64(h.Length) + lengthOverhead }

// LastOffset is the last offset that the batch covers, inclusive.
func (h BatchHeader) LastOffset() int64 { return h.BaseOffset + int64(h.LastOffsetDelta) }

// NextOffset is the offset that follows the batch. It is not a matter of the
// record count: a batch may have gaps, and may even hold no record at all.
func (h BatchHeader) NextOffset() int64 { return h.LastOffset() + 1 }

// Codec says how the records are compressed; it may be none of the known ones.
func (h BatchHeader) Codec() Codec { return Codec(h.Attributes & codecMask) }

// IsControl reports whether the batch holds markers instead of data.
func (h BatchHeader) IsControl() bool { return h.Attributes&attrControl != 0 }

// IsTransactional reports whether the batch belongs to a transaction.
func (h BatchHeader) IsTransactional() bool { return h.Attributes&attrTransactional != 0 }

// LogAppendTime reports whether every record's time is MaxTimestamp, whatever
// its own delta says.
func (h BatchHeader) LogAppendTime() bool { return h.Attributes&attrLogAppendTime != 0 }

// ParseHeader decodes the header at the front of b, which may hold less or
// more than the batch. It allocates nothing unless it fails: with [ErrShort]
// if b is shorter than [HeaderSize], with [ErrCorrupt] if a field has a value
// that no batch can have. The checksum is not looked at; that is [Verify].
func ParseHeader(b []byte) (BatchHeader, error) {
	if len(b) < HeaderSize {
		return BatchHeader{}, ErrShort
	}
	b = b[:HeaderSize]
	be := binary.BigEndian
	h := BatchHeader{
		BaseOffset:      int64(be.Uint64(b[posBaseOffset:])),
		Length:          int32(be.Uint32(b[posLength:])),
		LeaderEpoch:     int32(be.Uint32(b[posLeaderEpoch:])),
		CRC:             be.Uint32(b[posCRC:]),
		Attributes:      int16(be.Uint16(b[posAttributes:])),
		LastOffsetDelta: int32(be.Uint32(b[posLastOffsetDelta:])),
		BaseTimestamp:   int64(be.Uint64(b[posBaseTimestamp:])),
		MaxTimestamp:    int64(be.Uint64(b[posMaxTimestamp:])),
		ProducerID:      int64(be.Uint64(b[posProducerID:])),
		ProducerEpoch:   int16(be.Uint16(b[posProducerEpoch:])),
		BaseSequence:    int32(be.Uint32(b[posBaseSequence:])),
		NumRecords:      int32(be.Uint32(b[posNumRecords:])),
	}
	switch {
	case b[posMagic] != magic:
		return h, corruptf(posMagic, "batch format %d, want %d", int8(b[posMagic]), magic)
	case h.Length < minLength:
		return h, corruptf(posLength, "batch length %d, want at least %d", h.Length, minLength)
	case h.LastOffsetDelta < 0:
		return h, corruptf(posLastOffsetDelta, "last offset delta %d is negative", h.LastOffsetDelta)
	case h.BaseOffset < 0 || h.BaseOffset > math.MaxInt64-1-int64(h.LastOffsetDelta):
		return h, corruptf(posBaseOffset, "base offset %d is out of range", h.BaseOffset)
	case h.NumRecords < 0 || int64(h.NumRecords) > int64(h.LastOffsetDelta)+1:
		return h, corruptf(posNumRecords, "%d records in %d offsets", h.NumRecords, int64(h.LastOffsetDelta)+1)
	}
	return h, nil
}

// Verify decodes the header of batch and checks that batch is exactly one
// whole batch: its length, its CRC-32C, and that its codec is one that can be
// read. The records themselves are checked as a [Reader] meets them. Too few
// bytes for a header are [ErrShort], anything else that is wrong is
// [ErrCorrupt].
func Verify(batch []byte) (BatchHeader, error) {
	h, err := ParseHeader(batch)
	if err != nil {
		return h, err
	}
	if int64(len(batch)) != h.Size() {
		return h, corruptf(posLength, "batch of %d bytes declares %d", len(batch), h.Size())
	}
	if sum := crc32.Checksum(batch[posAttributes:], castagnoli); sum != h.CRC {
		return h, corruptf(posCRC, "checksum is %08x, stored is %08x", sum, h.CRC)
	}
	if c := h.Codec(); !c.known() {
		return h, corruptf(posAttributes, "%w: %d", ErrUnknownCodec, int8(c))
	}
	return h, nil
}

// SetBaseOffset moves batch to another base offset, in place. The checksum
// stays valid, since it does not cover the field. batch must hold at least a
// header.
func SetBaseOffset(batch []byte, base int64) {
	binary.BigEndian.PutUint64(batch[posBaseOffset:posLength], uint64(base))
}

// SetLeaderEpoch stamps batch with a leader epoch, in place, likewise outside
// the checksum. batch must hold at least a header.
func SetLeaderEpoch(batch []byte, epoch int32) {
	binary.BigEndian.PutUint32(batch[posLeaderEpoch:posMagic], uint32(epoch))
}
