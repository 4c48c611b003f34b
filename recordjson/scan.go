package recordjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// The functions here cut JSON text into pieces without decoding it, which is
// what keeps values byte for byte. They work on text that check has passed, so
// they need not think of syntax errors, and they do not recurse.

// check returns an error, marked [ErrSyntax], unless b is one JSON value in
// UTF-8 with white space around it.
func check(b []byte) error {
	if !utf8.Valid(b) {
		return fmt.Errorf("%w: not UTF-8", ErrSyntax)
	}
	if json.Valid(b) {
		return nil
	}
	// Only for its message: it checks the text again before it decodes.
	var raw json.RawMessage
	err := json.Unmarshal(b, &raw)
	var se *json.SyntaxError
	if errors.As(err, &se) {
		return fmt.Errorf("%w at byte %d: %v", ErrSyntax, se.Offset, se)
	}
	return ErrSyntax
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// trim returns the value in b without the white space around it.
func trim(b []byte) []byte {
	i := skipSpace(b, 0)
	return b[i:valueEnd(b, i)]
}

// valueEnd is the position behind the value that begins at i.
func valueEnd(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			i = stringEnd(b, i)
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\n', '\t', '\r':
			i++
			continue
		default:
			for i < len(b) && !delimiter[b[i]] {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
	return i
}

// delimiter marks the bytes that end a number or a word.
var delimiter = [256]bool{',': true, ':': true, '}': true, ']': true, ' ': true, '\n': true, '\t': true, '\r': true}

// stringEnd is the position behind the string whose quote is at i.
func stringEnd(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

// elements calls fn with each element of the array arr.
func elements(arr []byte, fn func(value []byte) error) error {
	for i := skipSpace(arr, 1); i < len(arr) && arr[i] != ']'; {
		end := valueEnd(arr, i)
		if err := fn(arr[i:end:end]); err != nil {
			return err
		}
		if i = skipSpace(arr, end); i < len(arr) && arr[i] == ',' {
			i = skipSpace(arr, i+1)
		}
	}
	return nil
}

// members calls fn with name and value of each member of the object obj. The
// name is decoded and valid during the call.
func members(obj []byte, fn func(name, value []byte) error) error {
	for i := skipSpace(obj, 1); i < len(obj) && obj[i] != '}'; {
		end := stringEnd(obj, i)
		name, err := unquote(obj[i:end])
		if err != nil {
			return err
		}
		i = skipSpace(obj, end) // at the colon
		i = skipSpace(obj, i+1) // at the value
		end = valueEnd(obj, i)
		if err := fn(name, obj[i:end:end]); err != nil {
			return err
		}
		if i = skipSpace(obj, end); i < len(obj) && obj[i] == ',' {
			i = skipSpace(obj, i+1)
		}
	}
	return nil
}

func isNull(v []byte) bool { return string(v) == "null" }

// unquote returns the UTF-8 bytes that the JSON string s stands for, never
// nil; without escapes they are a part of s. Half a surrogate pair stands for
// no bytes at all, so it is an error rather than U+FFFD.
func unquote(s []byte) ([]byte, error) {
	s = s[1 : len(s)-1 : len(s)-1]
	esc := 0
	for esc < len(s) && s[esc] != '\\' {
		esc++
	}
	if esc == len(s) {
		return s, nil
	}
	out := append(make([]byte, 0, len(s)), s[:esc]...)
	for i := esc; i < len(s); {
		if s[i] != '\\' {
			out = append(out, s[i])
			i++
			continue
		}
		c := s[i+1]
		i += 2
		switch c {
		case 'u':
			r := rune(hex4(s[i:]))
			i += 4
			if utf16.IsSurrogate(r) {
				if i+6 > len(s) || s[i] != '\\' || s[i+1] != 'u' {
					return nil, errSurrogate
				}
				if r = utf16.DecodeRune(r, rune(hex4(s[i+2:]))); r == utf8.RuneError {
					return nil, errSurrogate
				}
				i += 6
			}
			out = utf8.AppendRune(out, r)
		case 'n':
			out = append(out, '\n')
		case 't':
			out = append(out, '\t')
		case 'r':
			out = append(out, '\r')
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		default: // quote, backslash, slash
			out = append(out, c)
		}
	}
	return out, nil
}

func hex4(s []byte) uint64 {
	n, err := strconv.ParseUint(string(s[:4]), 16, 16)
	if err != nil {
		return utf8.RuneError // not in checked text
	}
	return n
}
