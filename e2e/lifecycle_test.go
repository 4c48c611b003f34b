package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"keyhole/internal/s3test"
)

// TestDrain sends SIGTERM while a lookup waits for the store.
func TestDrain(t *testing.T) {
	s := openStore(t, "aws")
	n := coldNode(t, s)
	release := make(chan struct{})
	s.proxy.SetFault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		<-release
		next.ServeHTTP(w, r)
	})
	s.proxy.ResetRequests()
	got := make(chan answer, 1)
	go func() {
		a, err := n.try("GET", n.kv(coldTopic, coldKey(3)), nil, nil)
		if err != nil {
			t.Errorf("in flight: %v", err)
		}
		got <- a
	}()
	poll(t, "the lookup reads the store", func() bool { return s.proxy.Count(s3test.Request.IsRange) > 0 })
	n.terminate()
	poll(t, "no new connections are taken", func() bool {
		a, err := n.try("GET", n.kv(coldTopic, "x"), http.Header{"Connection": {"close"}}, nil)
		return err != nil || a.status == 503
	})
	close(release)
	wantValue(t, "in flight", <-got, coldValue(3), "remote")
	if code := n.wait(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

// TestDrainWindow: readiness goes first, and requests are served until the
// balancer has noticed. Case 8-08.
func TestDrainWindow(t *testing.T) {
	n := startNode(t, nil, "--drain-window", "10s") // longer than a machine stands still
	n.indexed("t", 1, nil)
	if a := n.do("PUT", n.kv("t", "k"), nil, []byte("v")); a.status != 200 {
		t.Fatalf("put: %v", a)
	}
	n.terminate()
	poll(t, "readiness goes", func() bool {
		a, err := n.try("GET", n.admin+"/v1/status/ready", nil, nil)
		return err == nil && a.status == 503
	})
	a := n.do("GET", n.kv("t", "k"), http.Header{"Connection": {"close"}}, nil)
	wantValue(t, "a new connection in the window", a, []byte("v"), "local")
	if code := n.wait(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

// TestDirectoryLock starts a second process on a directory in use. Case 6-14.
func TestDirectoryLock(t *testing.T) {
	n := startNode(t, nil)
	n.indexed("t", 1, nil)
	if a := n.do("PUT", n.kv("t", "k"), nil, []byte("v")); a.status != 200 {
		t.Fatalf("put: %v", a)
	}
	r := runCLI(t, "", environment(nil), n.args()...)
	if r.code != 1 || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, n.dir) || r.stdout != "" {
		t.Errorf("second process: exit %d, want 1 and one line that names the directory:\n%s%s", r.code, r.stdout, r.stderr)
	}
	wantValue(t, "the first goes on", n.get("t", "k"), []byte("v"), "local")
	n.restart()
	wantValue(t, "after its restart", n.get("t", "k"), []byte("v"), "local")
}

// TestPortInUse: the most common reason not to start is told in one line.
func TestPortInUse(t *testing.T) {
	n := startNode(t, nil)
	other := newNode(t, nil, "--listen", strings.TrimPrefix(n.data, "http://"))
	r := runCLI(t, "", environment(nil), other.args()...)
	if r.code != 1 || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, "--listen") {
		t.Errorf("exit %d, want 1 and one line about --listen:\n%s", r.code, r.stderr)
	}
}

// TestTornTail leaves half a batch at the end of the log. Case 7-26.
func TestTornTail(t *testing.T) {
	n := startNode(t, nil)
	n.indexed("t", 1, nil)
	put := func(key string) {
		t.Helper()
		if a := n.do("PUT", n.kv("t", key), nil, []byte("value of "+key)); a.status != 200 {
			t.Fatalf("put %s: %v", key, a)
		}
	}
	check := func(what string, keys ...string) {
		t.Helper()
		for _, key := range keys {
			wantValue(t, what+", "+key, n.get("t", key), []byte("value of "+key), "local")
		}
	}
	put("a")
	put("b")
	n.kill()
	log := newestLog(t, n.dir)
	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	// The last batch once more, all but its last bytes: a write that a crash cut.
	at := bytes.LastIndex(data, []byte("value of b"))
	if at < 100 {
		t.Fatalf("%s does not hold the last record", log)
	}
	torn := data[at-80:]
	f, err := os.OpenFile(log, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(torn[:len(torn)-7]); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.waitReady()
	check("after the crash", "a", "b")
	put("c")
	n.restart()
	check("after another restart", "a", "b", "c")
}

// newestLog is the last segment file of the only partition.
func newestLog(t *testing.T, dir string) string {
	t.Helper()
	var last string
	for _, name := range glob(t, filepath.Join(dir, "topics", "*", "*", "*", "log", "*.log")) {
		if filepath.Base(name) > filepath.Base(last) {
			last = name
		}
	}
	if last == "" {
		t.Fatal("no segment file")
	}
	return last
}

// TestRecreatedTopic deletes a topic and makes another of its name: nothing of
// the old one is seen again, in either tier. Cases 3-31 and 5-15.
func TestRecreatedTopic(t *testing.T) {
	eachBackend(t, func(t *testing.T, s *store) {
		n := startNode(t, s)
		n.setCluster(remoteRead, true)
		n.produceCold("again", 100)
		n.evict("again", 1)
		old := n.get("again", coldKey(2))
		wantValue(t, "old, now cached", old, coldValue(2), "remote")
		n.adminJSON("DELETE", "/v1/topics/again", nil, 200, nil)
		want(t, "deleted", n.get("again", coldKey(2)), 404, "topic_not_found")

		n.indexed("again", 1, nil)
		records := make([]object, 5)
		for i := range records {
			records[i] = object{"key": []byte(coldKey(i)), "value": fmt.Appendf(nil, "new %d", i)}
		}
		if at := n.produce("again", records); at[2].offset != 2 {
			t.Errorf("the third record has offset %d", at[2].offset)
		}
		want(t, "only in the old topic", n.get("again", coldKey(50)), 404, "key_not_found")
		n.evict("again", 1)
		for _, when := range []string{"at once", "after a restart"} {
			a := n.get("again", coldKey(2))
			wantValue(t, when, a, []byte("new 2"), "remote")
			if a.header.Get("ETag") == old.header.Get("ETag") {
				t.Errorf("%s: the ETag is that of the old topic's record at the same offset", when)
			}
			want(t, when+", only in the old topic", n.get("again", coldKey(50)), 404, "key_not_found")
			n.restart()
		}
	})
}

// TestKeys writes and reads keys that HTTP software likes to change, hot and
// cold. Cases 1-01, 1-04, 1-05, 1-07, 1-10, 1-11, 1-13.
func TestKeys(t *testing.T) {
	eachBackend(t, func(t *testing.T, s *store) {
		n := startNode(t, s)
		n.indexed("t", 3, nil)
		n.setCluster(remoteRead, true)
		targets := map[string]string{ // request target → key
			"/kv/t/%2F%2Fhost%2Fa": "//host/a", "/kv/t//k": "/k", "/kv/t/..%2Fbar": "../bar", "/kv/t/a/../b": "a/../b",
			"/kv/t/..": "..", "/kv/t/a%2Fb": "a/b", "/kv/t/a%2Fb/": "a/b/", "/kv/t/50%25off": "50%off",
			"/kv/t/a%252Fb": "a%2Fb", "/kv/t/A+B": "A+B", "/kv/t/A%20B": "A B", "/kv/t/%FF%FE%80": "\xff\xfe\x80",
			"/kv/t/%2E%2E%2Fmetrics": "../metrics",
		}
		for b := range 256 {
			targets[fmt.Sprintf("/kv/t/%%%02X", b)] = string([]byte{byte(b)})
		}
		var records []object
		for _, target := range sorted(targets) {
			key := targets[target]
			records = append(records, object{"key": []byte(key), "value": fmt.Appendf(nil, "value of %x", key)})
		}
		n.produce("t", records)
		read := func(when string) {
			for _, target := range sorted(targets) {
				got := n.rawGET(target)
				if !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") || !strings.HasSuffix(got, fmt.Sprintf("\r\n\r\nvalue of %x", targets[target])) {
					t.Errorf("%s: GET %s: %.300q", when, target, got)
				}
			}
			if got := n.rawGET("/kv/t/%zz"); !strings.HasPrefix(got, "HTTP/1.1 400 ") {
				t.Errorf("%s: malformed escape: %.100q", when, got)
			}
		}
		read("hot")
		n.evict("t", 3)
		read("cold")
	})
}
