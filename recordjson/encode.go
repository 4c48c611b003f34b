package recordjson

import (
	"encoding/base64"
	"strconv"
	"unicode/utf8"

	"keyhole/record"
)

// AppendRecord appends the JSON form of r to dst: one object on one line,
// without a line end. A nil key or value is null.
func AppendRecord(dst []byte, topic string, partition int32, r *record.Record) []byte {
	dst = append(dst, `{"topic":`...)
	dst = appendString(dst, topic)
	dst = append(dst, `,"partition":`...)
	dst = strconv.AppendInt(dst, int64(partition), 10)
	dst = append(dst, `,"offset":"`...) // a string, because it can pass 2^53
	dst = strconv.AppendInt(dst, r.Offset, 10)
	dst = append(dst, `","timestamp":`...)
	dst = strconv.AppendInt(dst, r.Timestamp, 10)
	dst = append(dst, `,"key":`...)
	dst = AppendBytes(dst, r.Key)
	dst = append(dst, `,"value":`...)
	dst = AppendBytes(dst, r.Value)
	dst = append(dst, `,"headers":`...)
	dst = AppendHeaders(dst, r.Headers)
	return append(dst, '}')
}

// AppendBytes appends the JSON form of a key or value: null for nil,
// {"type":"string"} for readable text, else {"type":"binary"} with base64.
func AppendBytes(dst, b []byte) []byte {
	switch {
	case b == nil:
		return append(dst, "null"...)
	case readable(b):
		dst = append(dst, `{"type":"string","data":`...)
		dst = appendString(dst, b)
		return append(dst, '}')
	default:
		dst = append(dst, `{"type":"binary","data":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, b)
		return append(dst, `"}`...)
	}
}

// AppendHeaders appends the JSON list of hs, which is [] if there are none.
// Order and duplicates stay; values are base64, or null. A byte of a name that
// is not UTF-8 becomes U+FFFD, since JSON has no other way to show it.
func AppendHeaders(dst []byte, hs []record.Header) []byte {
	dst = append(dst, '[')
	for i := range hs {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"name":`...)
		dst = appendString(dst, hs[i].Name)
		if hs[i].Value == nil {
			dst = append(dst, `,"value":null}`...)
			continue
		}
		dst = append(dst, `,"value":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, hs[i].Value)
		dst = append(dst, `"}`...)
	}
	return append(dst, ']')
}

// EncodeHeaders is the form of hs that goes into an HTTP header: base64url,
// with padding, of the list of [AppendHeaders]. Since it has no byte but
// letters, digits and -_=, no record header can break out of it.
func EncodeHeaders(hs []record.Header) string {
	return base64.URLEncoding.EncodeToString(AppendHeaders(nil, hs))
}

// readable reports whether b is UTF-8 without control characters, tab and
// newline excepted.
func readable(b []byte) bool {
	for i := 0; i < len(b); {
		c := b[i]
		if c < utf8.RuneSelf {
			if c < ' ' && c != '\t' && c != '\n' || c == 0x7f {
				return false
			}
			i++
			continue
		}
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 || r <= 0x9f {
			return false
		}
		i += n
	}
	return true
}

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string.
func appendString[T string | []byte](dst []byte, s T) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			n := runeLen(s[i:])
			if n > 0 {
				i += n
				continue
			}
			dst = append(append(dst, s[from:i]...), `\ufffd`...)
			i++
			from = i
			continue
		}
		dst = append(dst, s[from:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\r':
			dst = append(dst, '\\', 'r')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		from = i
	}
	return append(append(dst, s[from:]...), '"')
}

// runeLen is the length of the first UTF-8 sequence of s, which begins with a
// byte outside ASCII, or 0 if it is not a valid one.
func runeLen[T string | []byte](s T) int {
	var buf [utf8.UTFMax]byte
	r, n := utf8.DecodeRune(buf[:copy(buf[:], s)])
	if r == utf8.RuneError && n == 1 {
		return 0
	}
	return n
}
