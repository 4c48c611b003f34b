package objstore

import (
	"context"
	"errors"
	"strconv"
	"strings"
)

// The classes of failure. Every error of a Bucket is one of them, a context
// error, or an error of the caller's own function.
var (
	// ErrNotFound: the store answered that there is no such object.
	ErrNotFound = errors.New("no such object")
	// ErrNotModified: the object still has the given ETag.
	ErrNotModified = errors.New("object not modified")
	// ErrPrecondition: the condition of a Put did not hold.
	ErrPrecondition = errors.New("condition of the write does not hold")
	// ErrUnavailable: unreachable, throttling, failing or breaking off; the
	// same request may succeed later.
	ErrUnavailable = errors.New("object store unavailable")
	// ErrDenied: the credentials do not allow it, or are missing or wrong.
	ErrDenied = errors.New("object store denies access")
	// ErrMisconfigured: no repetition helps before somebody changes the
	// settings: bucket, region, endpoint, certificate authority.
	ErrMisconfigured = errors.New("object store misconfigured")
	// ErrRange: the object is shorter than the range that was asked for.
	ErrRange = errors.New("object does not hold the range")
	// ErrTooLarge: the object is larger than the caller allowed.
	ErrTooLarge = errors.New("object too large")
	// ErrUnsupported: the store does not know this operation or condition.
	ErrUnsupported = errors.New("object store does not support this")
	// ErrUnusable: the reply cannot be trusted to be what was asked for, and
	// asking again would give the same: a store that ignores ranges of large
	// objects, an object stored with a content encoding, a bad request.
	ErrUnusable = errors.New("object store gave an unusable reply")
	// ErrInvalid: the caller's arguments make no sense; no request was made.
	ErrInvalid = errors.New("invalid object store request")
	// ErrClosed: the bucket was closed.
	ErrClosed = errors.New("object store closed")
)

// OpError is how drivers report a failure: what was tried, on what, the class,
// and what the store said. A store's own message text is left out on purpose:
// it may echo parts of the request.
type OpError struct {
	Op        string // get, put, …
	Key       string // relative to the bucket's prefix, or the prefix listed
	Kind      error  // one of the classes above, or a context error
	Status    int    // HTTP status, 0 if there was none
	Code      string // the store's error code, such as NoSuchKey
	RequestID string
	Detail    string // for the operator
	Err       error  // what lies beneath: network, TLS, file system
}

func (e *OpError) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Key != "" {
		b.WriteString(" " + strconv.Quote(e.Key))
	}
	b.WriteString(": " + e.Kind.Error())
	sep := " ("
	add := func(s string) {
		b.WriteString(sep + s)
		sep = ", "
	}
	if e.Status != 0 {
		add("status " + strconv.Itoa(e.Status))
	}
	if e.Code != "" {
		add("code " + e.Code)
	}
	if e.RequestID != "" {
		add("request " + e.RequestID)
	}
	if sep != " (" {
		b.WriteString(")")
	}
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	return b.String()
}

// Unwrap gives the class and the cause.
func (e *OpError) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// outcomes is the closed list of what a call can end in, in the order of
// precedence; its names are the values of the metric label "outcome".
var outcomes = []struct {
	name string
	err  error
}{
	{"not_found", ErrNotFound},
	{"not_modified", ErrNotModified},
	{"precondition", ErrPrecondition},
	{"denied", ErrDenied},
	{"misconfigured", ErrMisconfigured},
	{"range", ErrRange},
	{"too_large", ErrTooLarge},
	{"unsupported", ErrUnsupported},
	{"unusable", ErrUnusable},
	{"invalid", ErrInvalid},
	{"closed", ErrClosed},
	{"unavailable", ErrUnavailable},
	{"cancelled", context.Canceled},
	{"deadline", context.DeadlineExceeded},
}

const (
	outcomeOK    = "ok"
	outcomeOther = "other"
)

// outcome names the class of err for a metric or a log line.
func outcome(err error) string {
	if err == nil {
		return outcomeOK
	}
	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return o.name
		}
	}
	return outcomeOther
}
