package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A replica makes nothing in the store, not even its folder.
func TestReplicaOfNoFolder(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "store")
	r := keyhole(t, nil, nil, "serve", "--read-replica", "--data-dir", filepath.Join(dir, "data"), "--object-store", "file://"+missing,
		"--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
	r.want(t, exitFailed, "", "--object-store: ")
	if !strings.Contains(r.err, "there is no folder "+missing) || strings.Count(r.err, "\n") != 1 {
		t.Errorf("it says %q", r.err)
	}
	if _, err := os.Stat(missing); err == nil {
		t.Error("it made the folder")
	}
}

// A writer and two replicas of its bucket, as processes.
func TestServeReadReplica(t *testing.T) {
	dir := t.TempDir()
	store := "file://" + filepath.Join(dir, "writer", devStore)
	w := startServe(t, nil, "--dev", "--data-dir", filepath.Join(dir, "writer"))
	w.waitReady()
	var input strings.Builder
	for i := range 300 {
		fmt.Fprintf(&input, "{\"key\":\"k%d\",\"value\":\"value %d\"}\n", i, i)
	}
	do := func(s *served, code int, stdout, stderr string, args ...string) {
		t.Helper()
		keyhole(t, s.env(), nil, args...).want(t, code, stdout, stderr)
	}
	keyhole(t, w.env(), strings.NewReader(input.String()), "produce", "orders").want(t, exitDone, "produced 300 records", "")
	do(w, exitDone, "full", "", "tier", "evict", "orders")

	one := startServe(t, nil, "--read-replica", "--data-dir", filepath.Join(dir, "one"), "--object-store", store)
	two := startServe(t, []string{"KEYHOLE_READ_REPLICA=true", "KEYHOLE_OBJECT_STORE=" + store}, "--data-dir", filepath.Join(dir, "two"))
	for _, r := range []*served{one, two} {
		eventually(t, "answered", func() bool { return status(r.data+"/kv/orders/k77") == http.StatusOK })
		r.waitReady()
		do(r, exitDone, "value 299", "X-Kv-Position: 300", "get", "orders", "k299", "-v")
		do(r, exitFailed, "", "key not found", "get", "orders", "absent")
		do(r, exitFailed, "", "this node is a read replica (conflict, HTTP 409)", "topic", "create", "t")
		do(r, exitFailed, "", "this node is a read replica", "tier", "compact", "orders")
		do(r, exitFailed, "", "this node is a read replica", "tier", "gc", "--dry-run")
		do(r, exitDone, "true\n", "", "config", "get", "kv_index_remote_read_enabled")
		do(r, exitDone, "orders", "", "topic", "list")
	}
	keyhole(t, one.env(), strings.NewReader(`{"key":"k","value":"v"}`+"\n"), "produce", "orders").want(t, exitFailed, "", "not hosted")

	keyhole(t, w.env(), strings.NewReader(`{"key":"k0","value":"anew"}`+"\n"), "produce", "orders").want(t, exitDone, "produced 1 record", "")
	do(w, exitDone, "RECORDS REMOVED", "compacted 1 partition of orders: ", "tier", "compact", "orders")
	do(w, exitDone, "", "would delete", "tier", "gc", "--dry-run")
	eventually(t, "followed", func() bool {
		return strings.Contains(keyhole(t, two.env(), nil, "get", "orders", "k0").stdout, "anew")
	})
	for _, s := range []*served{one, two, w} {
		s.signal(syscall.SIGTERM)
		s.wantEnd(exitDone)
		if strings.Contains(s.output(), `"level":"ERROR"`) {
			t.Errorf("log:\n%s", s.output())
		}
	}
	if !strings.Contains(one.output(), `"read_replica":true`) {
		t.Error("the log does not say that it is a read replica")
	}

	// The roles do not share a directory, and both say so in one line.
	listeners := []string{"--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--object-store", store}
	for _, args := range [][]string{
		{"serve", "--read-replica", "--data-dir", filepath.Join(dir, "writer")},
		{"serve", "--data-dir", filepath.Join(dir, "one")},
	} {
		r := keyhole(t, nil, nil, append(args, listeners...)...)
		r.want(t, exitFailed, "", "read replica")
		if strings.Count(r.err, "\n") != 1 {
			t.Errorf("not one line: %q", r.err)
		}
	}
}
