// Package s3minio is the object store driver over minio-go/v7.
//
// The library addresses and signs. Its retries, its multipart and streaming
// uploads (which S3-compatible stores disagree about) and its lookups of the
// bucket's region (a request of its own) are not used: every call here is one
// request, and a missing object is known when the call returns, not at the
// first read of its body.
package s3minio

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/minio/minio-go/v7"

	"keyhole/objstore"
	"keyhole/objstore/internal/s3conn"
)

// Bucket implements objstore.Bucket.
type Bucket struct {
	client minio.Core
	conn   *s3conn.Conn
	keys   *s3conn.Keys
	target s3conn.Target
	secure bool
}

// Open prepares a bucket at l; it makes no request. The Bucket owns conn.
func Open(l objstore.Location, id s3conn.Identity, conn *s3conn.Conn, caFile string) (*Bucket, error) {
	region := s3conn.Region(l, id)
	host, secure := "s3."+region+".amazonaws.com", true
	if l.Endpoint != "" {
		u, err := url.Parse(l.Endpoint)
		if err != nil {
			return nil, fmt.Errorf("%w: endpoint", objstore.ErrInvalid)
		}
		host, secure = u.Host, u.Scheme == "https"
	}
	lookup := minio.BucketLookupDNS
	if l.PathStyle {
		lookup = minio.BucketLookupPath
	}
	client, err := minio.NewCore(host, &minio.Options{
		Creds:        newCredentials(id.Credentials),
		Secure:       secure,
		Transport:    conn.Transport(),
		Region:       region,
		BucketLookup: lookup,
		MaxRetries:   1, // one attempt
	})
	if err != nil {
		return nil, fmt.Errorf("%w: endpoint: %w", objstore.ErrInvalid, err)
	}
	return &Bucket{
		client: *client,
		conn:   conn,
		keys:   s3conn.NewKeys(l.Prefix),
		target: s3conn.Target{Bucket: l.Bucket, Host: host, Region: region, CAFile: caFile},
		secure: secure,
	}, nil
}

// ReadRange implements objstore.Bucket.
func (b *Bucket) ReadRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	const op = "read"
	if err := b.keys.Begin(op, key, objstore.CheckRange(key, off, n)); err != nil {
		return nil, err
	}
	var o minio.GetObjectOptions
	o.Set("Range", s3conn.RangeHeader(off, n))
	one, reply, end := s3conn.WithOneReply(ctx)
	defer end()
	body, _, _, err := b.client.GetObject(one, b.target.Bucket, b.keys.Full(key), o)
	if err != nil {
		return nil, b.target.Error(ctx, op, key, reply, err)
	}
	return s3conn.ReadRange(ctx, op, key, reply, body, off, n)
}

// Get implements objstore.Bucket.
func (b *Bucket) Get(ctx context.Context, key string, maxBytes int64) ([]byte, string, error) {
	return b.get(ctx, key, "", maxBytes, objstore.ValidKey(key))
}

// GetIfChanged implements objstore.Bucket.
func (b *Bucket) GetIfChanged(ctx context.Context, key, etag string, maxBytes int64) ([]byte, string, error) {
	return b.get(ctx, key, etag, maxBytes, objstore.CheckETag(key, etag))
}

func (b *Bucket) get(ctx context.Context, key, unless string, maxBytes int64, invalid error) ([]byte, string, error) {
	const op = "get"
	if err := b.keys.Begin(op, key, invalid); err != nil {
		return nil, "", err
	}
	var o minio.GetObjectOptions
	if unless != "" {
		o.Set("If-None-Match", unless)
	}
	one, reply, end := s3conn.WithOneReply(ctx)
	defer end()
	body, _, _, err := b.client.GetObject(one, b.target.Bucket, b.keys.Full(key), o)
	if err != nil {
		return nil, "", b.target.Error(ctx, op, key, reply, err)
	}
	data, err := s3conn.ReadAll(ctx, op, key, reply, body, maxBytes)
	return data, reply.ETag(), err
}

// Put implements objstore.Bucket. Over plain HTTP the body is hashed once and
// signed as a whole: without a hash the library would sign it in chunks, a form
// that not every store reads.
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
	sum := ""
	if !b.secure {
		h := sha256.New()
		if _, err := io.Copy(h, upload); err != nil {
			return "", fmt.Errorf("%w: body: %w", objstore.ErrInvalid, err)
		}
		sum = hex.EncodeToString(h.Sum(nil))
	}
	o := minio.PutObjectOptions{ContentType: "application/octet-stream", DisableContentSha256: true, DisableMultipart: true}
	if cond.IfMatch != "" {
		o.SetMatchETag(strings.Trim(cond.IfMatch, `"`))
	}
	if cond.IfNoneMatch {
		o.SetMatchETagExcept("*")
	}
	one, reply, end := s3conn.WithOneReply(ctx)
	defer end()
	if _, err := b.client.PutObject(one, b.target.Bucket, b.keys.Full(key), upload, size, "", sum, o); err != nil {
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
	one, reply, end := s3conn.WithOneReply(ctx)
	defer end()
	if err := b.client.RemoveObject(one, b.target.Bucket, b.keys.Full(key), minio.RemoveObjectOptions{}); err != nil {
		return s3conn.Gone(b.target.Error(ctx, op, key, reply, err))
	}
	return nil
}

// List implements objstore.Bucket.
func (b *Bucket) List(ctx context.Context, prefix string, fn func(objstore.Object) error) error {
	return b.list(ctx, prefix, true, nil, func(o minio.ObjectInfo) error {
		key, ours := b.keys.Relative(o.Key)
		if !ours {
			return nil
		}
		return fn(objstore.Object{Key: key, Size: o.Size, ModTime: o.LastModified})
	})
}

// ListPrefixes implements objstore.Bucket. The library delivers the objects of
// a page and then its folders, the latter in order over all pages.
func (b *Bucket) ListPrefixes(ctx context.Context, prefix string, fn func(string) error) error {
	return b.list(ctx, prefix, false, objstore.CheckPrefix(prefix), func(o minio.ObjectInfo) error {
		folder, ours := b.keys.RelativePrefix(o.Key, prefix)
		if !ours {
			return nil
		}
		return fn(folder)
	})
}

func (b *Bucket) list(ctx context.Context, prefix string, recursive bool, invalid error, fn func(minio.ObjectInfo) error) error {
	const op = "list"
	if err := b.keys.Begin(op, prefix, invalid); err != nil {
		return err
	}
	// The iterator ends without an error once its context is over, and goes in
	// circles with a store that repeats a page's token. Neither may pass for a
	// whole listing. Objects and folders ("…/") each come in order.
	one, reply, end := s3conn.WithOneReply(ctx)
	defer end()
	noOwner := false
	var last [2]string
	for o := range b.client.ListObjectsIter(one, b.target.Bucket, minio.ListObjectsOptions{
		Prefix: b.keys.Full(prefix), Recursive: recursive, FetchOwner: &noOwner,
	}) {
		switch {
		case minio.ToErrorResponse(o.Err).Code == minio.NotImplemented && reply.Status() == http.StatusOK:
			return s3conn.Truncated(op, prefix)
		case o.Err != nil:
			return b.target.Error(ctx, op, prefix, reply, o.Err)
		}
		sort := 0
		if strings.HasSuffix(o.Key, "/") {
			sort = 1
		}
		if o.Key <= last[sort] {
			return s3conn.Truncated(op, prefix)
		}
		last[sort] = o.Key
		if err := fn(o); err != nil {
			return err
		}
	}
	if err := one.Err(); err != nil {
		return b.target.Error(ctx, op, prefix, reply, err)
	}
	return nil
}

// Close implements objstore.Bucket.
func (b *Bucket) Close() error {
	b.keys.Close()
	b.conn.Close()
	return nil
}
