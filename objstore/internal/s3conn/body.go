package s3conn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"keyhole/objstore"
)

// RangeHeader is the value of the Range header for n bytes from off.
func RangeHeader(off, n int64) string { return fmt.Sprintf("bytes=%d-%d", off, off+n-1) }

// maxSkip bounds what is read and thrown away to reach a range in a reply that
// holds the whole object.
const maxSkip = 16 << 20

// ReadRange takes n bytes from off out of the reply to a ranged GET and closes
// body. Accepted are a 206 that says it is exactly this range, and a 200 whose
// length proves that it is the object from its first byte. Everything else is
// an error; memory is bounded by n.
func ReadRange(ctx context.Context, op, key string, r *Reply, body io.ReadCloser, off, n int64) (data []byte, err error) {
	defer func() { _ = body.Close() }() // nothing to learn: the bytes are here, or the call has failed
	fail := func(kind error, format string, args ...any) error {
		return &objstore.OpError{Op: op, Key: key, Kind: kind, Status: r.Status(), Detail: fmt.Sprintf(format, args...)}
	}
	h := r.Header()
	if err := plainEncoding(h); err != nil {
		return nil, fail(objstore.ErrUnusable, "%v", err)
	}
	length, known := contentLength(h)
	switch r.Status() {
	case http.StatusPartialContent:
		first, last, total, ok := parseContentRange(h.Get("Content-Range"))
		switch {
		case !ok:
			return nil, fail(objstore.ErrUnusable, "206 without a usable Content-Range")
		case first == off && last < off+n-1 && total == last+1:
			return nil, fail(objstore.ErrRange, "%d bytes at %d asked for, object has %d", n, off, total)
		case first != off || last != off+n-1:
			return nil, fail(objstore.ErrUnusable, "bytes %d-%d asked for, %d-%d offered", off, off+n-1, first, last)
		case known && length != n:
			return nil, fail(objstore.ErrUnavailable, "range of %d bytes, body of %d", n, length)
		}
	case http.StatusOK:
		switch {
		case h.Get("Content-Range") != "":
			return nil, fail(objstore.ErrUnusable, "200 with a Content-Range")
		case !known:
			return nil, fail(objstore.ErrUnusable, "store ignores ranges and does not say the object's size")
		case off+n > length && off > 0 && length == n:
			// Most likely the range, but nothing proves it.
			return nil, fail(objstore.ErrUnusable, "200 to a ranged request, which may be the range or the whole object")
		case off+n > length:
			return nil, fail(objstore.ErrRange, "%d bytes at %d asked for, object has %d", n, off, length)
		case off > maxSkip:
			return nil, fail(objstore.ErrUnusable, "store ignores ranges, and byte %d is too far from the start", off)
		}
		if skipped, err := io.CopyN(io.Discard, body, off); err != nil {
			return nil, short(ctx, op, key, r, skipped, off+n, err)
		}
	default:
		return nil, fail(objstore.ErrUnusable, "unexpected status")
	}

	data = make([]byte, n)
	if got, err := io.ReadFull(body, data); err != nil {
		return nil, short(ctx, op, key, r, int64(got), n, err)
	}
	if r.Status() == http.StatusPartialContent && !known {
		var one [1]byte
		if extra, _ := io.ReadFull(body, one[:]); extra != 0 {
			return nil, fail(objstore.ErrUnusable, "body is longer than the range of %d bytes", n)
		}
	}
	return data, nil
}

// ReadAll takes a whole object of at most maxBytes bytes out of the reply to a
// GET and closes body.
func ReadAll(ctx context.Context, op, key string, r *Reply, body io.ReadCloser, maxBytes int64) (data []byte, err error) {
	defer func() { _ = body.Close() }() // nothing to learn: the bytes are here, or the call has failed
	h := r.Header()
	fail := func(kind error, detail string) error {
		return &objstore.OpError{Op: op, Key: key, Kind: kind, Status: r.Status(), Detail: detail}
	}
	if err := plainEncoding(h); err != nil {
		return nil, fail(objstore.ErrUnusable, err.Error())
	}
	if r.Status() != http.StatusOK {
		return nil, fail(objstore.ErrUnusable, "unexpected status")
	}
	length, known := contentLength(h)
	if known && length > maxBytes {
		return nil, fail(objstore.ErrTooLarge, fmt.Sprintf("object has %d bytes, at most %d are allowed", length, maxBytes))
	}
	if known {
		data = make([]byte, length)
		if got, err := io.ReadFull(body, data); err != nil {
			return nil, short(ctx, op, key, r, int64(got), length, err)
		}
		return data, nil
	}
	data, err = io.ReadAll(io.LimitReader(body, maxBytes+1))
	if err != nil {
		return nil, short(ctx, op, key, r, int64(len(data)), -1, err)
	}
	if int64(len(data)) > maxBytes {
		return nil, fail(objstore.ErrTooLarge, fmt.Sprintf("object has more than the %d bytes allowed", maxBytes))
	}
	return data, nil
}

// short is a reply that ended early or broke.
func short(ctx context.Context, op, key string, r *Reply, got, want int64, err error) error {
	if ctx.Err() != nil {
		return &objstore.OpError{Op: op, Key: key, Kind: ctx.Err(), Status: r.Status()}
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	detail := fmt.Sprintf("reply broke off after %d bytes", got)
	if want >= 0 {
		detail += fmt.Sprintf(" of %d", want)
	}
	return &objstore.OpError{Op: op, Key: key, Kind: objstore.ErrUnavailable, Status: r.Status(), Detail: detail, Err: err}
}

// plainEncoding refuses objects that were stored, or are sent, in a coded form:
// the bytes asked for are then not the bytes that arrive.
func plainEncoding(h http.Header) error {
	if e := h.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return errors.New("object is sent with a content encoding")
	}
	return nil
}

func contentLength(h http.Header) (n int64, known bool) {
	n, err := strconv.ParseInt(h.Get("Content-Length"), 10, 64)
	return n, err == nil && n >= 0
}

// parseContentRange reads "bytes first-last/total"; total is -1 for "*".
func parseContentRange(s string) (first, last, total int64, ok bool) {
	s, ok = strings.CutPrefix(s, "bytes ")
	if !ok {
		return 0, 0, 0, false
	}
	span, size, ok1 := strings.Cut(s, "/")
	from, to, ok2 := strings.Cut(span, "-")
	if !ok1 || !ok2 {
		return 0, 0, 0, false
	}
	first, err1 := parseDecimal(from)
	last, err2 := parseDecimal(to)
	total = -1
	var err3 error
	if size != "*" {
		total, err3 = parseDecimal(size)
	}
	if err1 != nil || err2 != nil || err3 != nil || last < first || total >= 0 && last >= total {
		return 0, 0, 0, false
	}
	return first, last, total, true
}

func parseDecimal(s string) (int64, error) {
	n, err := strconv.ParseUint(s, 10, 63)
	return int64(n), err
}

// Upload lends a caller's body to a client library and takes it back: net/http
// may still read a request's body after its round trip has returned. After
// TakeBack, which waits for a read in progress, nothing is read any more and the
// caller's reader, which is not closed, is free.
type Upload struct {
	mu   sync.Mutex
	body io.ReadSeeker // nil once closed
	size int64
}

// NewUpload lends size bytes from the start of body.
func NewUpload(body io.ReadSeeker, size int64) *Upload { return &Upload{body: body, size: size} }

var errTakenBack = errors.New("upload is over")

func (u *Upload) Read(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.body == nil {
		return 0, errTakenBack
	}
	return u.body.Read(p)
}

// Seek implements io.Seeker.
func (u *Upload) Seek(offset int64, whence int) (int64, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.body == nil {
		return 0, errTakenBack
	}
	return u.body.Seek(offset, whence)
}

// TakeBack ends the loan. It is not named Close because client libraries close
// any body that can be closed.
func (u *Upload) TakeBack() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.body = nil
}

// Check says whether the body is exactly as long as declared and rewinds it.
// The error is objstore.ErrInvalid.
func (u *Upload) Check() error {
	end, err := u.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = u.Seek(0, io.SeekStart)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%w: body cannot be rewound: %w", objstore.ErrInvalid, err)
	case end != u.size:
		return fmt.Errorf("%w: body has %d bytes, %d are declared", objstore.ErrInvalid, end, u.size)
	}
	return nil
}
