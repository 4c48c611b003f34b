package index

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// The first byte of a stored key says what it is. The position sorts before all
// entries, and no user key, however strange, can reach it.
const (
	positionPrefix = 0x00
	entryPrefix    = 0x01
)

// positionVersion is the first byte of the position's value. An index that
// begins with another one was written by another release and is rebuilt.
const positionVersion = 1

var positionKey = []byte{positionPrefix}

var (
	errOffset   = errors.New("entry does not hold an offset")
	errPosition = errors.New("position is not in its form")
)

// offsetSize returns how many bytes appendOffset adds. An offset is not negative.
func offsetSize(offset int64) int {
	n := 1
	for v := uint64(offset) >> 7; v > 0; v >>= 7 {
		n++
	}
	return n
}

// decodeOffset reads an entry's value: one unsigned varint and nothing else.
func decodeOffset(value []byte) (int64, error) {
	v, n := binary.Uvarint(value)
	if n <= 0 || n != len(value) || v > math.MaxInt64 || n != offsetSize(int64(v)) {
		return 0, errOffset
	}
	return int64(v), nil
}

func appendPosition(dst []byte, p Position) []byte {
	dst = append(dst, positionVersion)
	dst = binary.AppendUvarint(dst, uint64(p.NextLog))
	dst = binary.AppendUvarint(dst, uint64(p.NextKafka))
	return binary.AppendUvarint(dst, uint64(p.SyncedLog))
}

func decodePosition(value []byte) (Position, error) {
	if len(value) == 0 {
		return Position{}, errPosition
	}
	if value[0] != positionVersion {
		return Position{}, fmt.Errorf("version %d of the position is not known", value[0])
	}
	rest := value[1:]
	var fields [3]int64
	for i := range fields {
		v, n := binary.Uvarint(rest)
		if n <= 0 || v > math.MaxInt64 || n != offsetSize(int64(v)) {
			return Position{}, errPosition
		}
		fields[i], rest = int64(v), rest[n:]
	}
	if len(rest) != 0 {
		return Position{}, errPosition
	}
	return Position{NextLog: fields[0], NextKafka: fields[1], SyncedLog: fields[2]}, nil
}
