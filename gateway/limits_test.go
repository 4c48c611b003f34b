package gateway

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

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
	told := 0
	for range refusalsAtOnce + 20 {
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
	if told == 0 {
		t.Error("nobody was told that there are too many")
	}
	if n := testutil.ToFloat64(ts.metrics.refused); n != refusalsAtOnce+20 {
		t.Errorf("%v refusals counted", n)
	}
	if r, err := answer(dial(t, ts.admin)); err != nil || r.status != http.StatusNotFound {
		t.Errorf("the admin listener: %v, %v", r, err)
	}
	if r, err := answer(held[0]); err != nil || r.status != http.StatusNotFound {
		t.Errorf("an open connection: %v, %v", r, err)
	}
	_ = held[1].Close()
	// The server notices a moment later.
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for {
		c := dial(t, ts.data)
		r, err := answer(c)
		if err == nil && r.status == http.StatusNotFound {
			return
		}
		_ = c.Close()
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("no place is free: %v, %v", r, err)
		}
	}
}
