package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// What keeps a node from being ready is told, whatever the status of the answer.
func TestHealthcheckSaysWhy(t *testing.T) {
	type answer struct {
		status int
		body   string
	}
	var now atomic.Pointer[answer]
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/status/ready" {
			http.NotFound(w, r)
			return
		}
		a := now.Load()
		w.WriteHeader(a.status)
		fmt.Fprintln(w, a.body)
	}))
	defer s.Close()
	env := []string{"KEYHOLE_ADMIN_URL=" + s.URL}
	const (
		unready  = `{"ready":false,"not_ready":[{"topic":"t","partition":0,"reason":"index is catching up"},{"reason":"bucket unknown"}],"degraded":["store away"],"damaged":[{"topic":"d","error":"bad"}]}`
		degraded = `{"ready":true,"not_ready":[],"degraded":["store away"],"damaged":[]}`
		draining = `{"ready":false,"not_ready":[],"degraded":[],"damaged":[],"draining":true}`
	)
	for _, c := range []struct {
		status   int
		body     string
		code     int
		out, err []string
	}{
		{503, unready, exitFailed, nil, []string{"not ready: t/0: index is catching up\n", "not ready: bucket unknown\n", "degraded: store away\n", "damaged: d: bad\n"}},
		{200, degraded, exitDone, []string{"ready\n"}, []string{"degraded: store away\n"}},
		{503, draining, exitFailed, nil, []string{"not ready: stopping\n"}},
		{503, `{"error":"no","detail":"more"}`, exitFailed, nil, []string{"not ready: no: more (HTTP 503)"}},
		{200, `{}`, exitFailed, nil, []string{"not ready: the answer is not that of a node"}},
	} {
		now.Store(&answer{c.status, c.body})
		r := keyhole(t, env, nil, "healthcheck", "--timeout", "1m")
		for _, want := range c.err {
			r.want(t, c.code, strings.Join(c.out, ""), want)
		}
		if c.out == nil && r.stdout != "" {
			t.Errorf("%s: standard output has %q", c.body, r.stdout)
		}
		if strings.Contains(c.body, `"ready"`) {
			if r := keyhole(t, env, nil, "healthcheck", "--timeout", "1m", "--json"); r.code != c.code || r.stdout != c.body+"\n" {
				t.Errorf("--json: %d, %q, want %d and %s", r.code, r.stdout, c.code, c.body)
			}
		}
	}
}
