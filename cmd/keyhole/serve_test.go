package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"keyhole/internal/s3test"
)

// The whole life of a node on a laptop, with every command.
func TestLife(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := startServe(t, nil, "--dev", "--data-dir", dir)
	s.waitReady()
	do := func(code int, stdout, stderr string, args ...string) {
		t.Helper()
		keyhole(t, s.env(), nil, args...).want(t, code, stdout, stderr)
	}
	do(exitDone, "ready", "", "healthcheck", "--timeout", "1m")
	do(exitDone, "live", "", "healthcheck", "--live", "--timeout", "1m")
	do(exitDone, `"kv_index":"active"`, "", "config", "list", "--json")
	do(exitDone, "kv_index_enabled", "", "config", "list")
	do(exitDone, "true\n", "", "config", "get", "kv_index_remote_read_enabled")
	do(exitDone, "kv_index_remote_read_enabled = false", "", "config", "set", "kv_index_remote_read_enabled", "false")

	do(exitFailed, "", "keyhole: set cloud_storage_gc_grace_ms: 1000 must not be shorter than kv_index_lookup_timeout_ms (5000)", "config", "set", "cloud_storage_gc_grace_ms", "1000")

	do(exitDone, "created topic orders", "", "topic", "create", "orders", "-p", "3", "-c", "redpanda.kv.index.enabled=true", "-c", "segment.bytes=4096")
	do(exitFailed, "", "topic already exists", "topic", "create", "orders")
	do(exitFailed, "", "segment.bytes", "topic", "create", "other", "-c", "segment.bytes=1")
	do(exitDone, "orders", "", "topic", "list")
	do(exitDone, "segment.bytes", "", "topic", "describe", "orders")
	do(exitDone, "", "", "topic", "alter-config", "orders", "--set", "segment.bytes=8192")
	do(exitDone, `"segment.bytes":{"value":"8192","default":false}`, "", "topic", "describe", "orders", "--json")
	do(exitDone, "", "", "topic", "alter-config", "orders", "--delete", "segment.bytes")

	var input strings.Builder
	for i := range 500 {
		fmt.Fprintf(&input, "{\"key\":\"k%d\",\"value\":\"value %d\"}\n", i, i)
	}
	keyhole(t, s.env(), strings.NewReader(input.String()), "produce", "orders").want(t, exitDone, "produced 500 records", "")
	do(exitDone, "value 77", "X-Kv-Source: local", "get", "orders", "k77", "-v")
	do(exitDone, `"topic":"orders"`, "", "get", "orders", "k77", "--record")
	do(exitFailed, "", "key not found (key_not_found, HTTP 404)", "get", "orders", "absent")

	do(exitDone, "created topic plain", "", "topic", "create", "plain", "-c", "redpanda.remote.write=false")
	do(exitDone, "RECORDS REMOVED", "it has no index (redpanda.kv.index.enabled is false)", "tier", "compact", "plain")
	do(exitDone, "", "", "topic", "alter-config", "plain", "--set", "redpanda.kv.index.enabled=true")
	s.waitReady() // its index catches up
	do(exitDone, "RECORDS REMOVED", "it is not uploaded (redpanda.remote.write is false)", "tier", "compact", "plain", "0")
	if r := keyhole(t, s.env(), nil, "tier", "compact", "orders"); r.code != exitDone || strings.Contains(r.err, "is false") {
		t.Errorf("compact: %d, %q", r.code, r.err)
	}
	do(exitDone, `"local_log_start_offset"`, "", "tier", "evict", "orders", "--json")
	do(exitDone, "write_only", "", "tier", "status", "orders")
	do(exitDone, `"segments":[{`, "", "tier", "manifest", "orders", "0")
	do(exitFailed, "", "record only available in tiered storage", "get", "orders", "k77")
	do(exitDone, "kv_index_remote_read_enabled = true", "", "config", "set", "kv_index_remote_read_enabled", "true")
	do(exitDone, "value 77", "X-Kv-Source: remote", "get", "orders", "k77", "-v")
	do(exitDone, "value 77", "X-Kv-Source: cache", "get", "orders", "k77", "-v")
	do(exitDone, "cache is empty", "", "tier", "trim-cache")
	do(exitDone, "value 77", "X-Kv-Source: remote", "get", "orders", "k77", "-v")

	s.signal(syscall.SIGTERM)
	s.wantEnd(exitDone)
	s = startServe(t, nil, "--dev", "--data-dir", dir)
	s.waitReady()
	do(exitDone, "value 77", "X-Kv-Source: remote", "get", "orders", "k77", "-v")
	do(exitDone, "true\n", "", "config", "get", "kv_index_remote_read_enabled")
	eventually(t, "the topic is offered", func() bool { // a shell waits for a second at most
		return strings.Contains(keyhole(t, s.env(), nil, "__complete", "get", "").stdout, "orders\n")
	})
	do(exitDone, "deleted topic orders", "", "topic", "delete", "orders")
	do(exitFailed, "", "topic not found", "get", "orders", "k77")
	s.signal(syscall.SIGINT)
	s.wantEnd(exitDone)
	if out := s.output(); !strings.Contains(out, `"msg":"stopped"`) || strings.Contains(out, `"level":"ERROR"`) {
		t.Errorf("log:\n%s", out)
	}
}

// What --dev has switched on is the operator's afterwards.
func TestDevKeepsSwitches(t *testing.T) {
	dir := t.TempDir()
	s := startServe(t, nil, "--dev", "--data-dir", dir)
	keyhole(t, s.env(), nil, "config", "set", "kv_index_remote_read_enabled", "false").want(t, exitDone, "= false", "")
	s.signal(syscall.SIGTERM)
	s.wantEnd(exitDone)
	s = startServe(t, nil, "--dev", "--data-dir", dir)
	keyhole(t, s.env(), nil, "config", "get", "kv_index_remote_read_enabled").want(t, exitDone, "false\n", "")
}

// case 8-08: readiness goes off at once, requests are served during the drain
// window, and a second signal does not wait for it.
func TestDrain(t *testing.T) {
	s := startServe(t, nil, "--dev", "--data-dir", t.TempDir(), "--drain-window", "10m", "--shutdown-timeout", "20m")
	s.waitReady()
	s.signal(syscall.SIGTERM)
	eventually(t, "readiness off", func() bool { return status(s.admin+"/v1/status/ready") == http.StatusServiceUnavailable })
	for range 20 {
		if got := status(s.data + "/kv/t/k"); got != http.StatusNotFound {
			t.Fatalf("status %d in the drain window", got)
		}
	}
	keyhole(t, s.env(), nil, "healthcheck", "--timeout", "1m").want(t, exitFailed, "", "not ready")
	keyhole(t, s.env(), nil, "healthcheck", "--live", "--timeout", "1m").want(t, exitDone, "live", "")
	s.signal(syscall.SIGTERM)
	s.wantEnd(-1) // ended by the signal
}

func TestServeCannotStart(t *testing.T) {
	dir := t.TempDir()
	s := startServe(t, nil, "--dev", "--data-dir", dir)

	// case 6-14: one clear line, and the first one goes on.
	r := keyhole(t, nil, nil, "serve", "--dev", "--data-dir", dir, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
	r.want(t, exitFailed, "", dir)
	if strings.Count(r.err, "\n") != 1 {
		t.Errorf("not one line: %q", r.err)
	}

	port := strings.TrimPrefix(s.data, "http://")
	for _, flag := range []string{"--listen", "--admin-listen"} {
		args := []string{"serve", "--dev", "--data-dir", t.TempDir(), "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", flag, port}
		keyhole(t, nil, nil, args...).want(t, exitFailed, "", flag+": listen tcp "+port)
	}

	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	keyhole(t, nil, nil, "serve", "--dev", "--data-dir", file).want(t, exitFailed, "", "data directory")
	keyhole(t, nil, nil, "serve", "--data-dir", t.TempDir(), "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		"--object-store", "s3://bucket-name/?endpoint=https://127.0.0.1:1", "--s3-ca-file", file+".absent").want(t, exitFailed, "", "--object-store")
	s.waitReady()
}

// The YAML file and the environment reach the running node.
func TestServeFromFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "k.yaml")
	text := fmt.Sprintf("data_dir: %s\nobject_store: file://%s\nlog_level: debug\nmax_body_bytes: 1000\nmax_bodies_bytes: 1000000\n",
		filepath.Join(dir, "from-file"), filepath.Join(dir, "store"))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServe(t, []string{"KEYHOLE_CONFIG=" + file, "KEYHOLE_MAX_BODY_BYTES=2000"}, "--data-dir", filepath.Join(dir, "from-flag"))
	if _, err := os.Stat(filepath.Join(dir, "from-flag", "LOCK")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "from-file")); !os.IsNotExist(err) {
		t.Errorf("the file has won over the flag: %v", err)
	}
	s.waitReady()
	keyhole(t, s.env(), nil, "topic", "create", "t").want(t, exitDone, "created", "")
	s.waitReady()
	put := func(n int) int {
		req, err := http.NewRequest(http.MethodPut, s.data+"/kv/t/k", strings.NewReader(strings.Repeat("x", n)))
		if err != nil {
			t.Fatal(err)
		}
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	if got := put(1500); got != http.StatusOK {
		t.Errorf("1500 bytes: status %d; the file has won over the environment", got)
	}
	if got := put(2500); got != http.StatusRequestEntityTooLarge {
		t.Errorf("2500 bytes: status %d, want 413", got)
	}
	if !strings.Contains(s.output(), `"level":"DEBUG"`) {
		t.Error("no debug log: log_level of the file has no effect")
	}
}

// An admin listener that others can reach is worth a warning.
func TestAdminWarning(t *testing.T) {
	const warning = "no access control"
	s := startServe(t, nil, "--dev", "--data-dir", t.TempDir())
	if strings.Contains(s.output(), warning) {
		t.Error("warned about a loopback address")
	}
	r := startServe(t, nil, "--dev", "--data-dir", t.TempDir(), "--admin-listen", "0.0.0.0:0")
	eventually(t, "warning", func() bool { return strings.Contains(r.output(), warning) })
	_, port, err := net.SplitHostPort(strings.TrimPrefix(r.admin, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	// As in a container: the address to ask follows from the one listened on.
	keyhole(t, []string{"KEYHOLE_ADMIN_LISTEN=:" + port}, nil, "healthcheck", "--live", "--timeout", "1m").want(t, exitDone, "live", "")
}

// case 8-21: a secret shows up nowhere.
func TestNoSecrets(t *testing.T) {
	gateway := s3test.StartGateway(t)
	s := startServe(t, s3test.Environment(), "--data-dir", t.TempDir(), "--log-level", "debug",
		"--object-store", s3test.URL(gateway.Endpoint, "p", "aws"))
	s.waitReady()
	seen := []string{}
	for _, path := range []string{"/metrics", "/v1/cluster_config", "/v1/status/ready", "/v1/topics"} {
		resp, err := http.Get(s.admin + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || len(body) == 0 {
			t.Fatalf("%s: %v", path, err)
		}
		resp.Body.Close()
		seen = append(seen, string(body))
	}
	http.DefaultClient.CloseIdleConnections()
	s.signal(syscall.SIGTERM)
	s.wantEnd(exitDone)
	seen = append(seen, s.output())
	for _, text := range seen {
		if strings.Contains(text, s3test.SecretKey) || strings.Contains(text, s3test.AccessKey) {
			t.Errorf("a credential shows up in:\n%s", text)
		}
	}
}

// A node with nothing to serve ends when the store will never work, and says
// why; a store that is merely away is waited for.
func TestHopelessStore(t *testing.T) {
	gateway := s3test.StartGateway(t)
	for name, c := range map[string]struct{ env, url string }{
		"wrong password": {"AWS_SECRET_ACCESS_KEY=wrong-wrong-wrong", s3test.URL(gateway.Endpoint, "p", "aws")},
		"no such bucket": {"X=y", strings.Replace(s3test.URL(gateway.Endpoint, "p", "minio"), s3test.Bucket, "other-bucket", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			s := beginServe(t, append(s3test.Environment(), c.env), "--data-dir", t.TempDir(), "--object-store", c.url)
			s.wantEnd(exitFailed)
			if out := s.output(); !strings.Contains(out, "keyhole: --object-store: ") || strings.Contains(out, "wrong-wrong") {
				t.Errorf("log:\n%s", out)
			}
		})
	}
	s := startServe(t, s3test.Environment(), "--data-dir", t.TempDir(), "--object-store", s3test.URL("http://127.0.0.1:1", "p", "aws"))
	if got := status(s.admin + "/v1/status/ready"); got != http.StatusServiceUnavailable {
		t.Errorf("ready is %d while the store is away", got)
	}
	if got := status(s.admin + "/v1/status/live"); got != http.StatusOK {
		t.Errorf("live is %d", got)
	}
	s.signal(syscall.SIGTERM)
	s.wantEnd(exitDone)
}
