package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/mux"
	"github.com/prometheus/client_golang/prometheus"

	"keyhole/catalog"
)

// Options are what New needs. Catalog, Logger, Registerer and Gatherer are
// required; a zero elsewhere means the default that is named.
type Options struct {
	Catalog    *catalog.Catalog
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Gatherer   prometheus.Gatherer // what /metrics shows

	// AdminHost is the host that the admin listener was asked to listen on. A
	// listener on loopback accepts it in the Host header besides the names of
	// loopback.
	AdminHost string

	MaxHeaderBytes int           // head of a request; 256 KiB: a key of 32 KiB, percent-encoded, and record headers
	MaxBodyBytes   int64         // body of a request; 64 MiB
	MaxBodiesBytes int64         // memory of all bodies in flight; 256 MiB
	HeaderTimeout  time.Duration // for the head of a request; 10 s
	BodyGrace      time.Duration // after it a body must keep BodyRate; 10 s
	BodyRate       int64         // bytes a second on the average; 1024
	WriteStall     time.Duration // a client that takes no byte of an answer for so long is cut; 60 s
	IdleTimeout    time.Duration // of a connection between requests; 3 min
	MaxConnections int           // open at once on each listener, idle ones too; 4096

	// DrainWindow is how long Shutdown goes on accepting requests after it has
	// turned readiness off, so that a balancer notices; zero: not at all.
	DrainWindow time.Duration
}

func (o *Options) setDefaults() {
	setDefault(&o.MaxHeaderBytes, 256<<10)
	setDefault(&o.MaxBodyBytes, 64<<20)
	setDefault(&o.MaxBodiesBytes, 256<<20)
	setDefault(&o.HeaderTimeout, 10*time.Second)
	setDefault(&o.BodyGrace, 10*time.Second)
	setDefault(&o.BodyRate, 1024)
	setDefault(&o.WriteStall, time.Minute)
	setDefault(&o.IdleTimeout, 3*time.Minute)
	setDefault(&o.MaxConnections, 4096)
}

func setDefault[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// headroomBytes is about what the garbage of requests adds to the memory of the
// process. A percentage (GOGC) would do the same for a small heap, and multiply
// the chunk cache of a large one.
const headroomBytes = 32 << 20

// Server answers on the data and the admin listener.
type Server struct {
	o       Options
	topics  topicSource
	metrics *metrics
	bodies  budget

	// ctx is the base of all requests; it ends when Shutdown gives up on those
	// still in flight.
	ctx    context.Context
	cancel context.CancelFunc

	// loopbackAdmin says that the admin listener is on loopback; set by Start.
	loopbackAdmin bool

	// headroom is never read or written, so it is address space and not memory.
	// The collector takes it for part of the live heap and lets so much more
	// garbage gather. Without it a node that holds little else than its mapped
	// log has a heap of a few MiB and collects it some ten times a second, for a
	// tenth of the processor time of a lookup.
	headroom []byte

	draining atomic.Bool
	data     *http.Server
	admin    *http.Server
	serving  sync.WaitGroup
	failed   chan error
	shutdown struct {
		sync.Once
		err error
	}
}

// New prepares a server; it registers its metrics with o.Registerer and opens
// nothing. The catalog stays the caller's, who closes it after Shutdown.
func New(o Options) *Server {
	return newServer(o, catalogTopics{o.Catalog})
}

func newServer(o Options, topics topicSource) *Server {
	o.setDefaults()
	s := &Server{
		o: o, topics: topics, metrics: newMetrics(o.Registerer), failed: make(chan error, 2),
		headroom: make([]byte, headroomBytes),
	}
	s.bodies = budget{limit: o.MaxBodiesBytes, gauge: s.metrics.bodyBytes}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.data = s.httpServer(s.dataRoutes())
	s.admin = s.httpServer(s.adminRoutes())
	return s
}

func (s *Server) httpServer(h http.Handler) *http.Server {
	var only1 http.Protocols
	only1.SetHTTP1(true)
	return &http.Server{
		Handler:           h,
		Protocols:         &only1,
		ReadHeaderTimeout: s.o.HeaderTimeout,
		IdleTimeout:       s.o.IdleTimeout,
		MaxHeaderBytes:    s.o.MaxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.o.Logger.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return s.ctx },
	}
}

// Start serves on both listeners, which it takes over, until Shutdown. It
// returns at once and is called once.
func (s *Server) Start(data, admin net.Listener) {
	tcp, ok := admin.Addr().(*net.TCPAddr)
	s.loopbackAdmin = ok && tcp.IP.IsLoopback()
	s.serve(s.data, data, "data")
	s.serve(s.admin, admin, "admin")
}

func (s *Server) serve(srv *http.Server, l net.Listener, name string) {
	bounded := &slowListener{
		Listener: l, stall: s.o.WriteStall, log: s.o.Logger, max: int64(s.o.MaxConnections),
		refusals: make(chan struct{}, refusalsAtOnce), telling: &s.serving, refused: s.metrics.refused,
	}
	s.serving.Go(func() {
		err := srv.Serve(bounded)
		if !errors.Is(err, http.ErrServerClosed) {
			s.failed <- fmt.Errorf("serve %s listener %s: %w", name, l.Addr(), err)
		}
	})
}

// Failed delivers the error of a listener that stopped by itself. Shutdown is
// still to be called.
func (s *Server) Failed() <-chan error { return s.failed }

// Shutdown stops in the order that clients behind a balancer need: readiness is
// off at once, requests are served on for the drain window, then no new ones are
// accepted and those in flight finish. The admin listener closes last, so that
// readiness and metrics can be seen until then. When ctx ends, whatever is still
// in flight is cut, and the error says so. Shutdown is idempotent; a second call
// waits for the first.
func (s *Server) Shutdown(ctx context.Context) error {
	s.shutdown.Do(func() { s.shutdown.err = s.stop(ctx) })
	return s.shutdown.err
}

func (s *Server) stop(ctx context.Context) error {
	s.draining.Store(true)
	if s.o.DrainWindow > 0 {
		window := time.NewTimer(s.o.DrainWindow)
		select {
		case <-window.C:
		case <-ctx.Done():
		}
		window.Stop()
	}
	var errs []error
	for _, srv := range [...]*http.Server{s.data, s.admin} {
		if err := srv.Shutdown(ctx); err != nil {
			s.cancel()
			errs = append(errs, fmt.Errorf("requests in flight were cut: %w", err), srv.Close())
		}
	}
	s.cancel()
	s.serving.Wait()
	return errors.Join(errs...)
}

// dataRoutes are the routes of the data listener.
func (s *Server) dataRoutes() http.Handler {
	r := mux.NewRouter().SkipClean(true)
	kv := methods{
		http.MethodGet: s.lookup, http.MethodHead: s.lookup,
		http.MethodPut: s.put, http.MethodDelete: s.delete,
	}
	// The hottest route first, and without a regular expression.
	r.MatcherFunc(func(r *http.Request, _ *mux.RouteMatch) bool { return underKV(r.URL) }).
		Handler(s.endpoint("/kv/{topic}/{key}", kv.serve))
	produce := methods{http.MethodPost: s.produce}
	s.handle(r, "/topics/{topic}", produce.serve)
	s.handle(r, "/topics/{topic}/partitions/{partition}", produce.serve)
	return s.routes(r)
}

// handle adds a route whose metrics label is its template.
func (s *Server) handle(r *mux.Router, template string, serve handlerFunc) {
	r.Path(template).Handler(s.endpoint(template, serve))
}

// routes answers by r, without cleaning any path.
func (s *Server) routes(r *mux.Router) http.Handler {
	r.NotFoundHandler = s.endpoint("other", func(w http.ResponseWriter, r *http.Request) int {
		return s.fail(w, r, errNoRoute)
	})
	return &dispatcher{router: r}
}

// dispatcher finds the handler of a request by a mux.Router. It asks for the
// match and calls the handler itself, because mux.Router.ServeHTTP copies the
// request twice to attach route and variables to its context, also where there
// are no variables.
type dispatcher struct {
	router  *mux.Router
	matches sync.Pool // of *mux.RouteMatch
}

// ServeHTTP implements http.Handler.
func (d *dispatcher) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m, _ := d.matches.Get().(*mux.RouteMatch)
	if m == nil {
		m = &mux.RouteMatch{}
	}
	d.router.Match(r, m) // always a handler: there is one for "not found"
	handler := m.Handler
	if len(m.Vars) > 0 {
		r = mux.SetURLVars(r, m.Vars)
		m.Vars = nil // the request has it now
	}
	*m = mux.RouteMatch{Vars: m.Vars}
	d.matches.Put(m)
	handler.ServeHTTP(w, r)
}
