// Package s3aws is the object store driver over aws-sdk-go-v2.
//
// The SDK is used for what it is good at, addressing and signing. Switched off
// or replaced are: its retries (objstore.WithRetry has the only ones), its
// default checksums (many compatible stores reject the trailers and chunked
// bodies they bring), its HTTP client, and its log lines. Every client of the
// process is built by newClient.
//
// The SDK signs the Accept-Encoding header, which Google Cloud Storage rewrites
// in transit. Use the minio client there.
package s3aws

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"
	"github.com/aws/smithy-go/middleware"

	"keyhole/objstore"
	"keyhole/objstore/internal/s3conn"
)

// Bucket implements objstore.Bucket.
type Bucket struct {
	client *s3.Client
	conn   *s3conn.Conn
	keys   *s3conn.Keys
	target s3conn.Target
}

// Open prepares a bucket at l; it makes no request. The Bucket owns conn.
func Open(l objstore.Location, id s3conn.Identity, conn *s3conn.Conn, caFile string) *Bucket {
	region := s3conn.Region(l, id)
	host := l.Bucket + ".s3." + region + ".amazonaws.com"
	if u, err := url.Parse(l.Endpoint); err == nil && u.Host != "" {
		host = u.Host
	}
	return &Bucket{
		client: newClient(l, region, id.Credentials, conn.Client()),
		conn:   conn,
		keys:   s3conn.NewKeys(l.Prefix),
		target: s3conn.Target{Bucket: l.Bucket, Host: host, Region: region, CAFile: caFile},
	}
}

func newClient(l objstore.Location, region string, creds aws.CredentialsProvider, client *http.Client) *s3.Client {
	o := s3.Options{
		Region:                     region,
		Credentials:                creds,
		HTTPClient:                 client,
		UsePathStyle:               l.PathStyle,
		Retryer:                    aws.NopRetryer{},
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
		Logger:                     logging.Nop{},
		DisableLogOutputChecksumValidationSkipped: true,
		// "Expect: 100-continue" costs a round trip, or a second with stores
		// that do not answer it.
		ContinueHeaderThresholdBytes: -1,
	}
	if l.Endpoint != "" {
		o.BaseEndpoint = aws.String(l.Endpoint)
	}
	if !strings.HasPrefix(l.Endpoint, "http://") {
		// TLS guards the body in transit; hashing it for the signature would
		// mean to read it twice.
		o.APIOptions = append(o.APIOptions, unsignedBodies)
	}
	return s3.New(o)
}

// unsignedBodies is for operations that have a body to sign.
func unsignedBodies(stack *middleware.Stack) error {
	return v4.SwapComputePayloadSHA256ForUnsignedPayloadMiddleware(stack)
}

// ReadRange implements objstore.Bucket.
func (b *Bucket) ReadRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	const op = "read"
	if err := b.keys.Begin(op, key, objstore.CheckRange(key, off, n)); err != nil {
		return nil, err
	}
	ctx, reply := s3conn.WithReply(ctx)
	out, err := b.client.GetObject(ctx, &s3.GetObjectInput{
		Bucket: &b.target.Bucket,
		Key:    aws.String(b.keys.Full(key)),
		Range:  aws.String(s3conn.RangeHeader(off, n)),
	})
	if err != nil {
		return nil, b.target.Error(ctx, op, key, reply, err)
	}
	return s3conn.ReadRange(ctx, op, key, reply, out.Body, off, n)
}

// Get implements objstore.Bucket.
func (b *Bucket) Get(ctx context.Context, key string, maxBytes int64) ([]byte, string, error) {
	return b.get(ctx, key, nil, maxBytes, objstore.ValidKey(key))
}

// GetIfChanged implements objstore.Bucket.
func (b *Bucket) GetIfChanged(ctx context.Context, key, etag string, maxBytes int64) ([]byte, string, error) {
	return b.get(ctx, key, &etag, maxBytes, objstore.CheckETag(key, etag))
}

func (b *Bucket) get(ctx context.Context, key string, unless *string, maxBytes int64, invalid error) ([]byte, string, error) {
	const op = "get"
	if err := b.keys.Begin(op, key, invalid); err != nil {
		return nil, "", err
	}
	ctx, reply := s3conn.WithReply(ctx)
	out, err := b.client.GetObject(ctx, &s3.GetObjectInput{
		Bucket:      &b.target.Bucket,
		Key:         aws.String(b.keys.Full(key)),
		IfNoneMatch: unless,
	})
	if err != nil {
		return nil, "", b.target.Error(ctx, op, key, reply, err)
	}
	data, err := s3conn.ReadAll(ctx, op, key, reply, out.Body, maxBytes)
	return data, reply.ETag(), err
}

// Put implements objstore.Bucket.
func (b *Bucket) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond objstore.Condition) (string, error) {
	const op = "put"
	if err := b.keys.Begin(op, key, objstore.CheckPut(key, size, cond)); err != nil {
		return "", err
	}
	upload := s3conn.NewUpload(body, size)
	defer upload.TakeBack()
	if err := upload.Check(); err != nil {
		return "", err
	}
	in := &s3.PutObjectInput{
		Bucket:        &b.target.Bucket,
		Key:           aws.String(b.keys.Full(key)),
		Body:          upload,
		ContentLength: &size,
		ContentType:   aws.String("application/octet-stream"),
	}
	if cond.IfMatch != "" {
		in.IfMatch = &cond.IfMatch
	}
	if cond.IfNoneMatch {
		in.IfNoneMatch = aws.String("*")
	}
	ctx, reply := s3conn.WithReply(ctx)
	if _, err := b.client.PutObject(ctx, in); err != nil {
		return "", b.target.PutError(ctx, op, key, reply, cond, err)
	}
	return reply.ETag(), nil
}

// Delete implements objstore.Bucket.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	const op = "delete"
	if err := b.keys.Begin(op, key, objstore.ValidKey(key)); err != nil {
		return err
	}
	ctx, reply := s3conn.WithReply(ctx)
	_, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.target.Bucket, Key: aws.String(b.keys.Full(key))})
	if err != nil {
		return s3conn.Gone(b.target.Error(ctx, op, key, reply, err))
	}
	return nil
}

// List implements objstore.Bucket.
func (b *Bucket) List(ctx context.Context, prefix string, fn func(objstore.Object) error) error {
	return b.pages(ctx, prefix, nil, nil, func(page *s3.ListObjectsV2Output) error {
		for _, o := range page.Contents {
			key, ours := b.keys.Relative(aws.ToString(o.Key))
			if !ours {
				continue
			}
			if err := fn(objstore.Object{Key: key, Size: aws.ToInt64(o.Size), ModTime: aws.ToTime(o.LastModified)}); err != nil {
				return err
			}
		}
		return nil
	})
}

// ListPrefixes implements objstore.Bucket.
func (b *Bucket) ListPrefixes(ctx context.Context, prefix string, fn func(string) error) error {
	return b.pages(ctx, prefix, aws.String("/"), objstore.CheckPrefix(prefix), func(page *s3.ListObjectsV2Output) error {
		for _, p := range page.CommonPrefixes {
			folder, ours := b.keys.RelativePrefix(aws.ToString(p.Prefix), prefix)
			if !ours {
				continue
			}
			if err := fn(folder); err != nil {
				return err
			}
		}
		return nil
	})
}

// pages hands over all pages of a listing. A store that says there is more but
// not how to get it ends in an error, never in a short listing.
func (b *Bucket) pages(ctx context.Context, prefix string, delimiter *string, invalid error, fn func(*s3.ListObjectsV2Output) error) error {
	const op = "list"
	if err := b.keys.Begin(op, prefix, invalid); err != nil {
		return err
	}
	in := &s3.ListObjectsV2Input{Bucket: &b.target.Bucket, Prefix: aws.String(b.keys.Full(prefix)), Delimiter: delimiter}
	for {
		pageCtx, reply := s3conn.WithReply(ctx)
		page, err := b.client.ListObjectsV2(pageCtx, in)
		if err != nil {
			return b.target.Error(ctx, op, prefix, reply, err)
		}
		if err := fn(page); err != nil {
			return err
		}
		if !aws.ToBool(page.IsTruncated) {
			return nil
		}
		next := aws.ToString(page.NextContinuationToken)
		if next == "" || next == aws.ToString(in.ContinuationToken) {
			return s3conn.Truncated(op, prefix)
		}
		in.ContinuationToken = &next
	}
}

// Close implements objstore.Bucket.
func (b *Bucket) Close() error {
	b.keys.Close()
	b.conn.Close()
	return nil
}
