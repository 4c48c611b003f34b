package e2e

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"keyhole/internal/s3test"
)

// store is where a node keeps its cold tier.
type store struct {
	url   string
	env   []string
	dir   string        // folder on this machine that holds the objects
	proxy *s3test.Proxy // between the node and the store; nil for a folder
}

// prefix is the path of the object store URL.
const prefix = "pre/fix"

// backends are the stores that every test with one runs against.
var backends = []string{"aws", "minio", "dir"}

// eachBackend runs a test against every store, one after the other: what is
// counted and timed should not be disturbed by the others.
func eachBackend(t *testing.T, test func(t *testing.T, s *store)) {
	for _, name := range backends {
		t.Run(name, func(t *testing.T) { test(t, openStore(t, name)) })
	}
}

// twoBackends is eachBackend for tests that are long, and that no client of S3 makes
// a difference to.
func twoBackends(t *testing.T, test func(t *testing.T, s *store)) {
	for _, name := range []string{"aws", "dir"} {
		t.Run(name, func(t *testing.T) { test(t, openStore(t, name)) })
	}
}

// openStore is a new, empty store.
func openStore(t testing.TB, backend string) *store {
	t.Helper()
	t.Cleanup(client.CloseIdleConnections)
	if backend == "dir" {
		dir := t.TempDir()
		return &store{url: "file://" + dir, dir: dir}
	}
	gateway := s3test.StartGateway(t)
	proxy := s3test.StartProxy(t, gateway.Endpoint)
	return &store{
		url:   s3test.URL(proxy.Endpoint, prefix, backend),
		env:   s3test.Environment(),
		dir:   filepath.Join(gateway.Dir, s3test.Bucket, filepath.FromSlash(prefix)),
		proxy: proxy,
	}
}

// objects are the keys of all objects below the URL's prefix, by reading the
// store's disk; no request is made. Those of the probe, and what a folder has that is
// not in its place yet, come and go.
func (s *store) objects(t testing.TB) []string {
	t.Helper()
	var keys []string
	err := filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && (d.Name() == "~probe" || d.Name() == "~tmp") {
			return filepath.SkipDir
		}
		if errors.Is(err, fs.ErrNotExist) && path != s.dir {
			return nil // it went meanwhile
		}
		if err != nil || d.IsDir() {
			return err
		}
		key, err := filepath.Rel(s.dir, path)
		keys = append(keys, filepath.ToSlash(key))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// object is the content of one object, off the store's disk.
func (s *store) object(t testing.TB, key string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(s.dir, filepath.FromSlash(key)))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// traffic is what reached a store, without what a node asks by the clock: whether
// a manifest has changed.
type traffic struct {
	ranged int // GETs of a part of an object
	all    int // requests of any kind
}

// isLook says whether a request asks for what has changed since last time.
func isLook(r s3test.Request) bool {
	return r.Method == http.MethodGet && r.Header.Get("If-None-Match") != ""
}

// during counts the requests that reach the store while fn runs. A folder sees
// no requests, so there the node's own count is taken; for S3 both must agree on
// the ranged ones.
func (s *store) during(n *node, fn func()) traffic {
	n.t.Helper()
	before := n.ownCount()
	if s.proxy != nil {
		s.proxy.ResetRequests()
	}
	fn()
	after := n.ownCount()
	own := traffic{after.ranged - before.ranged, after.all - before.all}
	if s.proxy == nil {
		return own
	}
	seen := traffic{s.proxy.Count(s3test.Request.IsRange), s.proxy.Count(func(r s3test.Request) bool { return !isLook(r) })}
	if seen.ranged != own.ranged {
		n.t.Errorf("the store saw %d ranged GETs, the node counted %d", seen.ranged, own.ranged)
	}
	return seen
}

// ownCount is the node's own count of requests to the store.
func (n *node) ownCount() traffic {
	n.t.Helper()
	var c traffic
	found := false
	for name, value := range n.metrics() {
		if !strings.HasPrefix(name, "keyhole_object_store_requests_total{") || strings.Contains(name, `op="look"`) {
			continue
		}
		found = true
		v, err := strconv.Atoi(value)
		if err != nil {
			n.t.Fatal(err)
		}
		c.all += v
		if strings.Contains(name, `op="read"`) {
			c.ranged += v
		}
	}
	if !found {
		n.t.Fatal("no metric of requests to the object store")
	}
	return c
}

// wantTraffic checks what reached the store.
func wantTraffic(t testing.TB, what string, got traffic, ranged int) {
	t.Helper()
	if got.ranged != ranged || got.all != ranged {
		t.Errorf("%s: %d ranged GETs of %d requests in all, want %d and no others", what, got.ranged, got.all, ranged)
	}
}

// refuse is a fault that answers every request with an S3 error.
func refuse(status int, code string) s3test.Fault {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { s3test.Fail(w, status, code) }
}

// settle waits until the node leaves the store alone: what runs behind a start
// or an upload, such as the claim of partitions, must not be counted as the
// lookups' requests.
func settle(n *node) {
	n.t.Helper()
	const enough = 50 // polls, which are some 10 ms apart
	last, quiet := n.ownCount(), 0
	poll(n.t, "the node leaves the store alone", func() bool {
		now := n.ownCount()
		if now == last {
			quiet++
		} else {
			last, quiet = now, 0
		}
		return quiet >= enough
	})
}
