package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// testServer is a Server on two loopback listeners.
type testServer struct {
	*Server
	t     *testing.T
	data  string
	admin string
	logs  *syncBuffer
	reg   *prometheus.Registry
}

// syncBuffer collects logs from several goroutines.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// patience bounds what must happen soon. It is never waited out when all is well, and
// generous, because the machine may be busy with other tests, or stand still for
// seconds.
const patience = 2 * time.Minute

func listen(tb testing.TB) net.Listener {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// start serves the topics until the test ends.
func start(t *testing.T, topics *fakeTopics, change ...func(*Options)) *testServer {
	t.Helper()
	ts := &testServer{t: t, logs: &syncBuffer{}, reg: prometheus.NewRegistry()}
	o := Options{
		Logger:     slog.New(slog.NewTextHandler(ts.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Registerer: ts.reg,
		Gatherer:   ts.reg,
	}
	for _, f := range change {
		f(&o)
	}
	ts.Server = newServer(o, topics)
	ts.serveUntilEnd()
	return ts
}

func (ts *testServer) serveUntilEnd() {
	data, admin := listen(ts.t), listen(ts.t)
	ts.data, ts.admin = data.Addr().String(), admin.Addr().String()
	ts.Start(data, admin)
	ts.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := ts.Shutdown(ctx); err != nil {
			ts.t.Errorf("shutdown: %v", err)
		}
	})
}

// reply is a response with its body read.
type reply struct {
	status  int
	header  http.Header
	body    string
	rawHead string // status line and headers as they came
}

func (r reply) String() string { return fmt.Sprintf("%s%.300q", r.rawHead, r.body) }

// jsonError is the member error of the body.
func (r reply) jsonError(t *testing.T) string {
	t.Helper()
	var body struct {
		Error string `json:"error"`
	}
	if err := json.Unmarshal([]byte(r.body), &body); err != nil {
		t.Fatalf("body is not JSON: %v\n%v", err, r)
	}
	return body.Error
}

// raw sends a request over a socket as it stands and reads one response.
func raw(t *testing.T, addr, method, text string) reply {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	// A server that refuses may do so while a long request is still on its way.
	_, _ = io.WriteString(c, text)
	r, err := readReply(bufio.NewReader(c), method)
	if err != nil {
		t.Fatalf("%.100q: %v", text, err)
	}
	return r
}

func readReply(br *bufio.Reader, method string) (reply, error) {
	var seen bytes.Buffer
	tee := bufio.NewReader(io.TeeReader(br, &seen))
	resp, err := http.ReadResponse(tee, &http.Request{Method: method})
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return reply{}, err
	}
	head, _, _ := strings.Cut(seen.String(), "\r\n\r\n")
	return reply{resp.StatusCode, resp.Header, string(body), head + "\r\n\r\n"}, nil
}

// do sends one request with the given target and header lines.
func (ts *testServer) do(method, target, body string, headers ...string) reply {
	ts.t.Helper()
	return raw(ts.t, ts.data, method, request(method, target, body, headers...))
}

func request(method, target, body string, headers ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n", method, target)
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	if body != "" || method == http.MethodPut || method == http.MethodPost {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(body))
	}
	return b.String() + "\r\n" + body
}

func (ts *testServer) get(target string, headers ...string) reply {
	ts.t.Helper()
	return ts.do(http.MethodGet, target, "", headers...)
}

// want fails unless the reply has the status.
func (r reply) want(t *testing.T, what string, status int) reply {
	t.Helper()
	if r.status != status {
		t.Fatalf("%s: status %d, want %d\n%v", what, r.status, status, r)
	}
	return r
}

// refused checks a refusal in the form of the lookup routes.
func (r reply) refused(t *testing.T, what string, status int, reason, message string) reply {
	t.Helper()
	r.want(t, what, status)
	if got := r.header.Get("X-Kv-Reason"); got != reason {
		t.Fatalf("%s: reason %q, want %q\n%v", what, got, reason, r)
	}
	if got := r.jsonError(t); got != message {
		t.Fatalf("%s: error %q, want %q", what, got, message)
	}
	if got := r.header.Get("Retry-After"); (status == 503) != (got == "1") {
		t.Fatalf("%s: status %d with Retry-After %q", what, status, got)
	}
	return r
}

// dialOrNil gives a connection, or nil if nobody listens.
func dialOrNil(addr string) net.Conn {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil
	}
	return c
}

func castagnoli(s string) uint32 {
	return crc32.Checksum([]byte(s), crc32.MakeTable(crc32.Castagnoli))
}
