package record

import (
	"fmt"
	"slices"
)

// Header is one header of a record. Names may repeat and their order counts.
// A nil Value is null, which is not the same as an empty one.
type Header struct {
	Name  string
	Value []byte
}

// Record is one record in decoded form.
type Record struct {
	Offset    int64    // absolute
	Timestamp int64    // Unix milliseconds
	Key       []byte   // nil: the record has no key; empty is a key
	Value     []byte   // nil: a tombstone; empty is a value
	Headers   []Header // in record order
}

// Size is the number of bytes that key, value and headers (names and values)
// hold, uncompressed and without framing. It is what the record size limit of
// a topic is compared with.
func (r *Record) Size() int {
	n := len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += len(r.Headers[i].Name) + len(r.Headers[i].Value)
	}
	return n
}

// Codec says how the records of a batch are compressed. The numbers are
// Kafka's, as they stand in the low three bits of a batch's attributes.
type Codec int8

// The codecs that Kafka defines.
const (
	None Codec = iota
	Gzip
	Snappy
	LZ4
	Zstd
)

var codecNames = [...]string{None: "none", Gzip: "gzip", Snappy: "snappy", LZ4: "lz4", Zstd: "zstd"}

// String is the name that topic properties use, for example "lz4".
func (c Codec) String() string {
	if !c.known() {
		return fmt.Sprintf("codec(%d)", int8(c))
	}
	return codecNames[c]
}

func (c Codec) known() bool { return c >= None && c <= Zstd }

// ParseCodec returns the codec of that name: none, gzip, snappy, lz4 or zstd.
// Any other name is [ErrUnknownCodec].
func ParseCodec(name string) (Codec, error) {
	if i := slices.Index(codecNames[:], name); i >= 0 {
		return Codec(i), nil
	}
	return None, fmt.Errorf("%w: %q", ErrUnknownCodec, name)
}
