package record

import (
	"errors"
	"fmt"
)

var (
	// ErrCorrupt marks stored bytes that fail a check. Every [CorruptError]
	// matches it under errors.Is.
	ErrCorrupt = errors.New("corrupt data")

	// ErrShort says that fewer bytes are at hand than a batch header needs. It
	// is not damage: more bytes may make it whole.
	ErrShort = errors.New("record: not enough bytes for a batch header")

	// ErrTooLarge says that a batch would exceed the size limit that applies:
	// the caller's bound for decompression, or the 2 GiB of the format.
	ErrTooLarge = errors.New("record: batch is too large")

	// ErrUnknownCodec says that a codec name or number is none of Kafka's five.
	ErrUnknownCodec = errors.New("record: unknown compression codec")

	// ErrInvalid says that records or options cannot be encoded as one batch,
	// for example because offsets do not ascend.
	ErrInvalid = errors.New("record: invalid batch")
)

// CorruptError says where bytes failed a check and which check it was.
type CorruptError struct {
	Object   string // file name or object key; empty when the reporter does not know it
	Position int64  // byte position in Object, or in the batch as long as Object is empty
	Err      error  // the check that failed
}

func (e *CorruptError) Error() string {
	if e.Object == "" {
		return fmt.Sprintf("corrupt data at byte %d: %v", e.Position, e.Err)
	}
	return fmt.Sprintf("corrupt data in %s at byte %d: %v", e.Object, e.Position, e.Err)
}

// Unwrap returns the failed check.
func (e *CorruptError) Unwrap() error { return e.Err }

// Is makes every CorruptError match [ErrCorrupt].
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// Corrupt wraps err as damage of object at byte pos. If err already is a
// CorruptError without an object, as this package's own decoders report it,
// the result names the object and adds the two positions up.
func Corrupt(object string, pos int64, err error) error {
	var inner *CorruptError
	if errors.As(err, &inner) && inner.Object == "" {
		return &CorruptError{Object: object, Position: pos + inner.Position, Err: inner.Err}
	}
	return &CorruptError{Object: object, Position: pos, Err: err}
}

// corruptf reports damage at byte pos of the batch in hand.
func corruptf(pos int, format string, args ...any) error {
	return &CorruptError{Position: int64(pos), Err: fmt.Errorf(format, args...)}
}
