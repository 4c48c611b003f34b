package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"keyhole/objstore"
)

// What separates the store from its readers: the latency of a request and the
// rate of one stream, as measured between a machine and a bucket of its region.
const (
	storeLatency = 25 * time.Millisecond
	storeRate    = 93_000_000 // bytes a second
)

const (
	bucketName = "bench"
	accessKey  = "keyhole-bench"
	secretKey  = "keyhole-bench-secret-0123456789"
)

var storeEnv = []string{
	"AWS_ACCESS_KEY_ID=" + accessKey, "AWS_SECRET_ACCESS_KEY=" + secretKey, "AWS_SESSION_TOKEN=",
	"AWS_CONFIG_FILE=" + os.DevNull, "AWS_SHARED_CREDENTIALS_FILE=" + os.DevNull, "AWS_EC2_METADATA_DISABLED=true",
}

// errNoStore says that there is no S3 server on this machine.
var errNoStore = errors.New("versitygw is not there: set KEYHOLE_VERSITYGW, or put it into bin/ or PATH")

// store is a versitygw with a proxy in front of it.
type store struct {
	process
	dir   string // the bucket's folder
	proxy *proxy
}

func (b *bench) startStore(ctx context.Context, name string) (*store, error) {
	program, ok := findVersitygw()
	if !ok {
		return nil, errNoStore
	}
	root := filepath.Join(b.dir, name)
	s := &store{dir: filepath.Join(root, bucketName)}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, err
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	s.addr = addr
	s.cmd = exec.Command(program, "--access", accessKey, "--secret", secretKey, "--port", addr, "--keep-alive", "--quiet", "posix", root)
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	err = poll(ctx, 20*time.Second, "versitygw answers", func() (bool, error) {
		resp, err := http.Get("http://" + addr)
		if err != nil {
			return false, nil
		}
		return true, resp.Body.Close()
	})
	if err == nil {
		s.proxy, err = startProxy(addr)
	}
	if err != nil {
		s.process.stop()
		return nil, err
	}
	return s, nil
}

func (s *store) stop() {
	s.proxy.stop()
	s.process.stop()
}

// url is the object store URL through the proxy.
func (s *store) url(client objstore.Client) string {
	q := url.Values{"endpoint": {"http://" + s.proxy.addr}, "region": {"us-east-1"}, "path_style": {"true"}, "client": {string(client)}}
	return (&url.URL{Scheme: "s3", Host: bucketName, RawQuery: q.Encode()}).String()
}

func findVersitygw() (string, bool) {
	if program := os.Getenv("KEYHOLE_VERSITYGW"); program != "" {
		return program, true
	}
	if program, err := filepath.Abs(filepath.Join("bin", "versitygw")); err == nil {
		if _, err := os.Stat(program); err == nil {
			return program, true
		}
	}
	program, err := exec.LookPath("versitygw")
	return program, err == nil
}

// span is a ranged GET.
type span struct {
	key    string // below the bucket
	off, n int64
}

// proxy passes requests on to an S3 server as if that were far away, and counts
// them.
type proxy struct {
	addr   string
	server *http.Server
	served sync.WaitGroup
	near   atomic.Bool // the store is not far away now
	mu     struct {
		sync.Mutex
		requests int
		spans    []span
		bytes    int64 // of bodies that came from the store
	}
}

// arrived is the context key of a request's time of arrival.
type arrived struct{}

func startProxy(target string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{addr: l.Addr().String()}
	forward := &httputil.ReverseProxy{
		ErrorLog:  log.New(io.Discard, "", 0), // clients that give up are not our concern
		Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 256},
		Rewrite: func(r *httputil.ProxyRequest) {
			// The client has signed the Host header, so it stays as it is.
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", target, r.In.Host
		},
		// The time that the server behind takes is part of the latency, so that
		// its jitter does not show.
		ModifyResponse: func(r *http.Response) error {
			if at, ok := r.Request.Context().Value(arrived{}).(time.Time); ok {
				wait(r.Request.Context(), time.Until(at.Add(storeLatency)))
			}
			return nil
		},
	}
	p.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.count(r)
		slow := &slowWriter{ResponseWriter: w, p: p, ctx: r.Context()}
		if !p.near.Load() {
			slow.rate = storeRate
			r = r.WithContext(context.WithValue(r.Context(), arrived{}, time.Now()))
		}
		forward.ServeHTTP(slow, r)
	})}
	p.served.Go(func() { _ = p.server.Serve(l) }) // it ends by stop
	return p, nil
}

func (p *proxy) stop() {
	_ = p.server.Close()
	p.served.Wait()
}

func (p *proxy) count(r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.requests++
	_, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if s, ok := parseRange(r.Header.Get("Range")); ok && r.Method == http.MethodGet {
		s.key = key
		p.mu.spans = append(p.mu.spans, s)
	}
}

func parseRange(header string) (s span, ok bool) {
	first, last, ok := strings.Cut(strings.TrimPrefix(header, "bytes="), "-")
	if !ok {
		return s, false
	}
	from, err1 := strconv.ParseInt(first, 10, 64)
	to, err2 := strconv.ParseInt(last, 10, 64)
	return span{off: from, n: to - from + 1}, err1 == nil && err2 == nil
}

// traffic is what has reached the store since the last call of take.
type traffic struct {
	requests int
	spans    []span
	bytes    int64
}

func (p *proxy) take() traffic {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := traffic{p.mu.requests, p.mu.spans, p.mu.bytes}
	p.mu.requests, p.mu.spans, p.mu.bytes = 0, nil, 0
	return t
}

// quiet waits until the store is left alone.
func (p *proxy) quiet(ctx context.Context) error {
	p.take()
	idle := 0
	return poll(ctx, time.Minute, "the store is left alone", func() (bool, error) {
		if p.take().requests > 0 {
			idle = 0
		}
		idle++
		return idle > 25, nil
	})
}

func (p *proxy) addBytes(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.bytes += int64(n)
}

// slowWriter gives out a body at the rate of one stream.
type slowWriter struct {
	http.ResponseWriter
	p    *proxy
	ctx  context.Context
	rate int64 // bytes a second; 0: no limit

	began time.Time
	sent  int64
}

// Unwrap lets net/http find what the writer can do.
func (w *slowWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *slowWriter) Write(b []byte) (int, error) {
	w.p.addBytes(len(b))
	if w.began.IsZero() {
		w.began = time.Now()
	}
	if w.rate > 0 {
		w.sent += int64(len(b))
		wait(w.ctx, time.Until(w.began.Add(time.Duration(w.sent*int64(time.Second)/w.rate))))
	}
	return w.ResponseWriter.Write(b)
}

// wait returns after d or with ctx.
func wait(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// sizeOf adds up the files below dir with a suffix.
func sizeOf(dir, suffix string) (int64, error) {
	var sum int64
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, suffix) {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		sum += info.Size()
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("size of what is stored: %w", err)
	}
	return sum, nil
}
