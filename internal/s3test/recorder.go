package s3test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// Request is one request that reached a store.
type Request struct {
	Method string
	Key    string // below the bucket; empty for the bucket itself, as in a listing
	Query  string
	Header http.Header
	Time   time.Time
}

// IsRange says whether this is a ranged GET of an object.
func (r Request) IsRange() bool {
	return r.Method == http.MethodGet && r.Key != "" && r.Header.Get("Range") != ""
}

// IsList says whether this is a listing.
func (r Request) IsList() bool {
	return r.Method == http.MethodGet && r.Key == "" && strings.Contains(r.Query, "list-type=")
}

// recorder remembers requests; safe for parallel use.
type recorder struct {
	mu       sync.Mutex
	requests []Request
}

func (r *recorder) record(req *http.Request) {
	_, key, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, Request{
		Method: req.Method, Key: key, Query: req.URL.RawQuery, Header: req.Header.Clone(), Time: time.Now(),
	})
}

// Requests is a copy of all requests so far, in the order of their arrival.
func (r *recorder) Requests() []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Request(nil), r.requests...)
}

// Count says how many requests so far satisfy match; all if it is nil.
func (r *recorder) Count(match func(Request) bool) int {
	n := 0
	for _, req := range r.Requests() {
		if match == nil || match(req) {
			n++
		}
	}
	return n
}

// ResetRequests forgets all requests so far.
func (r *recorder) ResetRequests() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = nil
}

// Proxy passes requests on to a store, untouched, and records them.
type Proxy struct {
	recorder
	Endpoint string
	mu       struct {
		sync.Mutex
		delay time.Duration
		fault Fault
	}
}

// StartProxy puts a proxy in front of an endpoint until the test ends.
func StartProxy(t testing.TB, endpoint string) *Proxy {
	t.Helper()
	target, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{}
	transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 256}
	forward := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			// The client has signed the Host header, so it stays as it is.
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = target.Scheme, target.Host, r.In.Host
		},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		p.record(req)
		if fault := p.wait(req); fault != nil {
			fault(w, req, forward)
			return
		}
		forward.ServeHTTP(w, req)
	}))
	t.Cleanup(func() {
		server.Close()
		transport.CloseIdleConnections()
	})
	p.Endpoint = server.URL
	return p
}

// SetDelay holds back every later request for d: the latency of a remote store.
func (p *Proxy) SetDelay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.delay = d
}

// SetFault installs a fault for all later requests, whose proper answer is the
// store's; nil ends it. A request that a fault does not pass on never reaches
// the store, but is recorded.
func (p *Proxy) SetFault(f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.fault = f
}

// wait keeps the request for the delay and gives the fault for it.
func (p *Proxy) wait(req *http.Request) Fault {
	p.mu.Lock()
	d, fault := p.mu.delay, p.mu.fault
	p.mu.Unlock()
	if d == 0 {
		return fault
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-req.Context().Done():
	}
	return fault
}
