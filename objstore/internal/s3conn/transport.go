// Package s3conn is what both S3 drivers have in common below and around the
// client library: connections, credentials, the reading of replies and their
// classification. With it the two drivers cannot disagree about what a reply
// means.
//
//	driver ─▶ client library (signs) ─▶ tripper ─▶ http.Transport ─▶ store
//	                                      │ cuts stalls, notes status, headers
//	                                      ▼ and error code of the reply
//	driver ◀── Reply ─── classify() ── one class of objstore errors
package s3conn

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"keyhole/objstore"
)

// Options configure the connections of one bucket. Zero durations take the
// defaults named.
type Options struct {
	// CAFile names a PEM file of certificate authorities that are trusted in
	// addition to the system's. It is read once.
	CAFile string
	// StallTimeout cuts a reply or an upload that has begun and then moves no
	// byte for so long: 5 s.
	StallTimeout time.Duration
	// ReplyTimeout bounds the wait for the first byte of a reply once the
	// request is sent: 30 s. A store may need a while to finish an upload.
	ReplyTimeout time.Duration
}

// maxIdle is the number of idle connections kept. All of them go to one host,
// so net/http's default of two per host would open a connection for nearly
// every read under load.
const maxIdle = 512

// Conn makes and owns the connections of one bucket.
type Conn struct {
	base *http.Transport
	o    Options
}

// New prepares connections; it makes none. An unusable CA file is
// objstore.ErrMisconfigured and named in the error.
func New(o Options) (*Conn, error) {
	if o.StallTimeout == 0 {
		o.StallTimeout = 5 * time.Second
	}
	if o.ReplyTimeout == 0 {
		o.ReplyTimeout = 30 * time.Second
	}
	base := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second,
		MaxIdleConns:        maxIdle,
		MaxIdleConnsPerHost: maxIdle,
		IdleConnTimeout:     90 * time.Second,
		// Bytes must arrive as they are stored: positions count them.
		DisableCompression: true,
		WriteBufferSize:    64 << 10,
		ReadBufferSize:     64 << 10,
	}
	if o.CAFile != "" {
		pool, err := loadCAs(o.CAFile)
		if err != nil {
			return nil, err
		}
		base.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &Conn{base: base, o: o}, nil
}

func loadCAs(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%w: CA file: %w", objstore.ErrMisconfigured, err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil { // a machine without any is fine
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%w: CA file %s holds no certificate in PEM form", objstore.ErrMisconfigured, file)
	}
	return pool, nil
}

// Client is an HTTP client over these connections for a library that wants
// one. It follows no redirect: a followed request would need a new signature.
func (c *Conn) Client() *http.Client {
	return &http.Client{
		Transport:     c.Transport(),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Transport is the round tripper over these connections. It fills the Reply
// that its request's context carries.
func (c *Conn) Transport() http.RoundTripper { return &tripper{conn: c} }

// Close closes idle connections.
func (c *Conn) Close() { c.base.CloseIdleConnections() }
