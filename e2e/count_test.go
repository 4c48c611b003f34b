package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"keyhole/internal/s3test"
)

// coldTopic is a topic whose records are all in the bucket: keys k0000 … with
// values of a kibibyte, so that a chunk of the default size holds some dozens.
const (
	coldTopic = "cold"
	coldKeys  = 400
)

func coldKey(i int) string { return fmt.Sprintf("k%04d", i) }

func coldValue(i int) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "%04d ", i), 205)
}

// produceCold writes the records to a new topic in one request, so that they
// lie in the order of their numbers.
func (n *node) produceCold(topic string, keys int) {
	n.t.Helper()
	// Compaction, which would begin by itself, reads the bucket too.
	n.indexed(topic, 1, map[string]string{"min.compaction.lag.ms": "3600000"})
	n.fillCold(topic, keys)
}

// fillCold writes the records to a topic that is there.
func (n *node) fillCold(topic string, keys int) {
	n.t.Helper()
	records := make([]object, keys)
	for i := range records {
		records[i] = object{"key": []byte(coldKey(i)), "value": coldValue(i)}
	}
	n.produce(topic, records)
}

// produce sends records with base64 keys and values and wants all of them taken;
// it gives their partitions and offsets.
func (n *node) produce(topic string, records []object) []place {
	n.t.Helper()
	header := http.Header{"Content-Type": {"application/vnd.kafka.binary.v2+json"}}
	a := n.do("POST", n.data+"/topics/"+topic, header, object{"records": records})
	return placesOf(n.t, a, len(records))
}

func coldNode(t *testing.T, s *store) *node {
	t.Helper()
	n := startNode(t, s)
	n.produceCold(coldTopic, coldKeys)
	n.evict(coldTopic, 1)
	n.setCluster(remoteRead, true)
	settle(n)
	return n
}

// TestStoreRequests counts at the store what lookups cost there.
func TestStoreRequests(t *testing.T) {
	eachBackend(t, func(t *testing.T, s *store) {
		n := coldNode(t, s)
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 0))

		uncached := func(t *testing.T, what string, i int) {
			t.Helper()
			wantTraffic(t, what, s.during(n, func() {
				wantValue(t, what, n.get(coldTopic, coldKey(i)), coldValue(i), "remote")
			}), 1)
		}
		t.Run("uncached", func(t *testing.T) {
			n.in(t)
			for range 10 {
				n.trimCache()
				uncached(t, "uncached", rng.IntN(coldKeys))
			}
		})
		t.Run("every chunk once", func(t *testing.T) {
			n.in(t)
			n.trimCache()
			remote := 0
			got := s.during(n, func() {
				for _, i := range rng.Perm(coldKeys) {
					a := n.get(coldTopic, coldKey(i))
					wantValue(t, coldKey(i), a, coldValue(i), "")
					if a.header.Get("X-Kv-Source") == "remote" {
						remote++
					}
				}
			})
			wantTraffic(t, "all keys", got, remote)
			if remote < 2 || remote > coldKeys/10 {
				t.Errorf("%d chunks for %d keys of 1 KiB", remote, coldKeys)
			}
		})
		t.Run("nothing", func(t *testing.T) {
			n.in(t)
			n.trimCache()
			etag := n.get(coldTopic, coldKey(7)).header.Get("ETag")
			if a := n.do("DELETE", n.kv(coldTopic, coldKey(399)), nil, nil); a.status != 200 {
				t.Fatalf("delete: %v", a)
			}
			settle(n)
			wantTraffic(t, "cached, absent, tombstoned", s.during(n, func() {
				wantValue(t, "cached", n.get(coldTopic, coldKey(7)), coldValue(7), "cache")
				want(t, "absent", n.get(coldTopic, "nobody"), 404, "key_not_found")
				want(t, "tombstoned", n.get(coldTopic, coldKey(399)), 404, "key_not_found")
				want(t, "no topic", n.get("nowhere", "k"), 404, "topic_not_found")
			}), 0)
			n.trimCache()
			wantTraffic(t, "conditional and HEAD, uncached", s.during(n, func() {
				a := n.do("GET", n.kv(coldTopic, coldKey(7)), http.Header{"If-None-Match": {etag}}, nil)
				if a.status != 304 || len(a.body) != 0 {
					t.Errorf("If-None-Match: %v, want 304", a)
				}
				a = n.do("HEAD", n.kv(coldTopic, coldKey(7)), nil, nil)
				if a.status != 200 || a.header.Get("X-Kv-Source") != "remote" || a.header.Get("ETag") != etag || a.header.Get("X-Kv-Offset") != "7" {
					t.Errorf("HEAD: %v %v", a, a.header)
				}
				want(t, "HEAD absent", n.do("HEAD", n.kv(coldTopic, "nobody"), nil, nil), 404, "key_not_found")
			}), 0)
			uncached(t, "another ETag does not match", 7)
		})
		t.Run("switch off hides cached chunks", func(t *testing.T) { // case 8-02
			n.in(t)
			wantValue(t, "cached", n.get(coldTopic, coldKey(7)), coldValue(7), "cache")
			n.setCluster(remoteRead, false)
			wantTraffic(t, "off", s.during(n, func() {
				want(t, "cached", n.get(coldTopic, coldKey(7)), 404, "remote_read_disabled")
				want(t, "uncached", n.get(coldTopic, coldKey(300)), 404, "remote_read_disabled")
				want(t, "HEAD", n.do("HEAD", n.kv(coldTopic, coldKey(7)), nil, nil), 404, "remote_read_disabled")
				a := n.do("GET", n.kv(coldTopic, coldKey(7)), http.Header{"If-None-Match": {"*"}}, nil)
				want(t, "If-None-Match", a, 404, "remote_read_disabled")
			}), 0)
			n.setCluster(remoteRead, true)
			wantValue(t, "on again", n.get(coldTopic, coldKey(7)), coldValue(7), "")
		})
		t.Run("first after a restart", func(t *testing.T) {
			n.in(t)
			n.restart()
			settle(n)
			uncached(t, "first after a restart", 5)
			n.kill()
			n.start()
			n.waitReady()
			settle(n)
			uncached(t, "first after kill -9", 5)
		})
	})
}

// TestHerd lets many wait for one chunk. Cases 5-01 and 5-03.
func TestHerd(t *testing.T) {
	eachBackend(t, func(t *testing.T, s *store) {
		n := coldNode(t, s)
		if s.proxy != nil {
			s.proxy.SetDelay(30 * time.Millisecond) // so that they meet
		}
		// Neighbours of one batch share its chunk.
		for _, c := range []struct {
			name    string
			clients int
			key     func(i int) int
		}{
			{"one key", 50, func(int) int { return 3 }},
			{"keys of one chunk", 200, func(i int) int { return i % 10 }},
		} {
			n.trimCache()
			var remote atomic.Int32
			wantTraffic(t, c.name, s.during(n, func() {
				var wg sync.WaitGroup
				for i := range c.clients {
					wg.Go(func() {
						k := c.key(i)
						a, err := n.try("GET", n.kv(coldTopic, coldKey(k)), nil, nil)
						if err != nil || a.status != 200 || !bytes.Equal(a.body, coldValue(k)) {
							t.Errorf("%s: %v %v", c.name, a, err)
						}
						if a.header.Get("X-Kv-Source") == "remote" {
							remote.Add(1)
						}
					})
				}
				wg.Wait()
			}), 1)
			if remote.Load() == 0 {
				t.Errorf("%s: nobody says that the store was read", c.name)
			}
		}
		if s.proxy != nil {
			t.Run("the first leaves", func(t *testing.T) { firstLeaves(t, s, n) })
		}
	})
}

// firstLeaves disconnects the client that made the fetch begin; everybody else
// who waits for it is served by the same one.
func firstLeaves(t *testing.T, s *store, n *node) {
	n.in(t)
	n.trimCache()
	s.proxy.SetDelay(0)
	client.CloseIdleConnections()
	poll(t, "no connection is left", func() bool { return openConnections(t, n.data) == 0 })
	release := make(chan struct{})
	s.proxy.SetFault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		<-release
		next.ServeHTTP(w, r)
	})
	defer s.proxy.SetFault(nil)
	s.proxy.ResetRequests()
	waiting := func() float64 { return n.gauge("keyhole_chunk_cache_misses_total") }
	before := waiting()
	ranged := func() int { return s.proxy.Count(s3test.Request.IsRange) }

	ctx, leave := context.WithCancel(context.Background())
	first := make(chan error, 1)
	go func() {
		req, err := http.NewRequestWithContext(ctx, "GET", n.kv(coldTopic, coldKey(3)), nil)
		if err == nil {
			var resp *http.Response
			if resp, err = client.Do(req); err == nil {
				_, err = io.ReadAll(resp.Body)
				resp.Body.Close()
			}
		}
		first <- err
	}()
	poll(t, "the fetch begins", func() bool { return ranged() == 1 })
	var wg sync.WaitGroup
	for range 49 {
		wg.Go(func() {
			a, err := n.try("GET", n.kv(coldTopic, coldKey(3)), nil, nil)
			if err != nil || a.status != 200 || !bytes.Equal(a.body, coldValue(3)) {
				t.Errorf("who stayed: %v %v", a, err)
			}
		})
	}
	// The others have to be waiting before the first one leaves: none of them has found
	// the chunk.
	poll(t, "the others wait", func() bool { return waiting() >= before+50 })
	leave()
	if err := <-first; err == nil {
		t.Error("the first client was not cut")
	}
	close(release)
	wg.Wait()
	if got := ranged(); got != 1 {
		t.Errorf("%d ranged GETs, want 1", got)
	}
}

// place is where a record went.
type place struct {
	partition int32
	offset    int64
}
