package gateway

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"keyhole/partition"
	"keyhole/record"
)

// Each target names exactly one key: the value stored under it comes back, and
// never another one's. No client library stands between, because many fold dot
// segments before they send.
func TestTargets(t *testing.T) {
	for _, c := range []struct{ target, key string }{
		{"/kv/t/%2F%2Fhost%2Fa", "//host/a"}, // case 1-01
		{"/kv/t//k", "/k"},                   // case 1-02
		{"/kv/t//", "/"},
		{"/kv/t/..%2Fbar", "../bar"}, // case 1-04
		{"/kv/t/a/../b", "a/../b"},
		{"/kv/t/..", ".."},
		{"/kv/t/.", "."},
		{"/kv/t/%2E%2E", ".."},
		{"/kv/t/../../metrics", "../../metrics"},
		{"/kv/t/a%2Fb", "a/b"}, // case 1-05
		{"/kv/t/a%2Fb/", "a/b/"},
		{"/kv/t/a%2Fb%2F", "a/b/"},
		{"/kv/t/50%25off", "50%off"}, // case 1-07
		{"/kv/t/a%252Fb", "a%2Fb"},
		{"/kv/t/A+B", "A+B"}, // case 1-11
		{"/kv/t/A%2BB", "A+B"},
		{"/kv/t/A%20B", "A B"},
		{"/kv/t/%FF%FE%80", "\xff\xfe\x80"}, // case 1-13
		{"/kv/t/\xff\xfe\x80", "\xff\xfe\x80"},
		{"/kv/t/%EF%BF%BD", "\ufffd"},
		{"/kv/t/%00", "\x00"},
		{"/kv/t/%0d%0aX-Evil:%201", "\r\nX-Evil: 1"},
		{"/kv/t/a#b", "a#b"},
		{"/kv/t/a;b=c,d:e@f&g!$'()*~", "a;b=c,d:e@f&g!$'()*~"},
		{`/kv/t/"<>[]{}|\^` + "`", `"<>[]{}|\^` + "`"},
		{"/kv/t/k?", "k"},
		{"/kv/t/k?unknown=%20&x", "k"},
		{"/%6bv/t/k", "k"},
		{"/kv/%74/a%2Fb", "a/b"},
		{"http://elsewhere:1/kv/t/a//b", "a//b"},
		{"/kv/t/?partition=0", ""},
		{"/kv/t/?key_encoding=hex", ""},
		{"/kv/t/?key_encoding=base64url", ""},
		{"/kv/t/2e2e?key_encoding=hex", ".."}, // case 1-04, another form
		{"/kv/t/Li4=?key_encoding=base64url", ".."},
		{"/kv/t/Li4?key_encoding=base64url", ".."},
		{"/kv/t/Li4%3D?key_encoding=base64url", ".."},
		{"/kv/t/__6A?key_encoding=base64url", "\xff\xfe\x80"},
		{"/kv/t/" + strings.Repeat("a/", 10_000), strings.Repeat("a/", 10_000)}, // case 1-29
		{"/kv/t/" + strings.Repeat("%61", partition.MaxKeyBytes), strings.Repeat("a", partition.MaxKeyBytes)},
	} {
		topic := newFakeTopic("t", 1)
		topic.set(0, record.Record{Key: []byte(c.key), Value: []byte("value")})
		ts := start(t, newFakeTopics(topic))
		r := ts.get(c.target).want(t, c.target, http.StatusOK)
		if r.body != "value" {
			t.Errorf("%.60q: body %q", c.target, r.body)
		}
		if r := ts.do(http.MethodPut, c.target, "new"); r.status != http.StatusOK {
			t.Errorf("PUT %.60q: %v", c.target, r)
		}
		if got, ok := topic.parts[0].latest[c.key]; !ok || string(got.Value) != "new" || len(topic.parts[0].latest) != 1 {
			t.Errorf("PUT %.60q wrote another key", c.target)
		}
		ts.do(http.MethodDelete, c.target, "").want(t, "DELETE", http.StatusOK)
		if len(topic.parts[0].latest) != 0 {
			t.Errorf("DELETE %.60q left %d keys", c.target, len(topic.parts[0].latest))
		}
	}
}

// What names no key is refused at once, without a redirect and without reaching
// another route.
func TestTargetsRefused(t *testing.T) {
	topic := newFakeTopic("t", 1)
	ts := start(t, newFakeTopics(topic))
	long := strings.Repeat("a", partition.MaxKeyBytes+1)
	for _, c := range []struct {
		target  string
		status  int
		reason  string
		message string
	}{
		{"/kv//k", 400, "bad_request", "empty topic"}, // case 1-02
		{"/kv/t/", 400, "bad_request", "empty key"},
		{"/kv/t", 404, "not_found", "not found"},
		{"/kv/", 400, "bad_request", "empty topic"},
		{"/kv", 404, "not_found", "not found"},
		{"/kv%2Ft/k", 404, "not_found", "not found"},
		{"/", 404, "not_found", "not found"},
		{"/KV/t/k", 404, "not_found", "not found"},
		{"/v1/topics", 404, "not_found", "not found"},
		{"/metrics", 404, "not_found", "not found"},
		{"/kv/../metrics", 404, "topic_not_found", "topic not found"},
		{"/kv/t%2Fk/k", 404, "topic_not_found", "topic not found"},
		{"/kv/t/k?partition=x", 400, "bad_request", "partition is neither a number nor any"},
		{"/kv/t/k?partition=", 400, "bad_request", "partition is neither a number nor any"},
		{"/kv/t/k?partition=-1", 400, "bad_request", "partition is neither a number nor any"},
		{"/kv/t/k?partition=%2B1", 400, "bad_request", "partition is neither a number nor any"},
		{"/kv/t/k?partition=1.0", 400, "bad_request", "partition is neither a number nor any"},
		{"/kv/t/k?partition=2147483648", 400, "bad_request", "partition is neither a number nor any"},
		{"/kv/t/k?partition=99999999999999999999", 400, "bad_request", "partition is neither a number nor any"},
		{"/kv/t/k?partition=0&partition=0", 400, "bad_request", "partition is given more than once"},
		{"/kv/t/k?partition=2147483647", 404, "partition_not_found", "partition not found"},
		{"/kv/t/k?key_encoding=base64", 400, "bad_request", "key_encoding is neither base64url nor hex"},
		{"/kv/t/k?key_encoding=hex", 400, "bad_request", "key is not valid hex"},
		{"/kv/t/zz?key_encoding=hex", 400, "bad_request", "key is not valid hex"},
		{"/kv/t/Li4==?key_encoding=base64url", 400, "bad_request", "key is not valid base64url"},
		{"/kv/t/Li5?key_encoding=base64url", 400, "bad_request", "key is not valid base64url"},
		{"/kv/t/Li%0A4?key_encoding=base64url", 400, "bad_request", "key is not valid base64url"},
		{"/kv/t/a+b_?key_encoding=base64url", 400, "bad_request", "key is not valid base64url"},
		{"/kv/t/====?key_encoding=base64url", 400, "bad_request", "key is not valid base64url"},
		{"/kv/t/k?a=%zz", 400, "bad_request", "malformed query string"},
		{"/kv/t/k?min_position=-1", 400, "bad_request", "min_position is not a decimal number"},
		{"/kv/t/k?min_position=9223372036854775808", 400, "bad_request", "min_position is not a decimal number"},
		{"/kv/t/k?wait_ms=30001", 400, "bad_request", "wait_ms is not a decimal number up to 30000"},
		{"/kv/t/k?wait_ms=1s", 400, "bad_request", "wait_ms is not a decimal number up to 30000"},
		{"/kv/t/" + long, 414, "bad_request", "key too long: 32769 bytes, at most 32768"}, // case 1-29
		{"/kv/t/" + strings.Repeat("61", len(long)) + "?key_encoding=hex", 414, "bad_request", "key too long: 32769 bytes, at most 32768"},
	} {
		r := ts.get(c.target).refused(t, fmt.Sprintf("%.60q", c.target), c.status, c.reason, c.message)
		if r.header.Get("Location") != "" {
			t.Errorf("%q: redirected", c.target)
		}
	}
	ts.do(http.MethodPut, "/kv/t/"+long, "v").refused(t, "PUT", 400, "bad_request", "key too long: 32769 bytes, at most 32768")
	ts.do(http.MethodPut, "/kv/t/k?partition=any", "v").refused(t, "PUT", 400, "bad_request", "partition=any cannot be written to")
	if topic.parts[0].appends != 0 {
		t.Error("a refused request wrote something")
	}
	// What net/http refuses itself. Case 1-07 and 1-29.
	ts.get("/kv/t/%zz").want(t, "malformed escape", http.StatusBadRequest)
	ts.get("/kv/t/a%2").want(t, "malformed escape", http.StatusBadRequest)
	ts.get("/kv/t/"+strings.Repeat("k", 1<<20)).want(t, "head of 1 MiB", http.StatusRequestHeaderFieldsTooLarge)
}

// Everything that can be written can be read: the same keys are accepted on both
// sides. Case 1-10.
func TestEveryByteRoundTrips(t *testing.T) {
	ts := start(t, newFakeTopics(newFakeTopic("t", 3)))
	for b := range 256 {
		key := string([]byte{byte(b)})
		body := fmt.Sprintf(`{"records":[{"key":%q,"value":%q}]}`,
			base64.StdEncoding.EncodeToString([]byte(key)), base64.StdEncoding.EncodeToString([]byte("v"+key)))
		r := ts.do(http.MethodPost, "/topics/t", body, "Content-Type: application/vnd.kafka.binary.v2+json")
		if r.status == http.StatusUnprocessableEntity {
			continue
		}
		r.want(t, "produce", http.StatusOK)
		for _, target := range []string{
			fmt.Sprintf("/kv/t/%%%02X", b),
			"/kv/t/" + hex.EncodeToString([]byte(key)) + "?key_encoding=hex",
			"/kv/t/" + base64.RawURLEncoding.EncodeToString([]byte(key)) + "?key_encoding=base64url",
		} {
			if r := ts.get(target).want(t, target, http.StatusOK); r.body != "v"+key {
				t.Errorf("%s: body %q", target, r.body)
			}
		}
	}
}

func FuzzParseKV(f *testing.F) {
	for _, s := range []string{"/kv/t/k", "/kv/t/%2F", "/kv//", "/kv/t/..?partition=any", "/kv/t/Li4?key_encoding=base64url", "/kv/t/0g?key_encoding=hex&partition=1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, target string) {
		u, err := url.ParseRequestURI(target)
		if err != nil || !underKV(u) {
			return
		}
		got, err := parseKV(&http.Request{Method: http.MethodGet, URL: u}, nil)
		if err != nil {
			if o := classify(err); o.status < 400 || o.status >= 500 {
				t.Fatalf("%q: %v is answered %d", target, err, o.status)
			}
			return
		}
		if got.topic == "" || got.key == nil || len(got.key) > partition.MaxKeyBytes {
			t.Fatalf("%q: %+v", target, got)
		}
		// The key in its one unambiguous form names the same key.
		u, err = url.ParseRequestURI("/kv/t/" + hex.EncodeToString(got.key) + "?key_encoding=hex")
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseKV(&http.Request{Method: http.MethodGet, URL: u}, nil)
		if err != nil || string(again.key) != string(got.key) {
			t.Fatalf("%q: key %q came back as %q, %v", target, got.key, again.key, err)
		}
	})
}
