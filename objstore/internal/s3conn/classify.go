package s3conn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"

	"keyhole/objstore"
)

// Target says where a bucket's requests go, for messages.
type Target struct {
	Bucket string
	Host   string // host[:port] of the endpoint
	Region string // that requests are signed for
	CAFile string
}

// CredentialsError marks a failure to come by credentials at all.
type CredentialsError struct{ Err error }

func (e *CredentialsError) Error() string { return "credentials: " + e.Err.Error() }

// Unwrap gives the cause.
func (e *CredentialsError) Unwrap() error { return e.Err }

// Error turns what a client library returned for one call into an
// *objstore.OpError. The class comes from the reply's status and code and from
// the types of errors.
func (t Target) Error(ctx context.Context, op, key string, r *Reply, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := &objstore.OpError{Op: op, Key: key, Status: r.status, Code: r.code}
	if r.header != nil {
		e.RequestID = token(r.header.Get("X-Amz-Request-Id"))
	}
	var noCredentials *CredentialsError
	switch {
	case r.status >= 300:
		e.Kind = t.kindOf(e, r)
	case ctx.Err() != nil:
		e.Kind = ctx.Err()
	case r.status != 0 && r.status != http.StatusOK && r.status != http.StatusPartialContent:
		e.Kind, e.Detail = objstore.ErrUnusable, "unexpected status"
	case r.status != 0:
		// A good status, but the body did not arrive or makes no sense. What
		// the library says about it may quote the body, so it is left out.
		e.Kind, e.Detail, e.Err = objstore.ErrUnavailable, "reply cannot be read", r.err
	case r.err != nil:
		e.Kind = t.kindOfTransport(e, r.err)
		e.Err = r.err
	case errors.As(err, &noCredentials):
		e.Kind, e.Err = objstore.ErrDenied, noCredentials
		e.Detail = "no usable credentials in the environment, shared files or role"
	default: // the library gave up before a request
		e.Kind, e.Err = objstore.ErrUnusable, err
	}
	return e
}

// PutError is Error for a put. That there is no object to match is a condition
// that does not hold.
func (t Target) PutError(ctx context.Context, op, key string, r *Reply, cond objstore.Condition, err error) error {
	err = t.Error(ctx, op, key, r, err)
	var e *objstore.OpError
	if cond.IfMatch != "" && errors.As(err, &e) && errors.Is(e.Kind, objstore.ErrNotFound) {
		e.Kind = objstore.ErrPrecondition
	}
	return err
}

// Gone takes the error of a delete: an absent object is success.
func Gone(err error) error {
	if errors.Is(err, objstore.ErrNotFound) {
		return nil
	}
	return err
}

// Truncated is the error for a listing that the store breaks off without a way
// to go on.
func Truncated(op, prefix string) error {
	return &objstore.OpError{Op: op, Key: prefix, Kind: objstore.ErrUnusable, Detail: "listing cannot be continued"}
}

// Region is the region to sign for: of the URL, else of the environment.
func Region(l objstore.Location, id Identity) string {
	switch {
	case l.Region != "":
		return l.Region
	case id.Region != "":
		return id.Region
	}
	return "us-east-1"
}

// kindOf classes an error reply. Codes come first where the status alone is
// ambiguous.
func (t Target) kindOf(e *objstore.OpError, r *Reply) error {
	switch r.code {
	case "RequestTimeTooSkewed", "RequestTimeout", "SlowDown", "OperationAborted", "ConditionalRequestConflict":
		// Skew: the aws library has learnt the store's clock from this reply,
		// and a clock that is being set will be right soon.
		return objstore.ErrUnavailable
	case "NotImplemented":
		return objstore.ErrUnsupported
	case "NoSuchBucket", "InvalidBucketName":
		e.Detail = fmt.Sprintf("bucket %s does not exist at %s", t.Bucket, t.Host)
		return objstore.ErrMisconfigured
	case "PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "InvalidRegion":
		e.Detail = t.wrongRegion(r)
		return objstore.ErrMisconfigured
	}
	switch {
	case r.status == http.StatusNotModified:
		return objstore.ErrNotModified
	case r.status < 400:
		e.Detail = t.wrongRegion(r)
		return objstore.ErrMisconfigured
	case r.status == http.StatusUnauthorized, r.status == http.StatusForbidden:
		e.Detail = fmt.Sprintf("bucket %s at %s", t.Bucket, t.Host)
		return objstore.ErrDenied
	case r.status == http.StatusNotFound && r.code == "NoSuchKey":
		return objstore.ErrNotFound
	case r.status == http.StatusNotFound:
		// Some other server, or a proxy on the way: nothing is known about
		// the object, least of all that it does not exist.
		e.Detail = t.Host + " answers, but not as an S3 store"
		return objstore.ErrMisconfigured
	case r.status == http.StatusPreconditionFailed:
		return objstore.ErrPrecondition
	case r.status == http.StatusRequestedRangeNotSatisfiable:
		return objstore.ErrRange
	case r.status == http.StatusNotImplemented, r.status == http.StatusMethodNotAllowed:
		return objstore.ErrUnsupported
	case r.status >= 500, r.status == http.StatusTooManyRequests, r.status == http.StatusRequestTimeout, r.status == http.StatusConflict:
		return objstore.ErrUnavailable
	}
	return objstore.ErrUnusable
}

func (t Target) wrongRegion(r *Reply) string {
	if r.region == "" {
		return fmt.Sprintf("bucket %s is not served by %s for region %s; check region and endpoint", t.Bucket, t.Host, t.Region)
	}
	return fmt.Sprintf("bucket %s is in region %s, configured is %s", t.Bucket, r.region, t.Region)
}

// kindOfTransport classes a request that got no reply.
func (t Target) kindOfTransport(e *objstore.OpError, err error) error {
	var certificate *tls.CertificateVerificationError
	var notTLS tls.RecordHeaderError
	var dns *net.DNSError
	switch {
	case errors.As(err, &certificate):
		e.Detail = fmt.Sprintf("certificate of %s is not accepted, ", t.Host)
		if t.CAFile == "" {
			e.Detail += "no CA file is set (KEYHOLE_S3_CA_FILE)"
		} else {
			e.Detail += "CA file is " + t.CAFile
		}
		return objstore.ErrMisconfigured
	case errors.As(err, &notTLS):
		e.Detail = t.Host + " does not speak TLS; an endpoint with http:// may be meant"
		return objstore.ErrMisconfigured
	case errors.As(err, &dns) && dns.IsNotFound:
		e.Detail = fmt.Sprintf("host of the endpoint (%s) or of the bucket is not known", t.Host)
	}
	return objstore.ErrUnavailable
}
