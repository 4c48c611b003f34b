package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"keyhole/partition"
	"keyhole/record"
)

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return c
}

// drip writes a byte every interval until the other side ends the connection.
func drip(c net.Conn, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for range tick.C {
		if _, err := c.Write([]byte("x")); err != nil {
			return
		}
	}
}

// A body that trickles is cut, whether or not a handler reads it. Case 8-14.
func TestSlowBody(t *testing.T) {
	topic := newFakeTopic("t", 1)
	ts := start(t, newFakeTopics(topic), func(o *Options) { o.BodyGrace = 100 * time.Millisecond })
	for _, head := range []string{
		"PUT /kv/t/k HTTP/1.1\r\nContent-Length: 1000\r\n",
		"PUT /kv/t/k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n",
		"POST /topics/t HTTP/1.1\r\nContent-Length: 1000\r\nContent-Type: application/vnd.kafka.json.v2+json\r\n",
	} {
		c := dial(t, ts.data)
		_, _ = io.WriteString(c, head+"Host: x\r\n\r\n")
		var wg sync.WaitGroup
		wg.Go(func() { drip(c, 5*time.Millisecond) })
		r, err := readReply(bufio.NewReader(c), "PUT")
		if err != nil || r.status != http.StatusRequestTimeout && r.status != http.StatusBadRequest {
			t.Errorf("%q: %v, %v", head, r, err)
		}
		_, _ = io.Copy(io.Discard, c) // until the server ends it
		_ = c.Close()
		wg.Wait()
	}
	// Of these nobody reads the body; the answer is held back until it is clear
	// that the connection cannot be used again.
	for _, head := range []string{"GET /kv/t/absent HTTP/1.1\r\nContent-Length: 1000\r\n", "POST /nowhere HTTP/1.1\r\nContent-Length: 1000\r\n"} {
		c := dial(t, ts.data)
		_, _ = io.WriteString(c, head+"Host: x\r\n\r\n")
		var wg sync.WaitGroup
		wg.Go(func() { drip(c, 5*time.Millisecond) })
		if r, err := readReply(bufio.NewReader(c), "GET"); err != nil || r.status != http.StatusNotFound {
			t.Errorf("%q: %v, %v", head, r, err)
		}
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
		wg.Wait()
	}
	if topic.parts[0].appends != 0 {
		t.Error("a cut body was written")
	}
}

// A body that takes longer than the grace period but keeps the rate is taken, and
// the connection is good for the next request.
func TestSteadyBody(t *testing.T) {
	// A machine that stands still for longer than the grace period makes no steady body.
	for grace := 150 * time.Millisecond; !steadyBody(t, grace); grace *= 5 {
		if grace > 30*time.Second {
			t.Fatal("no body was steady")
		}
	}
}

// steadyBody sends ten pieces, five of them after the grace period. It gives false if
// the body was cut and that was not done steadily, or the grace period is so short that
// the server may not have been steady either.
func steadyBody(t *testing.T, grace time.Duration) bool {
	t.Helper()
	const pieces, size = 10, 1500
	pace := grace / 5
	topic := newFakeTopic("t", 1)
	ts := start(t, newFakeTopics(topic), func(o *Options) {
		o.BodyGrace = grace
		o.BodyRate = int64(size / 3 / pace.Seconds()) // a third of what is sent
	})
	c := dial(t, ts.data)
	_, _ = fmt.Fprintf(c, "PUT /kv/t/k HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", pieces*size)
	tick := time.NewTicker(pace)
	defer tick.Stop()
	begin := time.Now()
	for range pieces {
		<-tick.C
		_, _ = io.WriteString(c, strings.Repeat("v", size))
	}
	took := time.Since(begin)
	if took < grace*4/3 {
		t.Fatal("not a slow body")
	}
	steady := took < pieces*pace+grace/3
	br := bufio.NewReader(c)
	for _, next := range []string{"", "GET /kv/t/k HTTP/1.1\r\nHost: x\r\n\r\n"} {
		_, _ = io.WriteString(c, next)
		r, err := readOnConn(br)
		if (!steady || grace < 3*time.Second) && (err != nil || r.status != http.StatusOK) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		r.want(t, "steady body", http.StatusOK)
	}
	return true
}

// readOnConn reads one reply of several on a connection; it must have a length.
func readOnConn(br *bufio.Reader) (reply, error) {
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		return reply{}, err
	}
	body, err := io.ReadAll(resp.Body)
	return reply{status: resp.StatusCode, header: resp.Header, body: string(body)}, err
}

func TestSlowHead(t *testing.T) {
	ts := start(t, newFakeTopics(), func(o *Options) { o.HeaderTimeout = 50 * time.Millisecond })
	c := dial(t, ts.data)
	_, _ = io.WriteString(c, "GET /kv/t/k HTTP/1.1\r\nX-Slow: ")
	var wg sync.WaitGroup
	wg.Go(func() { drip(c, 5*time.Millisecond) })
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection was not cut")
	}
	_ = c.Close()
	wg.Wait()
}

// A client that reads slowly but steadily gets a large value whole, although that
// takes many times the time after which one that stands still is cut. Case 8-15.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const stall = 100 * time.Millisecond
		client, server := net.Pipe()
		defer client.Close()
		c := &slowConn{Conn: server, stall: stall}
		value := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB in 16 pieces
		var wg sync.WaitGroup
		wg.Go(func() {
			defer server.Close()
			if n, err := c.Write(value); err != nil || n != len(value) {
				t.Errorf("wrote %d of %d: %v", n, len(value), err)
			}
		})
		tick := time.NewTicker(stall / 4)
		defer tick.Stop()
		var got bytes.Buffer
		begin := time.Now()
		for {
			<-tick.C
			if _, err := io.CopyN(&got, client, writePiece); err != nil {
				break
			}
		}
		wg.Wait()
		if took := time.Since(begin); !bytes.Equal(got.Bytes(), value) || took < 3*stall {
			t.Errorf("got %d bytes in %v", got.Len(), took)
		}
	})
}

func TestStalledReader(t *testing.T) {
	topic := newFakeTopic("t", 1)
	topic.max = 64 << 20
	topic.set(0, record.Record{Key: []byte("k"), Value: make([]byte, 32<<20)})
	ts := start(t, newFakeTopics(topic), func(o *Options) { o.WriteStall = 100 * time.Millisecond })
	c := dial(t, ts.data)
	if err := c.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(c, "GET /kv/t/k HTTP/1.1\r\nHost: x\r\n\r\n")
	// Nobody reads, and yet the handler comes back from writing.
	waitFor(t, "the stalled request to end", func() bool {
		return metric(t, ts, `keyhole_http_requests_total{code="2xx",route="/kv/{topic}/{key}"}`) == "1"
	})
}

// waitFor polls, because what it waits for happens in net/http's goroutines.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for begun := time.Now(); ; {
		late := time.Since(begun) > patience // asked before: a pause in between is none of ok's
		if ok() {
			return
		}
		if late {
			t.Fatalf("timed out waiting for %s", what)
		}
		<-tick.C
	}
}

// metric gives the value of one series, "" if there is none.
func metric(t *testing.T, ts *testServer, series string) string {
	t.Helper()
	for line := range strings.Lines(raw(t, ts.admin, "GET", request("GET", "/metrics", "")).body) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// Bodies in flight share a budget: when it is spent, the next one is told to come
// again, and what was held is given back. Case 8-17.
func TestBodyBudget(t *testing.T) {
	topic := newFakeTopic("t", 1)
	ts := start(t, newFakeTopics(topic), func(o *Options) { o.MaxBodiesBytes = 40_000 })
	c := dial(t, ts.data)
	_, _ = io.WriteString(c, "PUT /kv/t/a HTTP/1.1\r\nHost: x\r\nContent-Length: 30000\r\n\r\n"+strings.Repeat("v", 29_999))
	waitFor(t, "the first body", func() bool { return ts.bodies.used.Load() == 30_001 })
	ts.do(http.MethodPut, "/kv/t/b", strings.Repeat("v", 20_000)).refused(t, "second body", 503, "overloaded", "too much request data in flight")
	ts.do(http.MethodPut, "/kv/t/b", "small").want(t, "small body", 200)
	_, _ = io.WriteString(c, "v")
	if r, err := readOnConn(bufio.NewReader(c)); err != nil || r.status != 200 {
		t.Fatalf("first body: %v, %v", r, err)
	}
	ts.do(http.MethodPut, "/kv/t/b", strings.Repeat("v", 20_000)).want(t, "afterwards", 200)
	if used := ts.bodies.used.Load(); used != 0 {
		t.Errorf("%d bytes are still held", used)
	}
	// What a request announces costs nothing before it has arrived.
	idle := dial(t, ts.data)
	_, _ = io.WriteString(idle, "PUT /kv/t/c HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n")
	waitFor(t, "the announced body", func() bool { return ts.bodies.used.Load() == firstBuffer })
}

// A bug in a handler is answered, counted and logged, and the server goes on.
func TestPanic(t *testing.T) {
	topic := newFakeTopic("t", 1)
	ts := start(t, newFakeTopics(topic))
	topic.parts[0].hold = func(context.Context) error { panic("a bug in the test") }
	ts.get("/kv/t/k").refused(t, "panic", 500, "internal", "internal error")
	topic.parts[0].hold = nil
	ts.get("/kv/t/k").refused(t, "afterwards", 404, "key_not_found", "key not found")
	if got := metric(t, ts, "keyhole_http_panics_total"); got != "1" {
		t.Errorf("panics counted: %q", got)
	}
	if logs := ts.logs.String(); !strings.Contains(logs, "a bug in the test") || !strings.Contains(logs, "fake_test.go") {
		t.Errorf("log lacks the panic or its place:\n%s", logs)
	}
}

// Requests have a deadline from their arrival on.
func TestLookupDeadline(t *testing.T) {
	topic := newFakeTopic("t", 1)
	topics := newFakeTopics(topic)
	topics.timeout = 20 * time.Millisecond
	ts := start(t, topics)
	topic.parts[0].hold = func(ctx context.Context) error {
		<-ctx.Done()
		return fmt.Errorf("read chunk: %w", ctx.Err())
	}
	ts.get("/kv/t/k").refused(t, "deadline", 504, "deadline", "deadline exceeded")
	// The wait that a client asks for comes on top.
	topic.parts[0].hold = func(ctx context.Context) error {
		if d, _ := ctx.Deadline(); time.Until(d) < 20*time.Second {
			return errors.New("deadline too early")
		}
		return partition.ErrPositionNotReached
	}
	ts.get("/kv/t/k?min_position=9&wait_ms=30000").refused(t, "wait", 503, "position_not_reached", "position not reached")
}

// A client that leaves is nobody's error: it ends the lookup and is counted apart.
func TestClientLeaves(t *testing.T) {
	topic := newFakeTopic("t", 1)
	ts := start(t, newFakeTopics(topic))
	entered := make(chan struct{})
	topic.parts[0].hold = func(ctx context.Context) error {
		close(entered)
		<-ctx.Done()
		return ctx.Err()
	}
	c := dial(t, ts.data)
	_, _ = io.WriteString(c, "GET /kv/t/k HTTP/1.1\r\nHost: x\r\n\r\n")
	<-entered
	_ = c.Close()
	waitFor(t, "the count", func() bool {
		return metric(t, ts, `keyhole_lookups_total{outcome="canceled",source="none"}`) == "1" &&
			metric(t, ts, `keyhole_http_requests_total{code="none",route="/kv/{topic}/{key}"}`) == "1"
	})
}

// Whatever clients send, the number of series stays the same. Case 8-11.
func TestMetricsBounded(t *testing.T) {
	topic := newFakeTopic("t", 2)
	ts := start(t, newFakeTopics(topic))
	series := func() (n int) {
		for line := range strings.Lines(raw(t, ts.admin, "GET", request("GET", "/metrics", "")).body) {
			if !strings.HasPrefix(line, "#") {
				n++
			}
		}
		return n
	}
	topic.set(0, record.Record{Key: []byte("k"), Value: []byte("v")})
	before := series()
	c := dial(t, ts.data)
	br := bufio.NewReader(c)
	for i := range 300 {
		for _, text := range []string{
			"GET /kv/t/key%d HTTP/1.1\r\nHost: x\r\n\r\n", "GET /path%d HTTP/1.1\r\nHost: x\r\n\r\n",
			"METHOD%d /kv/t/k HTTP/1.1\r\nHost: x\r\n\r\n", "GET /kv/topic%d/k HTTP/1.1\r\nHost: x\r\n\r\n",
			"GET /kv/t/k?partition=%d HTTP/1.1\r\nHost: host%[1]d\r\nX-Header-%[1]d: x\r\n\r\n",
		} {
			_, _ = fmt.Fprintf(c, text, i)
			if _, err := readOnConn(br); err != nil {
				t.Fatal(err)
			}
		}
	}
	if after := series(); after != before {
		t.Errorf("%d series became %d", before, after)
	}
	for name, want := range map[string]string{
		`keyhole_http_requests_total{code="4xx",route="other"}`:               "300",
		`keyhole_lookups_total{outcome="topic_not_found",source="none"}`:      "300",
		`keyhole_lookups_total{outcome="found",source="local"}`:               "1",
		`keyhole_lookup_seconds_count{source="local"}`:                        "1",
		`keyhole_http_requests_total{code="2xx",route="/kv/{topic}/{key}"}`:   "1",
		`keyhole_lookup_seconds_bucket{source="none",le="10"}`:                metric(t, ts, `keyhole_lookup_seconds_count{source="none"}`),
		`keyhole_lookups_total{outcome="remote_read_disabled",source="none"}`: "0",
		`keyhole_produce_records_total{outcome="accepted"}`:                   "0",
	} {
		if got := metric(t, ts, name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
}

// The log has one line a request at debug level, without the key.
func TestAccessLog(t *testing.T) {
	topic := newFakeTopic("t", 1)
	ts := start(t, newFakeTopics(topic))
	ts.get("/kv/t/personal-data")
	waitFor(t, "the line", func() bool { return strings.Contains(ts.logs.String(), "msg=request") })
	if logs := ts.logs.String(); !strings.Contains(logs, "route=/kv/{topic}/{key} status=404") || strings.Contains(logs, "personal-data") {
		t.Errorf("log: %s", logs)
	}
}
