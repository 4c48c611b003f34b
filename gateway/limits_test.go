package gateway

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// A connection beyond the bound is answered 503 and closed, however many come; a
// place that is given back can be taken, and the other listener has its own.
func TestMaxConnections(t *testing.T) {
	topic := newFakeTopic("t", 1)
	const bound = 4
	ts := start(t, newFakeTopics(topic), func(o *Options) { o.MaxConnections = bound })
	const ask = "GET /kv/t/absent HTTP/1.1\r\nHost: x\r\n\r\n"
	answer := func(c net.Conn) (reply, error) {
		_, _ = io.WriteString(c, ask)
		return readOnConn(bufio.NewReader(c))
	}
	var held []net.Conn
	for range bound {
		c := dial(t, ts.data)
		if r, err := answer(c); err != nil || r.status != http.StatusNotFound {
			t.Fatalf("within the bound: %v, %v", r, err)
		}
		held = append(held, c) // idle now
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	told, came := 0, 0
	for range 5 { // who does not ask for a second, as on a machine that stands still, is not told
		for range refusalsAtOnce + 20 {
			came++
			wg.Go(func() {
				c, err := net.Dial("tcp", ts.data)
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				r, err := answer(c)
				if err != nil {
					return // too many even to be told
				}
				if r.status != http.StatusServiceUnavailable || r.header.Get("Retry-After") == "" || r.header.Get("X-Kv-Reason") != reasonOverloaded {
					t.Errorf("beyond the bound: %v", r)
				}
				mu.Lock()
				defer mu.Unlock()
				told++
			})
		}
		wg.Wait()
		if told > 0 {
			break
		}
	}
	if told == 0 {
		t.Error("nobody was told that there are too many")
	}
	if n := testutil.ToFloat64(ts.metrics.refused); n != float64(came) {
		t.Errorf("%v refusals counted of %d", n, came)
	}
	if r, err := answer(dial(t, ts.admin)); err != nil || r.status != http.StatusNotFound {
		t.Errorf("the admin listener: %v, %v", r, err)
	}
	if r, err := answer(held[0]); err != nil || r.status != http.StatusNotFound {
		t.Errorf("an open connection: %v, %v", r, err)
	}
	_ = held[1].Close()
	waitFor(t, "a free place, which the server notices a moment later", func() bool {
		c := dial(t, ts.data)
		r, err := answer(c)
		if err == nil && r.status == http.StatusNotFound {
			return true
		}
		_ = c.Close()
		return false
	})
}
