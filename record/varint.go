package record

import "math/bits"

// Kafka's variable-length numbers are the zigzag varints of encoding/binary;
// the two functions here are what that package does not have.

// varintLen is the number of bytes that v takes.
func varintLen(v int64) int {
	return (bits.Len64(uint64(v)<<1^uint64(v>>63)|1) + 6) / 7
}

// varint decodes the number at position at of b and returns it with the
// position behind it, or a position of -1 if b ends too early or the number
// has more than 64 bits. A position that is negative already stays a failure,
// so a row of fields needs one check at its end. Almost every number of a
// record takes one byte, hence the short way out.
func varint(b []byte, at int) (int64, int) {
	if uint(at) < uint(len(b)) && b[at] < 0x80 {
		u := uint64(b[at])
		return int64(u>>1) ^ -int64(u&1), at + 1
	}
	return longVarint(b, at)
}

func longVarint(b []byte, at int) (int64, int) {
	var u uint64
	for i := 0; ; i++ {
		if at < 0 || at >= len(b) || i == 10 {
			return 0, -1
		}
		c := b[at]
		at++
		if i == 9 && c > 1 {
			return 0, -1
		}
		u |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			return int64(u>>1) ^ -int64(u&1), at
		}
	}
}
