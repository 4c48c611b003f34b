package gateway

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// firstBuffer is the memory a body gets before its first byte has arrived.
const firstBuffer = 16 << 10

var (
	errBodyTooLarge = &requestError{status: http.StatusRequestEntityTooLarge, message: "request body too large"}
	errBodyTooSlow  = &requestError{status: http.StatusRequestTimeout, message: "request body arrives too slowly"}
	errBodyCut      = &requestError{status: http.StatusBadRequest, message: "request body ends early or is malformed"}
)

// budget bounds the memory of all bodies in flight together, so that many
// clients cannot do what one of them is not allowed to.
type budget struct {
	limit int64
	used  atomic.Int64
	gauge prometheus.Gauge
}

// take reserves n bytes (gives back, if negative) or fails with errOverloaded.
func (b *budget) take(n int64) error {
	if now := b.used.Add(n); n > 0 && now > b.limit {
		b.used.Add(-n)
		return errOverloaded
	}
	b.gauge.Add(float64(n))
	return nil
}

// readBody reads the request's body, at most limit bytes; an empty one is empty,
// never nil. Memory is spent as the
// bytes arrive, not as the head of the request announces them. The caller calls
// release once it no longer uses the body. Errors are of class invalid,
// errOverloaded, or an error of the connection.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request, limit int64) (body []byte, release func(), err error) {
	if r.ContentLength > limit {
		return nil, nil, errBodyTooLarge
	}
	held := int64(0)
	giveBack := func() { _ = s.bodies.take(-held) } // which cannot fail
	defer func() {
		if err != nil {
			giveBack()
		}
	}()
	in := &pacedReader{
		control: http.NewResponseController(w), body: http.MaxBytesReader(w, r.Body, limit),
		started: time.Now(), grace: s.o.BodyGrace, rate: s.o.BodyRate,
	}
	for {
		if len(body) == cap(body) {
			grow := max(int64(cap(body)), firstBuffer)
			if r.ContentLength >= 0 {
				// One byte more, so that the end is seen without growing again.
				grow = min(grow, r.ContentLength+1-int64(cap(body)))
			}
			grow = max(grow, 1)
			if err := s.bodies.take(grow); err != nil {
				return nil, nil, err
			}
			held += grow
			larger := make([]byte, len(body), int64(cap(body))+grow)
			copy(larger, body)
			body = larger
		}
		n, err := in.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if err == io.EOF {
			return body, giveBack, nil
		}
		if err != nil {
			return nil, nil, bodyError(err)
		}
	}
}

func bodyError(err error) error {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return errBodyTooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errBodyTooSlow
	}
	return errBodyCut
}

// pacedReader cuts a body that arrives too slowly: after the grace period at
// least rate bytes a second, on the average since it began. A deadline for the
// whole body would cut long healthy ones too.
type pacedReader struct {
	control *http.ResponseController
	body    io.Reader
	started time.Time
	grace   time.Duration
	rate    int64 // bytes a second
	read    int64
	set     time.Time // the read deadline in force
}

func (p *pacedReader) Read(b []byte) (int, error) {
	allowed := p.grace + time.Duration(float64(p.read)/float64(p.rate)*float64(time.Second))
	if deadline := p.started.Add(allowed); deadline.Sub(p.set) > p.grace/16 {
		p.set = deadline
		if err := p.control.SetReadDeadline(deadline); err != nil {
			return 0, err
		}
	}
	n, err := p.body.Read(b)
	p.read += int64(n)
	if err == io.EOF {
		// net/http reads ahead from here on, to notice a client that leaves;
		// that must not end with the body's deadline.
		_ = p.control.SetReadDeadline(time.Time{})
	}
	return n, err
}
