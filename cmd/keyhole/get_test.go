package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// A key reaches the wire as its bytes, whatever they are (cases 1-04, 1-07,
// 1-11, 1-13).
func TestGetRequestTarget(t *testing.T) {
	var mu sync.Mutex
	var got string
	var accept string
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got, accept = r.RequestURI, r.Header.Get("Accept")
		_, _ = io.WriteString(w, "v\x00\xff")
	}))
	defer node.Close()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"k"}, "/kv/t/k"},
		{[]string{"a/b"}, "/kv/t/a%2Fb"},
		{[]string{"a/../b"}, "/kv/t/a%2F..%2Fb"},
		{[]string{".."}, "/kv/t/%2E%2E"},
		{[]string{"."}, "/kv/t/%2E"},
		{[]string{"//x//"}, "/kv/t/%2F%2Fx%2F%2F"},
		{[]string{"50%off"}, "/kv/t/50%25off"},
		{[]string{"A+B c"}, "/kv/t/A%2BB%20c"},
		{[]string{"a.b-c_d~e"}, "/kv/t/a.b-c_d~e"},
		{[]string{"q?x#y"}, "/kv/t/q%3Fx%23y"},
		{[]string{"\xff\xfe\x80"}, "/kv/t/%FF%FE%80"},
		{[]string{"é"}, "/kv/t/%C3%A9"},
		{[]string{""}, "/kv/t/?key_encoding=hex"},
		{[]string{"", "--partition", "3"}, "/kv/t/?partition=3"},
		{[]string{"00ff", "--key-encoding", "hex"}, "/kv/t/00ff?key_encoding=hex"},
		{[]string{"AP8=", "--key-encoding", "base64url"}, "/kv/t/AP8%3D?key_encoding=base64url"},
		{[]string{"k", "--partition", "any"}, "/kv/t/k?partition=any"},
		{[]string{"k", "--min-position", "7", "--wait", "1500ms"}, "/kv/t/k?min_position=7&wait_ms=1500"},
	} {
		args := append([]string{"get", "t"}, c.args...)
		r := keyhole(t, []string{"KEYHOLE_URL=" + node.URL}, nil, args...)
		if r.code != exitDone || r.stdout != "v\x00\xff" || r.err != "" {
			t.Errorf("%q: %+v", args, r)
		}
		if mu.Lock(); got != c.want || accept != "" {
			t.Errorf("%q: target %s, want %s; accept %q", args, got, c.want, accept)
		}
		mu.Unlock()
	}
	keyhole(t, []string{"KEYHOLE_URL=" + node.URL + "/below/"}, nil, "get", "t", "k", "--json").want(t, exitDone, "v", "")
	mu.Lock()
	defer mu.Unlock()
	if got != "/below/kv/t/k" || accept != "application/json" {
		t.Errorf("target %s, accept %q", got, accept)
	}
}

// What is no value is a message and an exit code, never output.
func TestGetAbsence(t *testing.T) {
	var status atomic.Int64
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Kv-Reason", "remote_read_disabled")
		w.Header().Set("Location", "/kv/t/other")
		w.WriteHeader(int(status.Load()))
		_, _ = io.WriteString(w, `{"error":"record only available in tiered storage"}`)
	}))
	defer node.Close()
	for _, code := range []int64{404, 503, 504, 500, 421, 301} {
		status.Store(code)
		r := keyhole(t, []string{"KEYHOLE_URL=" + node.URL}, nil, "get", "t", "k")
		r.want(t, exitFailed, "", "record only available in tiered storage (remote_read_disabled, HTTP ")
		if r.stdout != "" {
			t.Errorf("status %d: output %q", code, r.stdout)
		}
	}
}

// An answer of the wrong listener, or of another server, leads to the flag.
func TestWrongListener(t *testing.T) {
	var reason, body atomic.Value
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if r := reason.Load().(string); r != "" {
			w.Header().Set("X-Kv-Reason", r)
		}
		w.WriteHeader(404)
		_, _ = io.WriteString(w, body.Load().(string))
	}))
	defer node.Close()
	env := []string{"KEYHOLE_URL=" + node.URL, "KEYHOLE_ADMIN_URL=" + node.URL}
	for _, c := range []struct {
		reason, body string
		hint         bool
	}{
		{"not_found", `{"error":"not found"}`, true},
		{"", "<html>404</html>", true},
		{"key_not_found", `{"error":"key not found"}`, false},
		{"not_found", `{"error":"feature not found"}`, false},
		{"", `{"error_code":40401,"message":"topic not found"}`, false},
	} {
		reason.Store(c.reason)
		body.Store(c.body)
		for args, hint := range map[string]string{
			"get t k":    "; is " + node.URL + " the data listener? see --url",
			"produce t":  "; is " + node.URL + " the data listener? see --url",
			"topic list": "; is " + node.URL + " the admin listener? see --admin-url",
		} {
			r := keyhole(t, env, strings.NewReader(`{"key":"k","value":1}`), strings.Fields(args)...)
			if r.code != exitFailed || strings.Contains(r.err, hint) != c.hint {
				t.Errorf("%s, answered %q %s: exit %d, %q; hint: %v", args, c.reason, c.body, r.code, r.err, c.hint)
			}
		}
	}
}

func TestErrorForms(t *testing.T) {
	for body, want := range map[string]string{
		`{"error":"plain"}`:                        "plain (HTTP 400)",
		`{"error_code":40401,"message":"kafka"}`:   "kafka (HTTP 400)",
		`{"error":{"a":"bad","b":"worse"}}`:        "a: bad; b: worse (HTTP 400)",
		`{"segment.bytes":"too small","x":"what"}`: "segment.bytes: too small; x: what (HTTP 400)",
		`{}`:       "Bad Request (HTTP 400)",
		`<html>`:   "Bad Request (HTTP 400)",
		`[1]`:      "Bad Request (HTTP 400)",
		``:         "Bad Request (HTTP 400)",
		`{"a":{}}`: "Bad Request (HTTP 400)",
	} {
		resp := &http.Response{StatusCode: 400, Header: http.Header{}}
		if got := newStatusError(resp, []byte(body)).Error(); got != want {
			t.Errorf("%s: got %q, want %q", body, got, want)
		}
	}
}

func TestDialable(t *testing.T) {
	for listen, want := range map[string]string{
		"0.0.0.0:1": "127.0.0.1:1", ":1": "127.0.0.1:1", "[::]:1": "[::1]:1", "10.0.0.7:1": "10.0.0.7:1", "localhost:1": "localhost:1", "[fe80::1]:1": "[fe80::1]:1",
	} {
		if got := dialable(listen); got != want {
			t.Errorf("%s: got %s, want %s", listen, got, want)
		}
	}
}
