package gateway

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"keyhole/record"
)

// A stop first says so (readiness itself is in admin_test.go), serves on during
// the window while it gives connections back, then lets what is in flight finish.
// Case 8-08.
func TestDrain(t *testing.T) {
	// A machine that stands still may let a window pass in which nothing was asked.
	for window := 300 * time.Millisecond; !drains(t, window); window *= 5 {
		if window > 30*time.Second {
			t.Fatal("no window was long enough")
		}
	}
}

// drains stops a server. It gives false if the window was over before all had been
// asked that it is for.
func drains(t *testing.T, window time.Duration) bool {
	t.Helper()
	topic := newFakeTopic("t", 1)
	topic.set(0, record.Record{Key: []byte("k"), Value: []byte("v")})
	ts := start(t, newFakeTopics(topic), func(o *Options) { o.DrainWindow = window })
	const ask = "GET /kv/t/k HTTP/1.1\r\nHost: x\r\n\r\n"

	old := dial(t, ts.data)
	br := bufio.NewReader(old)
	_, _ = io.WriteString(old, ask)
	if r, err := readOnConn(br); err != nil || r.status != 200 {
		t.Fatalf("before: %v, %v", r, err)
	}

	done := make(chan error, 1)
	begun := time.Now()
	inWindow := func() bool { return time.Since(begun) < window }
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		done <- ts.Shutdown(ctx)
	}()
	waitFor(t, "draining", ts.draining.Load)
	// The idle connection is still good for one request, which gives it back.
	_, _ = io.WriteString(old, ask)
	r, err := readOnConn(br)
	if !inWindow() {
		return false
	}
	if err != nil || r.status != 200 || r.body != "v" {
		t.Errorf("idle connection: %v, %v", r, err)
	}
	if _, err := br.ReadByte(); err != io.EOF {
		t.Errorf("the connection was not given back: %v", err)
	}
	// New connections are served.
	fresh := dialOrNil(ts.data)
	if fresh != nil {
		defer fresh.Close()
		_, _ = io.WriteString(fresh, ask)
		r, err = readReply(bufio.NewReader(fresh), "GET")
	}
	if !inWindow() {
		return false
	}
	if fresh == nil || err != nil || r.status != 200 || !strings.Contains(r.rawHead, "Connection: close") {
		t.Errorf("new connection: %v, %v", r, err)
	}
	// One request is in flight when the window ends.
	entered, leave := make(chan struct{}), make(chan struct{})
	topic.parts[0].mu.Lock()
	topic.parts[0].hold = func(context.Context) error { close(entered); <-leave; return nil }
	topic.parts[0].mu.Unlock()
	slow := dialOrNil(ts.data)
	if slow == nil {
		if inWindow() {
			t.Error("no new connection within the window")
		}
		return inWindow()
	}
	defer slow.Close()
	_, _ = io.WriteString(slow, ask)
	select {
	case <-entered:
	case <-done: // it came too late
		return false
	}
	waitFor(t, "the end of the window", func() bool {
		// Admin closes last: until then it can be asked.
		c := dialOrNil(ts.data)
		if c == nil {
			return true
		}
		_ = c.Close()
		return false
	})
	raw(t, ts.admin, "GET", request("GET", "/v1/status/live", "")).want(t, "admin while requests finish", 200)
	select {
	case err := <-done:
		t.Fatalf("shut down under a request: %v", err)
	default:
	}
	close(leave)
	if r, err := readOnConn(bufio.NewReader(slow)); err != nil || r.status != 200 || r.body != "v" {
		t.Errorf("request in flight: %v, %v", r, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if c := dialOrNil(ts.admin); c != nil {
		t.Error("the admin listener is still open")
	}
	return true
}

// What does not finish in time is cut: its context ends, and Shutdown says so.
func TestDrainBounded(t *testing.T) {
	topic := newFakeTopic("t", 1)
	ts := start(t, newFakeTopics(topic))
	entered, left := make(chan struct{}), make(chan struct{})
	topic.parts[0].hold = func(ctx context.Context) error {
		close(entered)
		<-ctx.Done()
		close(left)
		return ctx.Err()
	}
	c := dial(t, ts.data)
	_, _ = io.WriteString(c, "GET /kv/t/k HTTP/1.1\r\nHost: x\r\n\r\n")
	<-entered
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	err := ts.Shutdown(ctx)
	if err == nil || !strings.Contains(err.Error(), "cut") {
		t.Errorf("shutdown: %v", err)
	}
	<-left
	ts.shutdown.err = nil // told once; the harness asks again
}

// A listener that breaks is reported.
func TestListenerFails(t *testing.T) {
	ts := start(t, newFakeTopics())
	l := listen(t)
	ts.serve(&http.Server{}, l, "third")
	_ = l.Close()
	if err := <-ts.Failed(); err == nil || !strings.Contains(err.Error(), "third") {
		t.Errorf("failed: %v", err)
	}
}
