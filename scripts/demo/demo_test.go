package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The verification is worth something only if it fails when a node is wrong.
func TestVerifyFindsWrongAnswers(t *testing.T) {
	truth := map[string][]byte{"a/b.go": []byte("x"), "empty": {}, "gone": nil}
	right := func(w http.ResponseWriter, key string) {
		value, ok := truth[key]
		if !ok || value == nil {
			w.Header().Set("X-Kv-Reason", "key_not_found")
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write(value)
	}
	wrong := func(key string, answer func(w http.ResponseWriter)) func(http.ResponseWriter, string) {
		return func(w http.ResponseWriter, k string) {
			if k == key {
				answer(w)
				return
			}
			right(w, k)
		}
	}
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter, key string)
		ok     bool
	}{
		"right":            {right, true},
		"other bytes":      {wrong("a/b.go", func(w http.ResponseWriter) { _, _ = io.WriteString(w, "y") }), false},
		"cut":              {wrong("a/b.go", func(w http.ResponseWriter) {}), false},
		"longer":           {wrong("empty", func(w http.ResponseWriter) { _, _ = io.WriteString(w, "y") }), false},
		"absent":           {wrong("empty", func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) }), false},
		"deleted is there": {wrong("gone", func(w http.ResponseWriter) { _, _ = io.WriteString(w, "y") }), false},
		"unknown topic":    {wrong("gone", func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) }), false},
		"trouble":          {wrong("gone", func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) }), false},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/metrics" {
					fmt.Fprintln(w, `keyhole_object_store_requests_total{op="read",outcome="ok"} 0`)
					return
				}
				c.answer(w, strings.TrimPrefix(r.URL.Path, "/kv/t/"))
			}))
			defer server.Close()
			d := &demo{out: io.Discard, node: &node{data: server.URL, admin: server.URL, client: server.Client()}}
			in := &source{topic: "t", truth: func(fn func(string, []byte) error) error {
				for k, v := range truth {
					if err := fn(k, v); err != nil {
						return err
					}
				}
				return nil
			}}
			if err := d.verify(context.Background(), []*source{in}); (err == nil) != c.ok {
				t.Errorf("got %v", err)
			}
		})
	}
}

// What the demo writes as a line of input is what it later expects to read.
func TestRecordsRoundTrip(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{"a.go": "package a\n", "sub/ü \"x\".bin": "\x00\xff\n", "empty": ""}
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := make(map[string]string)
	err := walkFiles(dir, func(key string, value []byte) error {
		got[key] = string(value)
		return nil
	})
	if err != nil || len(got) != len(files) {
		t.Fatalf("got %v, %v", got, err)
	}
	for name, content := range files {
		if got[name] != content {
			t.Errorf("%s: got %q", name, got[name])
		}
	}
	var lines strings.Builder
	if err := writeRecords(&lines, func(fn func(string, []byte) error) error { return walkFiles(dir, fn) }); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(lines.String(), "\n"); n != len(files) {
		t.Errorf("%d lines", n)
	}
}

// Escape codes are for a terminal; in a file or a pipe they are rubbish.
func TestTitle(t *testing.T) {
	var out strings.Builder
	d := &demo{out: &out}
	d.title("plain")
	d.terminal = true
	d.title("bold")
	if got := out.String(); got != "\nplain\n\n\x1b[1mbold\x1b[0m\n" {
		t.Errorf("%q", got)
	}
}
