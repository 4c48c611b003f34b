package gateway

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"keyhole/partition"
)

// Values of kvTarget.partition besides a number.
const (
	partitionByKey int32 = -1 // by the topic's partitioner
	partitionAny   int32 = -2 // ask every hosted one
)

// maxWait bounds ?wait_ms.
const maxWait = 30 * time.Second

// kvTarget is what the target of a request under /kv/ says.
type kvTarget struct {
	topic       string
	key         []byte
	partition   int32
	minPosition int64
	wait        time.Duration
}

// underKV reports whether the target's first path segment is kv and something
// follows it. It is the matcher of the hottest route, and a string comparison
// where gorilla's own matching would run a regular expression twice.
func underKV(u *url.URL) bool {
	const prefix = "/kv/"
	if u.RawPath == "" {
		return strings.HasPrefix(u.Path, prefix)
	}
	// An encoded slash does not end a segment, so the raw form decides.
	first, _, ok := strings.Cut(strings.TrimPrefix(u.RawPath, "/"), "/")
	if !ok {
		return false
	}
	first, err := url.PathUnescape(first)
	return err == nil && first == "kv"
}

// splitKV divides a target that underKV accepted into topic and key, each
// decoded once. ok is false without a second slash.
//
// net/http keeps the raw path only where decoding and encoding it again would
// give another text, in particular wherever a slash is encoded. Without a raw
// path a slash in the decoded one is therefore a slash that was sent.
func splitKV(u *url.URL) (topic, key string, ok bool, err error) {
	if u.RawPath == "" {
		topic, key, ok = strings.Cut(u.Path[len("/kv/"):], "/")
		return topic, key, ok, nil
	}
	_, rest, _ := strings.Cut(strings.TrimPrefix(u.RawPath, "/"), "/")
	topic, key, ok = strings.Cut(rest, "/")
	if topic, err = url.PathUnescape(topic); err != nil {
		return "", "", ok, badRequest("malformed escape in the topic")
	}
	if key, err = url.PathUnescape(key); err != nil {
		return "", "", ok, badRequest("malformed escape in the key")
	}
	return topic, key, ok, nil
}

// parseKV reads the target of a request under /kv/. The key is appended to
// keyBuf[:0]. Errors are of class invalid.
func parseKV(r *http.Request, keyBuf []byte) (kvTarget, error) {
	t := kvTarget{partition: partitionByKey}
	topic, key, ok, err := splitKV(r.URL)
	switch {
	case err != nil:
		return t, err
	case topic == "":
		return t, badRequest("empty topic")
	case !ok:
		return t, errNoRoute
	}
	t.topic = topic
	encoding := ""
	if r.URL.RawQuery != "" {
		if encoding, err = t.parseQuery(r.URL.RawQuery); err != nil {
			return t, err
		}
	}
	if t.key, err = decodeKey(append(keyBuf[:0], key...), encoding); err != nil {
		return t, err
	}
	if t.key == nil {
		t.key = []byte{} // empty is a key, nil would be none
	}
	switch {
	case len(t.key) == 0 && encoding == "" && t.partition == partitionByKey:
		return t, badRequest("empty key")
	case len(t.key) > partition.MaxKeyBytes:
		status := http.StatusBadRequest
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			status = http.StatusRequestURITooLong
		}
		return t, &requestError{status: status, message: fmt.Sprintf("key too long: %d bytes, at most %d", len(t.key), partition.MaxKeyBytes)}
	}
	return t, nil
}

// parseQuery takes the parameters that concern one key and gives key_encoding.
// Unknown parameters are left alone.
func (t *kvTarget) parseQuery(raw string) (encoding string, err error) {
	q, err := url.ParseQuery(raw)
	if err != nil {
		return "", badRequest("malformed query string")
	}
	if v, ok, err := single(q, "key_encoding"); err != nil {
		return "", err
	} else if ok {
		if v != "base64url" && v != "hex" {
			return "", badRequest("key_encoding is neither base64url nor hex")
		}
		encoding = v
	}
	if v, ok, err := single(q, "partition"); err != nil {
		return "", err
	} else if ok {
		if t.partition, err = parsePartition(v); err != nil {
			return "", err
		}
	}
	if v, ok, err := single(q, "min_position"); err != nil {
		return "", err
	} else if ok {
		if t.minPosition, err = decimal(v, math.MaxInt64); err != nil {
			return "", badRequest("min_position is not a decimal number")
		}
	}
	if v, ok, err := single(q, "wait_ms"); err != nil {
		return "", err
	} else if ok {
		ms, err := decimal(v, int64(maxWait/time.Millisecond))
		if err != nil {
			return "", badRequest("wait_ms is not a decimal number up to 30000")
		}
		t.wait = time.Duration(ms) * time.Millisecond
	}
	return encoding, nil
}

// single gives the one value of a parameter that must not be repeated: which of
// two values was meant, nobody can know.
func single(q url.Values, name string) (string, bool, error) {
	switch v := q[name]; len(v) {
	case 0:
		return "", false, nil
	case 1:
		return v[0], true, nil
	}
	return "", false, badRequest(name + " is given more than once")
}

func parsePartition(v string) (int32, error) {
	if v == "any" {
		return partitionAny, nil
	}
	n, err := decimal(v, math.MaxInt32)
	if err != nil {
		return 0, badRequest("partition is neither a number nor any")
	}
	return int32(n), nil
}

// decimal reads a number written in decimal digits only, up to limit.
func decimal(s string, limit int64) (int64, error) {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, strconv.ErrSyntax
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err == nil && n > limit {
		err = strconv.ErrRange
	}
	return n, err
}

// decodeKey undoes key_encoding in place.
func decodeKey(key []byte, encoding string) ([]byte, error) {
	switch encoding {
	case "base64url":
		if len(key)%4 == 0 {
			key = bytes.TrimSuffix(bytes.TrimSuffix(key, []byte("=")), []byte("="))
		}
		// Strict, or "QQ" and "QR" would name the same key; and line breaks are
		// refused, which the decoder would skip in silence.
		enc := base64.RawURLEncoding.Strict()
		out := make([]byte, enc.DecodedLen(len(key)))
		n, err := enc.Decode(out, key)
		if err != nil || bytes.ContainsAny(key, "\r\n") {
			return nil, badRequest("key is not valid base64url")
		}
		return out[:n], nil
	case "hex":
		n, err := hex.Decode(key, key)
		if err != nil {
			return nil, badRequest("key is not valid hex")
		}
		return key[:n], nil
	}
	return key, nil
}
