package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

func TestCheckMisuse(t *testing.T) {
	for _, c := range []struct {
		args   []string
		stderr string
	}{
		{[]string{"check"}, "wants --data-dir, --object-store or both"},
		{[]string{"check", "x"}, "takes no arguments"},
		{[]string{"check", "--object-store", "s3://AKIA:geheim@bucket/"}, "credentials"},
	} {
		r := keyhole(t, nil, nil, c.args...)
		r.want(t, exitMisuse, "", c.stderr)
		if r.stdout != "" || strings.Contains(r.err, "geheim") {
			t.Errorf("%v: stdout %q, stderr %q", c.args, r.stdout, r.err)
		}
	}
}

func TestCheckOfNothing(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for _, args := range [][]string{
		{"check", "--data-dir", missing},
		{"check", "--object-store", "file://" + missing},
		{"check", "--data-dir", t.TempDir()},
		{"check", "--object-store", "file://" + t.TempDir()},
		{"check", "--data-dir", t.TempDir(), "--object-store", "s3://bucket?endpoint=http://127.0.0.1:1", "--s3-ca-file", missing},
	} {
		r := keyhole(t, nil, nil, args...)
		r.want(t, exitFailed, "", "keyhole: ")
		if r.stdout != "" || strings.Count(r.err, "\n") != 1 {
			t.Errorf("%v: stdout %q, stderr %q", args, r.stdout, r.err)
		}
		if _, err := os.Stat(missing); err == nil {
			t.Fatalf("%v made %s", args, missing)
		}
	}
}

// The SDK of the store has a logger of its own on standard error; what it tells
// there of its search for credentials is no line of ours.
func TestStoreLogsNothing(t *testing.T) {
	var asked atomic.Bool
	metadata := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut { // of a token: refused, as where only version 1 is there
			asked.Store(true)
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	defer metadata.Close()
	env := []string{"AWS_EC2_METADATA_SERVICE_ENDPOINT=" + metadata.URL}
	r := keyhole(t, env, nil, "check", "--object-store", "s3://bucket?endpoint=http://127.0.0.1:1&region=us-east-1")
	r.want(t, exitFailed, "", "keyhole: ")
	if !asked.Load() {
		t.Error("the metadata service was not asked")
	}
	if n := strings.Count(r.err, "\n"); n != 1 {
		t.Errorf("%d lines: %s", n, r.err)
	}
}

func TestCounted(t *testing.T) {
	for want, got := range map[string]string{
		"1 note": counted(1, "note"), "0 notes": counted(0, "note"),
		"1 index entry": counted(int64(1), "index entry"), "2 index entries": counted(int64(2), "index entry"),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestCheck(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := startServe(t, nil, "--dev", "--data-dir", dir)
	s.waitReady()
	keyhole(t, s.env(), nil, "topic", "create", "orders", "-c", "redpanda.kv.index.enabled=true", "-c", "segment.bytes=16384").want(t, exitDone, "", "")
	fill := func(from int) {
		t.Helper()
		var input strings.Builder
		for i := from; i < from+500; i++ {
			fmt.Fprintf(&input, "{\"key\":\"k%d\",\"value\":\"value %0100d\"}\n", i, i)
		}
		keyhole(t, s.env(), strings.NewReader(input.String()), "produce", "orders").want(t, exitDone, "", "")
	}
	fill(0)
	keyhole(t, s.env(), nil, "tier", "evict", "orders").want(t, exitDone, "", "")
	fill(500)

	// The variables of serve are those of check.
	env := []string{"KEYHOLE_DATA_DIR=" + dir, "KEYHOLE_OBJECT_STORE=file://" + filepath.Join(dir, devStore)}
	r := keyhole(t, env, nil, "check")
	r.want(t, exitFailed, "", "a gateway uses the data directory: "+dir)
	if r.stdout != "" || strings.Count(r.err, "\n") != 1 {
		t.Errorf("stdout %q, stderr %q", r.stdout, r.err)
	}
	keyhole(t, env, nil, "check", "--data-dir", "").want(t, exitDone, "all holds; 1 topic, 1 partition, 0 local", "")

	s.signal(syscall.SIGTERM)
	s.wantEnd(exitDone)
	keyhole(t, env, nil, "check").want(t, exitDone, "all holds; 1 topic, 1 partition, ", "")
	keyhole(t, env, nil, "check").want(t, exitDone, " 1000 index entries", "")
	keyhole(t, append(env, "KEYHOLE_JSON=true"), nil, "check").want(t, exitDone, `{"ok":true,"topics":1,`, "")

	objects, err := filepath.Glob(filepath.Join(dir, devStore, "orders", "*", "0", "*.log"))
	if err != nil || len(objects) < 2 {
		t.Fatalf("%d objects, %v", len(objects), err)
	}
	object, err := filepath.Rel(filepath.Join(dir, devStore), objects[1])
	if err != nil {
		t.Fatal(err)
	}
	orphan := strings.Replace(objects[0], ".log", "0.log", 1)
	if err := os.WriteFile(orphan, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	r = keyhole(t, env, nil, "check")
	r.want(t, exitDone, "note    "+strings.TrimPrefix(orphan, filepath.Join(dir, devStore)+"/")+":0  orphan of 1 bytes", "")

	b, err := os.ReadFile(objects[1])
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(objects[1], b, 0o644); err != nil {
		t.Fatal(err)
	}
	r = keyhole(t, env, nil, "check")
	r.want(t, exitFailed, "damage  "+object+":", "keyhole: damage found in ")
	if strings.Contains(r.stdout, "all holds") {
		t.Errorf("stdout %q", r.stdout)
	}
	r = keyhole(t, env, nil, "check", "--json")
	r.want(t, exitFailed, `"severity":"damage","tier":"remote","object":"`+object+`"`, "")
	for line := range strings.Lines(r.stdout) {
		if !json.Valid([]byte(line)) {
			t.Errorf("not JSON: %s", line)
		}
	}
}
