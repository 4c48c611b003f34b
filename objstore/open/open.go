// Package open turns an object store URL into a bucket: it picks the driver and
// puts the wrappers around it that every store gets. It is the only package
// that knows all drivers.
package open

import (
	"context"
	"fmt"
	"time"

	"keyhole/objstore"
	"keyhole/objstore/dir"
	"keyhole/objstore/internal/s3conn"
	"keyhole/objstore/s3aws"
	"keyhole/objstore/s3minio"
)

// Options are the settings that are not in the URL. The zero value is usable.
type Options struct {
	// CAFile names a PEM file of certificate authorities trusted in addition
	// to the system's. Its usual source is KEYHOLE_S3_CA_FILE.
	CAFile string
	// ReadOnly opens the store for a node that must not change it, see
	// objstore.ReadOnly. A folder must be there.
	ReadOnly bool
	// Metrics, if set, counts every attempt.
	Metrics *objstore.Metrics
	// Retry bounds repetitions; zero fields take the defaults of
	// objstore.RetryOptions.
	Retry objstore.RetryOptions
	// StallTimeout and ReplyTimeout bound silence on a connection, default
	// 5 s within a body and 30 s before a reply.
	StallTimeout, ReplyTimeout time.Duration
}

// Bucket opens the store behind an object store URL (objstore.ParseURL) with
// retries and metrics. For S3 it makes no request, so it succeeds while the
// store is away; objstore.Probe is the check. Errors: ErrInvalid for the URL,
// ErrMisconfigured for the CA file and for a folder that is to be read and is not there, ErrDenied for unreadable shared credential
// files, or those of the file system for a folder.
func Bucket(ctx context.Context, rawURL string, o Options) (objstore.Bucket, error) {
	l, err := objstore.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	b, err := driver(ctx, l, o)
	if err != nil {
		return nil, err
	}
	if o.Metrics != nil {
		b = objstore.WithMetrics(b, o.Metrics)
		if o.Retry.OnRetry == nil {
			o.Retry.OnRetry = o.Metrics.CountRetry
		}
	}
	b = objstore.WithRetry(b, o.Retry)
	if o.ReadOnly {
		b = objstore.ReadOnly(b)
	}
	return b, nil
}

func driver(ctx context.Context, l objstore.Location, o Options) (objstore.Bucket, error) {
	if l.Dir != "" {
		return dir.Open(l.Dir, dir.Options{ReadOnly: o.ReadOnly})
	}
	conn, err := s3conn.New(s3conn.Options{CAFile: o.CAFile, StallTimeout: o.StallTimeout, ReplyTimeout: o.ReplyTimeout})
	if err != nil {
		return nil, err
	}
	id, err := s3conn.LoadIdentity(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", objstore.ErrDenied, err)
	}
	if l.Client == objstore.ClientMinIO {
		return s3minio.Open(l, id, conn, o.CAFile)
	}
	return s3aws.Open(l, id, conn, o.CAFile), nil
}
