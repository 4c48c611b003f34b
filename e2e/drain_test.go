package e2e

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"keyhole/internal/s3test"
)

const (
	drainWindow = 5 * time.Second
	slowReads   = 4 // cold lookups that the store keeps waiting over the stop
	slowWrites  = 4 // writes whose bodies are half sent at the stop
)

// TestDrainUnderLoad sends SIGTERM to a node that reads, writes and evicts.
// Readiness goes first; new requests are served for as long as the drain window
// is open; what is in flight at its end finishes, however slow; everything that
// was answered is there after the restart; the exit code is 0. Case 8-08.
func TestDrainUnderLoad(t *testing.T) {
	s := openStore(t, "aws")
	n := newNode(t, s, "--drain-window", drainWindow.String(), "--shutdown-timeout", "10m", "--body-grace", "10m")
	n.start()
	n.waitReady()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	n.indexed("t", killPartitions, map[string]string{"segment.bytes": "8192", "retention.local.target.bytes": "16384"})
	n.setCluster(remoteRead, true)
	n.produceCold(coldTopic, coldKeys)
	n.evict(coldTopic, 1)
	l := newLedger("t", fmt.Sprint(seed), killKeys)

	var stopping atomic.Pointer[time.Time] // since when
	refused := refusals{byKind: map[string]int{}}
	clients := l.runLoad(n, seed, 4, 4, killPartitions, func(op string, a answer, err error) {
		if op == "evict" { // a chore may be given up
			return
		}
		kind, fair := refusal(a, err)
		refused.add(kind)
		if since := stopping.Load(); !fair || since == nil {
			t.Errorf("%s: %s before the stop or not a refusal: %v %v", op, kind, a, err)
		} else if time.Since(*since) < drainWindow {
			t.Errorf("%s: %s while the drain window is open: %v %v", op, kind, a, err)
		}
	})
	defer clients.stop()
	answered(t, l, 200)

	// What is in flight: lookups that wait for the store, and half a body each.
	release := make(chan struct{})
	s.proxy.SetFault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Header.Get("Range") != "" && isCold(r.URL.Path) {
			<-release
		}
		next.ServeHTTP(w, r)
	})
	s.proxy.ResetRequests()
	var slow sync.WaitGroup
	for i := range slowReads {
		slow.Go(func() {
			a, err := n.try("GET", n.kv(coldTopic, coldKey(i*coldKeys/slowReads)), nil, nil)
			if err != nil {
				t.Errorf("lookup in flight: %v", err)
				return
			}
			wantValue(t, "lookup in flight", a, coldValue(i*coldKeys/slowReads), "")
		})
	}
	poll(t, "the lookups read the store", func() bool {
		return s.proxy.Count(func(r s3test.Request) bool { return r.IsRange() && isCold(r.Key) }) >= slowReads
	})
	bodies := make([]*io.PipeWriter, slowWrites)
	for i := range bodies {
		r, w := io.Pipe()
		bodies[i] = w
		slow.Go(func() { slowPut(t, n, fmt.Sprintf("slow-%d", i), r) })
		if _, err := w.Write([]byte("first half, ")); err != nil {
			t.Fatal(err)
		}
	}

	term := time.Now()
	stopping.Store(&term)
	n.terminate()
	// The admin listener is there until the last request has ended.
	poll(t, "readiness goes", func() bool {
		a, err := n.try("GET", n.admin+"/v1/status/ready", nil, nil)
		return err == nil && a.status == 503
	})
	unready := time.Since(term)
	pause(t.Context(), time.Until(term.Add(drainWindow)))
	poll(t, "no new connections are taken", func() bool {
		c, err := net.DialTimeout("tcp", n.data[len("http://"):], time.Second)
		if err != nil {
			return true
		}
		c.Close()
		return false
	})
	closed := time.Since(term)
	select {
	case <-n.exited:
		t.Fatal("the node ended with requests in flight")
	default:
	}
	close(release)
	for _, w := range bodies {
		if _, err := w.Write([]byte("second half")); err != nil {
			t.Errorf("the second half of a body: %v", err)
		}
		w.Close()
	}
	slow.Wait()
	clients.stop()
	client.CloseIdleConnections()
	if code := n.wait(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	t.Logf("not ready after %v, closed after %v, ended after %v; refused by then: %v; %v",
		unready.Round(time.Millisecond), closed.Round(time.Millisecond), time.Since(term).Round(time.Millisecond), refused.byKind, l.totals())

	s.proxy.SetFault(nil)
	n.mustCheck("after a stop under load")
	n.start()
	n.waitReady()
	l.settle(t, n, "after the restart")
	for i := range slowWrites {
		wantValue(t, "write in flight", n.get("t", fmt.Sprintf("slow-%d", i)), []byte("first half, second half"), "")
	}
	client.CloseIdleConnections()
	n.stop()
}

// slowPut writes a key whose body comes as body gives it.
func slowPut(t *testing.T, n *node, key string, body io.ReadCloser) {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, n.kv("t", key), body)
	if err != nil {
		t.Error(err)
		return
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Errorf("write in flight: %v", err)
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("write in flight: %s", resp.Status)
	}
}

// isCold says whether an object of this path is the cold topic's.
func isCold(path string) bool { return slices.Contains(strings.Split(path, "/"), coldTopic) }

// refusals counts by kind.
type refusals struct {
	mu     sync.Mutex
	byKind map[string]int
}

func (r *refusals) add(kind string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byKind[kind]++
}

// refusal names what a client met, and says whether a server that stops may do
// that to it: not take the connection, answer 503 with Retry-After, or close a
// connection that it had not read a request from. The client cannot tell the
// last from a request that was dropped; that none was is seen in those in flight.
func refusal(a answer, err error) (kind string, fair bool) {
	var dial *net.OpError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial":
		return "not connected", true
	case err != nil:
		return "closed", true
	case a.status == 503 && a.header.Get("Retry-After") != "":
		return "503", true
	}
	return fmt.Sprint(a.status), false
}
