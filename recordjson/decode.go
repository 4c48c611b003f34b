package recordjson

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"mime"
	"strconv"
	"strings"

	"keyhole/record"
)

// The media types of the two produce bodies.
const (
	MediaBinary = "application/vnd.kafka.binary.v2+json"
	MediaJSON   = "application/vnd.kafka.json.v2+json"
)

const (
	// MaxRecords is the most records that one produce body may hold. A record
	// can be as short as two bytes, so without it a body would cost forty times
	// its size.
	MaxRecords = 250_000

	// MaxHeaders is the most headers that one record may have, for the same
	// reason.
	MaxHeaders = 10_000
)

var (
	// ErrMediaType says that a media type is none of the two.
	ErrMediaType = errors.New("unsupported media type")

	// ErrSyntax says that the whole input is not what it should be: not JSON,
	// or JSON of the wrong outline.
	ErrSyntax = errors.New("malformed JSON")

	// ErrRecord says that one record, or one list of headers, is not acceptable.
	ErrRecord = errors.New("invalid record")

	errSurrogate = fmt.Errorf("%w: a string holds half a surrogate pair", ErrRecord)
)

// outlineError is an ErrSyntax about JSON that is well-formed, and does not say
// the contrary.
type outlineError string

func (e outlineError) Error() string { return string(e) }
func (e outlineError) Unwrap() error { return ErrSyntax }

// ProduceRecord is one record as a client asked for it. Key, Value and header
// values may be parts of the input they were decoded from.
type ProduceRecord struct {
	Key       []byte // nil: no key
	Value     []byte // nil: a tombstone
	Headers   []record.Header
	Timestamp int64 // Unix milliseconds; -1 when not given
	Partition int32 // -1 when not given
	Err       error // ErrRecord: this record is not acceptable, and the fields above mean nothing
}

// DecodeProduce decodes a Kafka REST produce body of either media type, whose
// parameters are ignored. Records come in the order of the request; one that
// is not acceptable carries its error, while the others stay good.
//
// An error of the whole is [ErrMediaType], or [ErrSyntax] with what is wrong:
// not JSON, no field records, an empty list, or more than [MaxRecords].
func DecodeProduce(body []byte, mediaType string) ([]ProduceRecord, error) {
	media, _, err := mime.ParseMediaType(mediaType)
	if err != nil {
		return nil, fmt.Errorf("%w: want %s or %s", ErrMediaType, MediaBinary, MediaJSON)
	}
	var f form
	switch media {
	case MediaBinary:
		f = form{key: fromBase64, value: fromBase64, header: fromBase64}
	case MediaJSON:
		f = form{key: jsonKey, value: jsonText, header: fromBase64}
	default:
		return nil, fmt.Errorf("%w: want %s or %s", ErrMediaType, MediaBinary, MediaJSON)
	}

	list, err := recordList(body)
	if err != nil {
		return nil, err
	}
	n := 0
	err = elements(list, func([]byte) error {
		if n++; n > MaxRecords {
			return outlineError(fmt.Sprintf("more than %d records in one request", MaxRecords))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, outlineError("the list \"records\" is empty")
	}
	recs := make([]ProduceRecord, 0, n)
	_ = elements(list, func(v []byte) error { // the callback never fails
		recs = append(recs, f.decode(v))
		return nil
	})
	return recs, nil
}

// recordList returns the list records of a produce body. Other fields on that
// level, such as the schemas that some clients send along, are ignored.
func recordList(body []byte) ([]byte, error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, outlineError("the body is empty, want {\"records\":[…]}")
	}
	if err := check(body); err != nil {
		return nil, err
	}
	obj := trim(body)
	if obj[0] != '{' {
		return nil, outlineError("the body is not an object with the field \"records\"")
	}
	var list []byte
	err := members(obj, func(name, value []byte) error {
		if string(name) != "records" {
			return nil
		}
		if list != nil {
			return outlineError("the field \"records\" appears twice")
		}
		list = value
		return nil
	})
	switch {
	case errors.Is(err, ErrRecord): // a broken name beside records
		return nil, fmt.Errorf("%w: %v", ErrSyntax, err)
	case err != nil:
		return nil, err
	case list == nil:
		return nil, outlineError("the field \"records\" is missing")
	case list[0] != '[':
		return nil, outlineError("the field \"records\" is not a list")
	}
	return list, nil
}

// DecodeLine decodes one line of a produce file. An error is [ErrSyntax] or
// [ErrRecord].
func DecodeLine(line []byte) (ProduceRecord, error) {
	if err := check(line); err != nil {
		return ProduceRecord{}, err
	}
	r := form{key: lineBytes, value: lineBytes, header: lineBytes}.decode(trim(line))
	return r, r.Err
}

// DecodeHeaders decodes what [EncodeHeaders] makes; padding may be missing. An
// error is [ErrSyntax] or [ErrRecord].
func DecodeHeaders(s string) ([]record.Header, error) {
	b, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(s, "="))
	if err != nil {
		return nil, fmt.Errorf("%w: headers are not base64url: %v", ErrSyntax, err)
	}
	if err := check(b); err != nil {
		return nil, err
	}
	list := trim(b)
	if list[0] != '[' {
		return nil, fmt.Errorf("%w: headers are not a list", ErrSyntax)
	}
	return form{header: fromBase64}.headers(list)
}

// form says how the fields of a record are turned into bytes. The functions
// return nil for JSON's null.
type form struct {
	key, value, header func(v []byte) ([]byte, error)
}

func (f form) decode(v []byte) ProduceRecord {
	r := ProduceRecord{Timestamp: -1, Partition: -1}
	if err := f.fields(v, &r); err != nil {
		return ProduceRecord{Err: err}
	}
	return r
}

func (f form) fields(v []byte, r *ProduceRecord) error {
	if v[0] != '{' {
		return fmt.Errorf("%w: not an object", ErrRecord)
	}
	const (
		key = 1 << iota
		value
		headers
		timestamp
		partition
	)
	seen := 0
	return members(v, func(name, v []byte) (err error) {
		field := 0
		switch string(name) {
		case "key":
			field = key
			r.Key, err = f.key(v)
		case "value":
			field = value
			r.Value, err = f.value(v)
		case "headers":
			field = headers
			r.Headers, err = f.headers(v)
		case "timestamp":
			field = timestamp
			r.Timestamp, err = number(v, math.MaxInt64)
		case "partition":
			field = partition
			var p int64
			p, err = number(v, math.MaxInt32)
			r.Partition = int32(p)
		default:
			return fmt.Errorf("%w: unknown field %.40q", ErrRecord, name)
		}
		if err != nil {
			return fmt.Errorf("%w (field %q)", err, name)
		}
		if seen&field != 0 {
			return fmt.Errorf("%w: field %q appears twice", ErrRecord, name)
		}
		seen |= field
		return nil
	})
}

// headers decodes a list of headers; null is no headers.
func (f form) headers(v []byte) ([]record.Header, error) {
	if isNull(v) {
		return nil, nil
	}
	if v[0] != '[' {
		return nil, fmt.Errorf("%w: headers are not a list", ErrRecord)
	}
	var hs []record.Header
	err := elements(v, func(v []byte) error {
		if len(hs) == MaxHeaders {
			return fmt.Errorf("%w: more than %d headers", ErrRecord, MaxHeaders)
		}
		h, err := f.oneHeader(v)
		hs = append(hs, h)
		return err
	})
	if err != nil {
		return nil, err
	}
	return hs, nil
}

func (f form) oneHeader(v []byte) (h record.Header, err error) {
	if v[0] != '{' {
		return h, fmt.Errorf("%w: a header is not an object", ErrRecord)
	}
	named, valued := false, false
	err = members(v, func(name, v []byte) error {
		switch {
		case string(name) == "name" && !named && v[0] == '"':
			named = true
			n, err := unquote(v)
			h.Name = string(n)
			return err
		case string(name) == "value" && !valued:
			valued = true
			h.Value, err = f.header(v)
			return err
		default:
			return fmt.Errorf("%w: bad field %.40q in a header", ErrRecord, name)
		}
	})
	if err == nil && !named {
		err = fmt.Errorf("%w: a header has no name", ErrRecord)
	}
	return h, err
}

// number decodes an integer from 0 to most; null is -1, "not given".
func number(v []byte, most int64) (int64, error) {
	if isNull(v) {
		return -1, nil
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil || n < 0 || n > most {
		return 0, fmt.Errorf("%w: want a whole number from 0 to %d", ErrRecord, most)
	}
	return n, nil
}

// fromBase64 takes a string of standard base64 with padding.
func fromBase64(v []byte) ([]byte, error) {
	if isNull(v) {
		return nil, nil
	}
	if v[0] != '"' {
		return nil, fmt.Errorf("%w: want a base64 string or null", ErrRecord)
	}
	s, err := unquote(v)
	if err != nil {
		return nil, err
	}
	out := make([]byte, base64.StdEncoding.DecodedLen(len(s)))
	n, err := base64.StdEncoding.Decode(out, s)
	if err != nil {
		return nil, fmt.Errorf("%w: not base64: %v", ErrRecord, err)
	}
	return out[:n], nil
}

// jsonText takes any JSON value as it stands.
func jsonText(v []byte) ([]byte, error) {
	if isNull(v) {
		return nil, nil
	}
	return v, nil
}

// jsonKey takes the bytes of a string, and other values as compact JSON, so
// that one key has one form whatever white space a client puts into it.
func jsonKey(v []byte) ([]byte, error) {
	switch {
	case isNull(v):
		return nil, nil
	case v[0] == '"':
		return unquote(v)
	}
	var buf bytes.Buffer
	if err := json.Compact(&buf, v); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrRecord, err)
	}
	return buf.Bytes(), nil
}

// lineBytes takes the bytes of a string, the bytes behind {"base64":"…"} and
// behind {"type":"string"|"binary","data":"…"}, and other values as they stand.
func lineBytes(v []byte) ([]byte, error) {
	switch v[0] {
	case '"':
		return unquote(v)
	case '{':
		return lineObject(v)
	}
	return jsonText(v)
}

// lineObject tells the two byte forms from an object that is a value itself:
// the members must be exactly those of the form, and strings. Then the data
// must be right, too; a near miss is an error and not a value.
func lineObject(v []byte) ([]byte, error) {
	var b64, kind, data []byte // as they stand; nil when absent
	n := 0
	err := members(v, func(name, v []byte) error {
		n++
		if v[0] != '"' {
			return nil
		}
		switch string(name) {
		case "base64":
			b64 = v
		case "type":
			kind = v
		case "data":
			data = v
		}
		return nil
	})
	if err != nil {
		return v, nil // a name that stands for no bytes is none of ours
	}
	switch {
	case n == 1 && b64 != nil:
		return fromBase64(b64)
	case n == 2 && data != nil && string(kind) == `"binary"`:
		return fromBase64(data)
	case n == 2 && data != nil && string(kind) == `"string"`:
		return unquote(data)
	}
	return v, nil
}
