package gateway

import (
	"context"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// handlerFunc answers a request and gives the status it sent, 0 if it sent none
// because the client had gone. It decides everything before it writes anything.
type handlerFunc func(w http.ResponseWriter, r *http.Request) (status int)

// endpoint is one route: it keeps bugs from ending the process, bounds how long
// a body may take, counts and, at debug level, logs.
type endpoint struct {
	s        *Server
	route    string // the template, never a path
	serve    handlerFunc
	requests [len(codeClasses)]prometheus.Counter
}

func (s *Server) endpoint(route string, serve handlerFunc) *endpoint {
	return &endpoint{s: s, route: route, serve: serve, requests: s.metrics.forRoute(route)}
}

// ServeHTTP implements http.Handler.
func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if e.s.draining.Load() {
		// The connection is given back with the answer, so that none is idle,
		// and cut while its client begins the next request, at the end of the
		// drain window.
		w.Header().Set("Connection", "close")
	}
	if r.ContentLength != 0 {
		// Also for a body that nobody will read: net/http drains it. The error
		// says that the connection has gone, which reading will tell as well.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(e.s.o.BodyGrace))
	}
	status := e.guarded(w, r)
	e.requests[status/100].Inc()
	if e.s.o.Logger.Enabled(r.Context(), slog.LevelDebug) {
		e.s.o.Logger.LogAttrs(r.Context(), slog.LevelDebug, "request",
			slog.String("route", e.route), slog.Int("status", status), slog.String("client", r.RemoteAddr))
	}
}

func (e *endpoint) guarded(w http.ResponseWriter, r *http.Request) (status int) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if v == http.ErrAbortHandler {
			e.requests[0].Inc()
			panic(v)
		}
		e.s.metrics.panics.Inc()
		e.s.o.Logger.LogAttrs(context.Background(), slog.LevelError, "bug: request handler panicked",
			slog.String("route", e.route), slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
		status = classify(errPanic).write(w)
	}()
	return e.serve(w, r)
}

// methods answers by request method. HEAD is served by GET where it has no
// handler of its own; net/http leaves the body out. Other methods are 405.
type methods map[string]handlerFunc

func (m methods) serve(w http.ResponseWriter, r *http.Request) int {
	serve := m[r.Method]
	if serve == nil && r.Method == http.MethodHead {
		serve = m[http.MethodGet]
	}
	if serve == nil {
		return methodNotAllowed(w, m.allowed())
	}
	return serve(w, r)
}

func (m methods) allowed() string {
	var names []string
	for _, name := range [...]string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete} {
		if m[name] != nil || name == http.MethodHead && m[http.MethodGet] != nil {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

func methodNotAllowed(w http.ResponseWriter, allowed string) int {
	w.Header().Set("Allow", allowed)
	return outcome{status: http.StatusMethodNotAllowed, reason: reasonMethod, message: "method not allowed"}.write(w)
}
