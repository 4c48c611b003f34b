package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"keyhole/internal/s3test"
)

// s3Backends runs a test against the backends that have a proxy.
func s3Backends(t *testing.T, test func(t *testing.T, s *store)) {
	for _, name := range []string{"aws", "minio"} {
		t.Run(name, func(t *testing.T) { test(t, openStore(t, name)) })
	}
}

// stall holds a request until its client gives up.
func stall(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() }

// stallInside sends the head of the proper answer and half of the body, then nothing.
func stallInside(w http.ResponseWriter, r *http.Request, next http.Handler) {
	next.ServeHTTP(&halfWriter{ResponseWriter: w}, r)
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
	}
	<-r.Context().Done()
}

// halfWriter passes on the first half of what the head promises.
type halfWriter struct {
	http.ResponseWriter
	left int
}

func (h *halfWriter) WriteHeader(status int) {
	length, _ := strconv.Atoi(h.Header().Get("Content-Length")) // 0: nothing is passed on
	h.left = length / 2
	h.ResponseWriter.WriteHeader(status)
}

func (h *halfWriter) Write(p []byte) (int, error) {
	n := min(len(p), h.left)
	h.left -= n
	if _, err := h.ResponseWriter.Write(p[:n]); err != nil {
		return 0, err
	}
	return len(p), nil
}

// reset cuts the connection without an answer.
func reset(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }

// TestStoreTrouble breaks the store in every way that a network can and wants
// cold keys to say so, hot ones to work on, and nobody to say 404.
func TestStoreTrouble(t *testing.T) {
	s3Backends(t, func(t *testing.T, s *store) {
		n := coldNode(t, s)
		if a := n.do("PUT", n.kv(coldTopic, "hot"), nil, []byte("here")); a.status != 200 {
			t.Fatalf("put: %v", a)
		}
		for _, c := range []struct {
			name     string
			fault    s3test.Fault
			statuses []int
			attempts int // ranged GETs at most
		}{
			{"unavailable", refuse(503, "ServiceUnavailable"), []int{503}, 6},
			{"slow down", refuse(503, "SlowDown"), []int{503}, 6}, // case 4-15
			{"internal error", refuse(500, "InternalError"), []int{503}, 6},
			{"denied", refuse(403, "AccessDenied"), []int{503}, 1},
			{"moved", refuse(301, "PermanentRedirect"), []int{503}, 1},
			// net/http itself asks again when a connection that it kept breaks.
			{"reset", reset, []int{503}, 12},
			{"stalled", stall, []int{504}, 1},
			{"stalled inside", stallInside, []int{503, 504}, 6}, // case 4-27
		} {
			t.Run(c.name, func(t *testing.T) {
				n.in(t)
				defer s.proxy.SetFault(nil)
				n.setCluster(lookupTimeout, 700)
				var a answer
				var took time.Duration
				var reads int
				for range 10 { // a machine that is busy, or stands still, shows nothing
					n.trimCache()
					s.proxy.SetFault(c.fault)
					s.proxy.ResetRequests()
					start := time.Now()
					a = n.do("GET", n.kv(coldTopic, coldKey(9)), nil, nil)
					took = time.Since(start)
					reads = s.proxy.Count(s3test.Request.IsRange)
					if took <= 5*time.Second && reads > 0 && (a.status != 504 || slices.Contains(c.statuses, 504)) {
						break
					}
					t.Logf("%v after %v, %d ranged GETs; once more", a, took, reads)
				}
				n.setCluster(lookupTimeout, slowLookups)
				switch {
				case a.status == 503 && a.header.Get("Retry-After") != "" && slices.Contains(c.statuses, 503):
					want(t, "cold", a, 503, "store_unavailable")
				case a.status == 504 && slices.Contains(c.statuses, 504):
					want(t, "cold", a, 504, "deadline")
				default:
					t.Errorf("cold: %v, Retry-After %q, want one of %v", a, a.header.Get("Retry-After"), c.statuses)
				}
				if took > 5*time.Second {
					t.Errorf("the answer took %v with a deadline of 700 ms", took)
				}
				if reads == 0 || reads > c.attempts {
					t.Errorf("%d ranged GETs, want 1 to %d", reads, c.attempts)
				}
				wantValue(t, "hot", n.get(coldTopic, "hot"), []byte("here"), "local")
				want(t, "absent", n.get(coldTopic, "nobody"), 404, "key_not_found")
				if a := n.do("HEAD", n.kv(coldTopic, coldKey(9)), nil, nil); a.status != 200 {
					t.Errorf("HEAD needs no store: %v", a)
				}
				var ready struct {
					Ready bool `json:"ready"`
				}
				n.adminJSON("GET", "/v1/status/ready", nil, 200, &ready)
				s.proxy.SetFault(nil)
				wantValue(t, "cold, the store is back", n.get(coldTopic, coldKey(9)), coldValue(9), "remote")
			})
		}
		t.Run("evict", func(t *testing.T) {
			n.in(t)
			s.proxy.SetFault(refuse(503, "ServiceUnavailable"))
			defer s.proxy.SetFault(nil)
			var a answer
			var took time.Duration
			for range 3 { // a machine that stands still shows nothing
				start := time.Now()
				a = n.do("POST", n.admin+"/v1/cloud_storage/evict/"+coldTopic+"/0", nil, object{"local_target_bytes": 0})
				if took = time.Since(start); took <= 11*time.Second {
					break
				}
			}
			if a.status != 503 || took > 11*time.Second {
				t.Errorf("evict without a store: %v after %v, want 503 within 10 s", a, took)
			}
			wantValue(t, "not evicted", n.get(coldTopic, "hot"), []byte("here"), "local")
			s.proxy.SetFault(nil)
			n.evict(coldTopic, 1)
			wantValue(t, "evicted", n.get(coldTopic, "hot"), []byte("here"), "remote")
		})
		n.stop()
	})
}

// TestDamagedObjects changes objects behind the node's back: 500 for what is
// gone or altered, never an altered value, never 404. Cases 3-25, 4-14, 7-06.
func TestDamagedObjects(t *testing.T) {
	eachBackend(t, func(t *testing.T, s *store) {
		n := startNode(t, s)
		n.setCluster(remoteRead, true)
		segment := func(topic string) string {
			n.indexed(topic, 1, map[string]string{"keyhole.remote.compression.type": "none"})
			n.fillCold(topic, 200)
			n.evict(topic, 1)
			for _, key := range s.objects(t) {
				if strings.HasPrefix(key, topic+"/") && path.Ext(key) == ".log" {
					return filepath.Join(s.dir, filepath.FromSlash(key))
				}
			}
			t.Fatalf("%s has no segment in the bucket", topic)
			return ""
		}
		flipped, gone := segment("flipped"), segment("gone")

		data, err := os.ReadFile(flipped)
		if err != nil {
			t.Fatal(err)
		}
		at := bytes.Index(data, coldValue(20))
		if at < 0 {
			t.Fatal("the value is not in the segment")
		}
		f, err := os.OpenFile(flipped, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{data[at+100] ^ 4}, int64(at+100)); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(gone); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time too: nothing damaged is cached
			want(t, "flipped", n.get("flipped", coldKey(20)), 500, "corrupt")
			want(t, "gone", n.get("gone", coldKey(20)), 500, "corrupt")
		}
		wantValue(t, "another chunk", n.get("flipped", coldKey(190)), coldValue(190), "remote")
		want(t, "absent", n.get("gone", "nobody"), 404, "key_not_found")
		counted := 0.0
		for name, value := range n.metrics() {
			if strings.HasPrefix(name, "keyhole_corruptions_total{") && strings.Contains(name, `tier="remote"`) {
				v, err := strconv.ParseFloat(value, 64)
				if err != nil {
					t.Fatal(err)
				}
				counted += v
			}
		}
		if counted < 2 {
			t.Errorf("%v corruptions counted, want 2 at least", counted)
		}
		if !strings.Contains(n.logs.String(), filepath.Base(flipped)) {
			t.Error("the log does not name the damaged object")
		}
	})
}

// TestStartWithoutStore starts nodes while the store is away or refuses: what is
// on disk is served, what is not known is 503, and nothing is taken for empty.
// Case 4-17.
func TestStartWithoutStore(t *testing.T) {
	s3Backends(t, func(t *testing.T, s *store) {
		n := coldNode(t, s)
		if a := n.do("PUT", n.kv(coldTopic, "hot"), nil, []byte("here")); a.status != 200 {
			t.Fatalf("put: %v", a)
		}
		n.stop()
		for _, c := range []struct {
			name  string
			fault s3test.Fault
		}{
			{"away", refuse(503, "ServiceUnavailable")},
			{"denied", refuse(403, "AccessDenied")},
		} {
			t.Run("known disk, store "+c.name, func(t *testing.T) {
				n.in(t)
				s.proxy.SetFault(c.fault)
				defer s.proxy.SetFault(nil)
				n.start()
				n.waitReady()
				wantValue(t, "hot", n.get(coldTopic, "hot"), []byte("here"), "local")
				want(t, "cold", n.get(coldTopic, coldKey(1)), 503, "store_unavailable")
				s.proxy.SetFault(nil)
				// Before anything is read the bucket has to prove that it is ours,
				// which is tried again with growing pauses.
				var a answer
				poll(t, "cold keys are served, the store is back", func() bool {
					a = n.get(coldTopic, coldKey(1))
					return a.status != 503
				})
				wantValue(t, "cold, the store is back", a, coldValue(1), "remote")
				n.stop()
			})
		}
		t.Run("empty disk, store away", func(t *testing.T) {
			s.proxy.SetFault(refuse(503, "ServiceUnavailable"))
			defer s.proxy.SetFault(nil)
			fresh := newNode(t, s)
			fresh.start()
			fresh.adminJSON("GET", "/v1/status/ready", nil, 503, nil)
			fresh.adminJSON("GET", "/v1/status/live", nil, 200, nil)
			want(t, "unknown topic", fresh.get(coldTopic, coldKey(1)), 503, "not_ready")
			s.proxy.SetFault(nil)
			fresh.waitReady()
			takesOver(t, fresh)
			fresh.stop()
		})
		t.Run("empty disk, store denies", func(t *testing.T) {
			s.proxy.SetFault(refuse(403, "AccessDenied"))
			defer s.proxy.SetFault(nil)
			r := runCLI(t, "", environment(s), append(newNode(t, s).args(), "--shutdown-timeout", "5s")...)
			if r.code != 1 || !strings.Contains(r.stderr, "keyhole: --object-store:") {
				t.Errorf("exit %d, want 1 and the reason:\n%s", r.code, r.stderr)
			}
		})
		t.Run("empty disk, manifest denied", func(t *testing.T) {
			before := s.manifest(t, coldTopic, 0)
			s.proxy.SetFault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if r.Method == "GET" && strings.HasSuffix(r.URL.Path, "/manifest.json") {
					s3test.Fail(w, 403, "AccessDenied")
					return
				}
				next.ServeHTTP(w, r)
			})
			defer s.proxy.SetFault(nil)
			s.proxy.ResetRequests()
			denied := func(r s3test.Request) bool {
				return r.Method == "GET" && strings.HasSuffix(r.Key, "/manifest.json")
			}
			fresh := newNode(t, s)
			fresh.start()
			poll(t, "the manifest was asked for twice", func() bool { return s.proxy.Count(denied) >= 2 })
			fresh.adminJSON("GET", "/v1/status/ready", nil, 503, nil)
			fresh.switchOn()
			want(t, "not claimed", fresh.get(coldTopic, coldKey(1)), 503, "not_ready")
			if a := fresh.do("PUT", fresh.kv(coldTopic, "k"), nil, []byte("v")); a.status != 503 {
				t.Errorf("write: %v, want 503", a)
			}
			writes := s.proxy.Count(func(r s3test.Request) bool {
				return r.Method != "GET" && r.Method != "HEAD" && strings.HasPrefix(r.Key, prefix+"/"+coldTopic+"/")
			})
			if writes > 0 || !bytes.Equal(before, s.manifest(t, coldTopic, 0)) {
				t.Errorf("%d writes to the topic whose manifest cannot be read", writes)
			}
			s.proxy.SetFault(nil)
			fresh.waitReady()
			takesOver(t, fresh)
			fresh.stop()
		})
	})
}

// takesOver switches everything on at a node that has found the topic in the
// bucket, and reads.
func takesOver(t *testing.T, n *node) {
	t.Helper()
	n.switchOn()
	n.setCluster(remoteRead, true)
	n.waitReady()
	for _, i := range []int{0, 1, 200, coldKeys - 1} {
		wantValue(t, "from the bucket", n.get(coldTopic, coldKey(i)), coldValue(i), "")
	}
	want(t, "absent", n.get(coldTopic, "nobody"), 404, "key_not_found")
}

// manifest is the manifest object of a partition, off the store's disk.
func (s *store) manifest(t testing.TB, topic string, partition int) []byte {
	t.Helper()
	for _, key := range s.objects(t) {
		if ok, _ := path.Match(fmt.Sprintf("%s/*/%d/manifest.json", topic, partition), key); ok {
			return s.object(t, key)
		}
	}
	t.Fatalf("%s/%d has no manifest", topic, partition)
	return nil
}

// TestUploadHeaders looks at what both clients send by default: nothing that a
// store of its own kind would stumble over. Case 4-02.
func TestUploadHeaders(t *testing.T) {
	s3Backends(t, func(t *testing.T, s *store) {
		coldNode(t, s).stop()
		puts := map[string]int{}
		for _, r := range s.proxy.Requests() {
			if r.Method != "PUT" {
				continue
			}
			puts[path.Base(strings.TrimLeft(path.Ext(r.Key), "."))]++
			for name, values := range r.Header {
				lower, value := strings.ToLower(name), strings.ToLower(strings.Join(values, ","))
				if strings.HasPrefix(lower, "x-amz-checksum") || strings.HasPrefix(lower, "x-amz-sdk-checksum") ||
					lower == "x-amz-trailer" || lower == "x-amz-decoded-content-length" || lower == "trailer" ||
					strings.Contains(value, "aws-chunked") || strings.Contains(value, "streaming-") {
					t.Errorf("PUT %s: %s: %s", r.Key, name, value)
				}
			}
		}
		for _, kind := range []string{"log", "index", "json"} {
			if puts[kind] == 0 {
				t.Errorf("no .%s object was put: %v", kind, puts)
			}
		}
	})
}
