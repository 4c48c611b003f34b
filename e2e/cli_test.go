package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestCommands takes the client commands around once, with what they print and
// how they exit.
func TestCommands(t *testing.T) {
	eachBackend(t, func(t *testing.T, s *store) {
		n := startNode(t, s)
		prints := func(stdin, mention string, args ...string) {
			t.Helper()
			if out := n.mustCLI(stdin, args...); !strings.Contains(out, mention) {
				t.Errorf("keyhole %s: %q, want it to hold %q", strings.Join(args, " "), out, mention)
			}
		}
		// fails wants the exit code, nothing on stdout, and the reason on stderr.
		fails := func(code int, mention string, args ...string) {
			t.Helper()
			r := n.cli("", args...)
			if r.code != code || r.stdout != "" || !strings.Contains(r.stderr, mention) {
				t.Errorf("keyhole %s: exit %d, stdout %q, stderr %q; want %d and %q", strings.Join(args, " "), r.code, r.stdout, r.stderr, code, mention)
			}
		}
		asJSON := func(args ...string) {
			t.Helper()
			out := n.mustCLI("", append(args, "--json")...)
			d := json.NewDecoder(strings.NewReader(out))
			for values := 0; ; values++ {
				var v any
				if err := d.Decode(&v); err != nil {
					if values == 0 || d.More() {
						t.Errorf("keyhole %s --json: %q: %v", strings.Join(args, " "), out, err)
					}
					return
				}
			}
		}
		prints("", "keyhole", "version")
		fails(1, "kv_index", "topic", "create", "prices", "-c", "redpanda.kv.index.enabled=true")
		prints("", "kv_index = active", "config", "set", "kv_index", "active")
		prints("", "kv_index_enabled = true", "config", "set", "kv_index_enabled", "true")
		prints("", "true", "config", "get", "kv_index_enabled")
		prints("", "kv_index_lookup_timeout_ms", "config", "list")
		fails(1, "kv_index_lookup_timeout_ms", "config", "set", "kv_index_lookup_timeout_ms", "never")

		prints("", "created topic prices", "topic", "create", "prices", "-p", "3", "-c", "redpanda.kv.index.enabled=true")
		fails(1, "exists", "topic", "create", "prices")
		prints("", "prices", "topic", "list")
		prints("", "segment.bytes", "topic", "describe", "prices")
		prints("", "", "topic", "alter-config", "prices", "--help")

		records := `{"key":"apple","value":{"eur":2.49},"timestamp":1700000000000,"headers":[{"name":"h","value":"x"}]}
{"key":"pear","value":"ripe"}
{"key":{"base64":"AP8="},"value":{"base64":"AAE="}}
{"key":"plum","value":1}
{"key":"plum","value":null}
`
		prints(records, "produced 5 records", "produce", "prices", "-")
		// The summary of what was written comes in any case.
		if r := n.cli("", "produce", "prices", filepath.Join(moduleRoot, "go.mod")); r.code != 1 || !strings.Contains(r.stderr, "line 1:") {
			t.Errorf("produce of what is not JSON: exit %d, %q, want 1 and the line", r.code, r.stderr)
		}
		get := func(want string, args ...string) {
			t.Helper()
			if out := n.mustCLI("", append([]string{"get", "prices"}, args...)...); out != want {
				t.Errorf("get %v: %q, want %q", args, out, want)
			}
		}
		read := func() {
			t.Helper()
			get(`{"eur":2.49}`, "apple")
			get("ripe", "pear")
			get("\x00\x01", "--key-encoding", "hex", "00ff")
			fails(1, "key_not_found", "get", "prices", "plum")
		}
		read()
		prints("", `"headers":[{"name":"h","value":"eA=="}]`, "get", "prices", "apple", "--record")
		fails(1, "topic_not_found", "get", "nowhere", "apple")

		prints("", "PARTITION", "tier", "evict", "prices")
		fails(1, "remote_read_disabled", "get", "prices", "apple")
		prints("", remoteRead+" = true", "config", "set", remoteRead, "true")
		read()
		prints("", "full", "tier", "status", "prices")
		prints("", `"segments"`, "tier", "manifest", "prices", "0")
		n.mustCLI("", "tier", "trim-cache")
		read()
		for _, args := range [][]string{{"version"}, {"topic", "list"}, {"topic", "describe", "prices"}, {"config", "list"},
			{"config", "get", remoteRead}, {"tier", "status", "prices"}, {"tier", "status", "prices", "0"}, {"tier", "evict", "prices"},
			{"get", "prices", "apple"}, {"healthcheck", "--timeout", "1m"}, {"tier", "trim-cache"}} {
			asJSON(args...)
		}
		prints("", "ready", "healthcheck", "--timeout", "1m")

		for _, args := range [][]string{{"nonsense"}, {"topic"}, {"topic", "crate", "x"}, {"get", "prices"}, {"get", "--no-such-flag"},
			{"serve"}, {"tier", "evict", "prices", "0", "--local-target-bytes", "-1"}, {"get", "prices", "zz", "--key-encoding", "hex"},
			{"serve", "--data-dir", n.dir, "--object-store", "ftp://x"}} {
			fails(2, "", args...)
		}
		fails(1, "--admin-url", "topic", "list", "--admin-url", "http://127.0.0.1:1")
		prints("", "deleted", "topic", "delete", "prices")
		fails(1, "topic_not_found", "get", "prices", "apple")
		n.stop()
	})
}

// TestCheck: the command finds all well in what a gateway left behind, and finds
// what was damaged.
func TestCheck(t *testing.T) {
	eachBackend(t, func(t *testing.T, s *store) {
		n := coldNode(t, s)
		if a := n.do("PUT", n.kv(coldTopic, "hot"), nil, []byte("here")); a.status != 200 {
			t.Fatalf("put: %v", a)
		}
		n.stop()
		n.mustCheck("of a stopped gateway")
		n.start()
		n.waitReady()
		n.kill()
		n.mustCheck("after kill -9")
		var log string
		for _, key := range s.objects(t) {
			if strings.HasSuffix(key, ".log") {
				log = key
			}
		}
		file := filepath.Join(s.dir, filepath.FromSlash(log))
		data := s.object(t, log)
		data[len(data)/2] ^= 1
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
		if r := n.check(); r.code != 1 || !strings.Contains(r.stdout+r.stderr, filepath.Base(log)) {
			t.Errorf("check of a damaged object: exit %d, want 1 and its name\n%s%s", r.code, r.stdout, r.stderr)
		}
		if r := runCLI(t, "", environment(s), "check"); r.code != 2 {
			t.Errorf("check of nothing: exit %d, want 2", r.code)
		}
	})
}

// TestQuickstart runs the documented walk-through against a real S3 server.
func TestQuickstart(t *testing.T) {
	script := filepath.Join(moduleRoot, "scripts", "quickstart.sh")
	for _, tool := range []string{"bash", "curl", "awk", "seq"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the script needs %s", tool)
		}
	}
	s3Backends(t, func(t *testing.T, s *store) {
		n := startNode(t, s)
		cmd := exec.CommandContext(t.Context(), "bash", script)
		cmd.Env = environment(nil, "URL="+n.data, "KEYHOLE="+program, "KEYHOLE_URL="+n.data, "KEYHOLE_ADMIN_URL="+n.admin)
		cmd.WaitDelay = 10 * time.Second
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		n.stop()
	})
}

// TestDevelopment: one flag, no store, no switches, no topic made by hand.
func TestDevelopment(t *testing.T) {
	n := startNode(t, nil, "--dev")
	a := n.do("PUT", n.kv("t", "k"), nil, []byte("v"))
	if a.status != 200 {
		t.Fatalf("put: %v", a)
	}
	wantValue(t, "hot", n.get("t", "k"), []byte("v"), "local")
	n.evict("t", 1)
	wantValue(t, "cold", n.get("t", "k"), []byte("v"), "remote")
	n.restart()
	wantValue(t, "cold after a restart", n.get("t", "k"), []byte("v"), "remote")
}
