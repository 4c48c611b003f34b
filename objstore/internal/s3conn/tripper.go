package s3conn

import (
	"bufio"
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// Reply is what the store answered to the last request made under a context.
// It belongs to one call: written by the transport, read by the driver once
// the client library has returned.
type Reply struct {
	mu     sync.Mutex // the library could leave a request behind
	status int        // 0 while there is no reply
	header http.Header
	code   string // error code of the reply's body
	region string // where the bucket lives, if the store told
	err    error  // why there is no reply, or why its body ended
	failed func() // called once a request has failed, may be nil
}

type replyKey struct{}

// WithReply gives a context whose requests report into the Reply.
func WithReply(ctx context.Context) (context.Context, *Reply) {
	r := &Reply{}
	return context.WithValue(ctx, replyKey{}, r), r
}

// WithOneReply is WithReply for a library that pauses after a failed request as
// if to repeat it, although it was told not to: the context is over as soon as
// a request under it has failed. The caller judges by its own context, and
// calls end when all bodies are read.
func WithOneReply(ctx context.Context) (one context.Context, r *Reply, end func()) {
	one, r = WithReply(ctx)
	one, cancel := context.WithCancel(one)
	r.failed = cancel
	return one, r, cancel
}

// Header is the reply's header, nil while there is no reply.
func (r *Reply) Header() http.Header {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.header
}

// Status is the reply's HTTP status, 0 while there is no reply.
func (r *Reply) Status() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// ETag is the object's ETag as the store wrote it, quotes included.
func (r *Reply) ETag() string { return r.Header().Get("ETag") }

func (r *Reply) set(status int, header http.Header, code, region string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status, r.header, r.code, r.region, r.err = status, header, code, region, err
	if r.failed != nil && (err != nil || status >= 300) {
		r.failed()
	}
}

func (r *Reply) setBroken(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

// stallError is a request that was cut because nothing moved. With no reply at
// all it counts as a deadline; a reply that broke off does not.
type stallError struct {
	after   time.Duration
	replied bool
}

func (e *stallError) Error() string {
	if e.replied {
		return fmt.Sprintf("reply stalled for %v", e.after)
	}
	return fmt.Sprintf("no reply within %v", e.after)
}

func (e *stallError) Unwrap() error {
	if e.replied {
		return nil
	}
	return context.DeadlineExceeded
}

// maxErrorBody bounds what is read of an error reply: S3's are about 300 bytes.
const maxErrorBody = 64 << 10

type tripper struct{ conn *Conn }

// RoundTrip makes one request, watching that bytes keep moving.
func (t *tripper) RoundTrip(req *http.Request) (*http.Response, error) {
	reply, _ := req.Context().Value(replyKey{}).(*Reply)
	if reply == nil {
		reply = &Reply{} // a request of the library's own
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	w := &watch{
		limit: t.conn.o.ReplyTimeout,
		timer: time.AfterFunc(t.conn.o.ReplyTimeout, func() {
			cancel(&stallError{after: t.conn.o.ReplyTimeout})
		}),
		stop: func() { cancel(nil) },
		ctx:  ctx,
	}
	watched := req.WithContext(ctx)
	if req.Body != nil && req.Body != http.NoBody {
		watched.Body = &watchedUpload{ReadCloser: req.Body, w: w}
	}
	resp, err := t.conn.base.RoundTrip(watched)
	if err != nil {
		err = w.cause(err)
		w.end()
		reply.set(0, nil, "", "", err)
		return nil, err
	}
	w.timer.Stop()
	resp.Body = newWatchedReply(resp.Body, reply, t.conn.o.StallTimeout, ctx, cancel)
	code, region := "", token(resp.Header.Get("X-Amz-Bucket-Region"))
	listing := req.Method == http.MethodGet && req.URL.Query().Has("list-type")
	foreign := resp.StatusCode < 300 && listing && !isListing(resp)
	if resp.StatusCode >= 300 || req.Method != http.MethodGet || foreign {
		doc := bufferError(resp)
		if resp.StatusCode < 300 && (doc.XMLName.Local != "" || foreign) {
			// A store that finds out late that it failed can only say so in
			// the body. Not every library looks there: one takes any document
			// for an empty listing.
			resp.StatusCode, resp.Status = http.StatusInternalServerError, "500 error in the body of a success"
		}
		code = token(doc.Code)
		if region == "" {
			region = token(doc.Region)
		}
	}
	reply.set(resp.StatusCode, resp.Header, code, region, nil)
	return resp, nil
}

// errorDocument is what S3 writes into the body of an error reply.
type errorDocument struct {
	XMLName xml.Name `xml:"Error"`
	Code    string   `xml:"Code"`
	Region  string   `xml:"Region"`
}

// bufferError reads a reply that is, or might be, an error and puts the bytes
// back for the library. The document is empty if the reply holds none.
func bufferError(resp *http.Response) errorDocument {
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	_ = resp.Body.Close() // what matters has been read
	resp.Body = io.NopCloser(bytes.NewReader(data))
	var doc errorDocument
	if err != nil || xml.Unmarshal(data, &doc) != nil {
		return errorDocument{}
	}
	return doc
}

// isListing looks at the beginning of the body, without consuming it.
func isListing(resp *http.Response) bool {
	ahead := bufio.NewReaderSize(resp.Body, 4<<10)
	start, _ := ahead.Peek(512) // what is there, if the body is shorter or breaks
	resp.Body = struct {
		io.Reader
		io.Closer
	}{ahead, resp.Body}
	d := xml.NewDecoder(bytes.NewReader(start))
	for {
		switch token, err := d.RawToken(); element := token.(type) {
		case xml.StartElement:
			return element.Name.Local == "ListBucketResult"
		default:
			if err != nil {
				return false
			}
		}
	}
}

// token keeps a word of the store printable and short.
func token(s string) string {
	if len(s) > 64 {
		return ""
	}
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.' {
			return ""
		}
	}
	return s
}

// watch guards one request until its reply begins.
type watch struct {
	ctx   context.Context
	limit time.Duration
	timer *time.Timer
	stop  func()
}

func (w *watch) progress() { w.timer.Reset(w.limit) }

func (w *watch) end() {
	w.timer.Stop()
	w.stop()
}

// cause is err, or the stall that led to it.
func (w *watch) cause(err error) error { return stallOr(w.ctx, err) }

func stallOr(ctx context.Context, err error) error {
	var stall *stallError
	if errors.As(context.Cause(ctx), &stall) {
		return stall
	}
	return err
}

// watchedUpload puts the limit off with each piece that is taken for sending.
type watchedUpload struct {
	io.ReadCloser
	w *watch
}

func (u *watchedUpload) Read(p []byte) (int, error) {
	if u.w.ctx.Err() == nil {
		u.w.progress()
	}
	return u.ReadCloser.Read(p)
}

// watchedReply cuts the reply if a read yields nothing for the limit.
type watchedReply struct {
	inner  io.ReadCloser
	reply  *Reply
	ctx    context.Context
	cancel context.CancelCauseFunc
	limit  time.Duration
	timer  *time.Timer
}

func newWatchedReply(inner io.ReadCloser, reply *Reply, limit time.Duration, ctx context.Context, cancel context.CancelCauseFunc) *watchedReply {
	timer := time.AfterFunc(limit, func() { cancel(&stallError{after: limit, replied: true}) })
	return &watchedReply{inner: inner, reply: reply, ctx: ctx, cancel: cancel, limit: limit, timer: timer}
}

func (r *watchedReply) Read(p []byte) (int, error) {
	n, err := r.inner.Read(p)
	switch {
	case err == nil:
		r.timer.Reset(r.limit)
	case errors.Is(err, io.EOF):
		r.timer.Stop()
	default:
		r.timer.Stop()
		err = stallOr(r.ctx, err)
		r.reply.setBroken(err)
	}
	return n, err
}

func (r *watchedReply) Close() error {
	r.timer.Stop()
	err := r.inner.Close()
	r.cancel(nil)
	return err
}
