package open_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"keyhole/internal/s3test"
	"keyhole/objstore"
	"keyhole/objstore/open"
)

// quick makes repetitions fast enough for tests without changing their number.
var quick = objstore.RetryOptions{BaseDelay: time.Millisecond, MaxDelay: 2 * time.Millisecond}

// faulty is a stub with one object, opened with one client.
func faulty(t *testing.T, client string, o open.Options) (*s3test.Stub, objstore.Bucket, []byte) {
	s3test.SetEnvironment(t)
	stub := s3test.StartStub(t)
	b := mustOpen(t, s3test.URL(stub.Endpoint, "p", client), o)
	data := make([]byte, 100_000)
	for i := range data {
		data[i] = byte(i ^ i>>8 ^ i>>16*7)
	}
	put(t, b, "seg.log", data)
	stub.ResetRequests()
	return stub, b, data
}

func put(t *testing.T, b objstore.Bucket, key string, data []byte) {
	t.Helper()
	if _, err := b.Put(t.Context(), key, bytes.NewReader(data), int64(len(data)), objstore.Condition{}); err != nil {
		t.Fatal(err)
	}
}

func wantIs(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error is %v, want %v", err, want)
	}
}

// onObject applies a fault to GETs of objects only.
func onObject(f s3test.Fault) s3test.Fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method == http.MethodGet && r.URL.Query().Get("list-type") == "" {
			f(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	}
}

// whole is a store that ignores Range: case 4-06.
func whole(known bool) s3test.Fault {
	return onObject(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		r.Header.Del("Range")
		if known {
			next.ServeHTTP(w, r)
			return
		}
		rec := httptest.NewRecorder()
		next.ServeHTTP(rec, r)
		for name, values := range rec.Header() {
			w.Header()[name] = values
		}
		w.Header().Del("Content-Length")
		w.WriteHeader(rec.Code)
		_ = http.NewResponseController(w).Flush() // from here on chunked, without a length
		_, _ = w.Write(rec.Body.Bytes())
	})
}

// reply is a store that answers a read with a fixed status, header and body.
func reply(status int, header map[string]string, body []byte) s3test.Fault {
	return onObject(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
		for name, value := range header {
			w.Header().Set(name, value)
		}
		w.WriteHeader(status)
		_, _ = w.Write(body)
	})
}

// TestReplies: what a ranged read of 1000 bytes at 5000 makes of odd replies.
func TestReplies(t *testing.T) {
	const off, n = 5000, 1000
	right := "bytes 5000-5999/100000"
	kilobyte := bytes.Repeat([]byte("x"), n)
	for _, c := range []struct {
		name     string
		fault    s3test.Fault
		want     error // nil: the right bytes
		requests int
	}{
		{"4-06 range ignored, size known", whole(true), nil, 1},
		{"4-06 range ignored, size unknown", whole(false), objstore.ErrUnusable, 1},
		{"4-06 200 of the range's length", reply(200, map[string]string{"Content-Length": "1000"}, kilobyte), objstore.ErrUnusable, 1},
		{"200 with Content-Range", reply(200, map[string]string{"Content-Length": "1000", "Content-Range": right}, kilobyte), objstore.ErrUnusable, 1},
		{"206 of another range", reply(206, map[string]string{"Content-Range": "bytes 5001-6000/100000"}, kilobyte), objstore.ErrUnusable, 1},
		{"206 without Content-Range", reply(206, nil, kilobyte), objstore.ErrUnusable, 1},
		{"206 of several ranges", reply(206, map[string]string{"Content-Type": "multipart/byteranges; boundary=b"}, kilobyte), objstore.ErrUnusable, 1},
		{"4-08 empty object, as some write it", reply(206, map[string]string{"Content-Range": "bytes 0--1/0"}, nil), objstore.ErrUnusable, 1},
		{"4-09 short 206", reply(206, map[string]string{"Content-Range": "bytes 5000-5009/5010"}, kilobyte[:10]), objstore.ErrRange, 1},
		{"4-09 416", reply(416, nil, nil), objstore.ErrRange, 1},
		{"206 with a longer body", reply(206, map[string]string{"Content-Range": right, "Content-Length": "1001"}, bytes.Repeat([]byte("x"), 1001)), objstore.ErrUnavailable, 6},
		{"206 with a shorter body", reply(206, map[string]string{"Content-Range": right, "Content-Length": "999"}, kilobyte[:999]), objstore.ErrUnavailable, 6},
		{"4-12 stored gzip", reply(206, map[string]string{"Content-Range": right, "Content-Encoding": "gzip"}, kilobyte), objstore.ErrUnusable, 1},
		{"4-14 missing", reply(404, map[string]string{"Content-Type": "application/xml"}, []byte("<Error><Code>NoSuchKey</Code></Error>")), objstore.ErrNotFound, 3},
		{"404 of something else than a store", reply(404, map[string]string{"Content-Type": "text/html"}, []byte("<html>")), objstore.ErrMisconfigured, 1},
		{"4-17 403", reply(403, nil, []byte("<Error><Code>AccessDenied</Code></Error>")), objstore.ErrDenied, 1},
		{"403 without a body", reply(403, nil, nil), objstore.ErrDenied, 1},
		{"500", reply(500, nil, nil), objstore.ErrUnavailable, 6},
		{"500 without XML", reply(500, nil, []byte("oops")), objstore.ErrUnavailable, 6},
		{"429", reply(429, nil, nil), objstore.ErrUnavailable, 6},
		{"204", reply(204, nil, nil), objstore.ErrUnusable, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachClient(t, func(t *testing.T, client string) {
				stub, b, data := faulty(t, client, open.Options{Retry: quick})
				stub.SetFault(c.fault)
				got, err := b.ReadRange(t.Context(), "seg.log", off, n)
				wantIs(t, err, c.want)
				if c.want == nil && !bytes.Equal(got, data[off:off+n]) {
					t.Error("wrong bytes")
				}
				if c.want != nil && got != nil {
					t.Error("bytes and an error")
				}
				if c.want != nil && !errors.Is(c.want, objstore.ErrNotFound) && errors.Is(err, objstore.ErrNotFound) {
					t.Error("taken for a missing object")
				}
				if count := stub.Count(nil); count != c.requests {
					t.Errorf("%d requests, want %d", count, c.requests)
				}
			})
		})
	}
}

// case 4-02: the stub refuses chunked and trailing checksums; both uploads and
// both kinds of read work with the defaults.
func TestNoTrailers(t *testing.T) {
	eachClient(t, func(t *testing.T, client string) {
		stub, b, data := faulty(t, client, open.Options{Retry: quick})
		put(t, b, "manifest.json", []byte("{}"))
		put(t, b, "large.log", bytes.Repeat(data, 60)) // 6 MB
		if stored, _ := stub.Object("p/large.log"); !bytes.Equal(stored, bytes.Repeat(data, 60)) {
			t.Error("stored bytes differ")
		}
		if n := stub.Count(nil); n != 2 {
			t.Errorf("%d requests for 2 objects", n)
		}
		for _, r := range stub.Requests() {
			for name := range r.Header {
				if strings.Contains(strings.ToLower(name), "checksum") || strings.EqualFold(name, "Content-Encoding") {
					t.Errorf("%s of %s has the header %s", r.Method, r.Key, name)
				}
			}
		}
	})
}

// case 4-11: a reply that ends early, cleanly or not, is repeated; nothing of
// it is passed on.
func TestShortBodies(t *testing.T) {
	cut := func(clean bool) s3test.Fault {
		return onObject(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			rec := httptest.NewRecorder()
			next.ServeHTTP(rec, r)
			for name, values := range rec.Header() {
				w.Header()[name] = values
			}
			if clean {
				w.Header().Del("Content-Length")
			}
			w.WriteHeader(rec.Code)
			_, _ = w.Write(rec.Body.Bytes()[:rec.Body.Len()*38/100])
			_ = http.NewResponseController(w).Flush()
			if !clean {
				panic(http.ErrAbortHandler)
			}
		})
	}
	for _, clean := range []bool{true, false} {
		t.Run(fmt.Sprintf("clean=%v", clean), func(t *testing.T) {
			eachClient(t, func(t *testing.T, client string) {
				stub, b, data := faulty(t, client, open.Options{Retry: quick})
				stub.SetFault(cut(clean))
				got, err := b.ReadRange(t.Context(), "seg.log", 10, 90_000)
				wantIs(t, err, objstore.ErrUnavailable)
				if got != nil || stub.Count(nil) != 6 {
					t.Errorf("%d bytes after %d requests", len(got), stub.Count(nil))
				}
				_, _, err = b.Get(t.Context(), "seg.log", 1<<20)
				if !clean {
					wantIs(t, err, objstore.ErrUnavailable)
				}

				var calls atomic.Int32
				broken := cut(clean)
				stub.SetFault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
					if calls.Add(1) == 1 {
						broken(w, r, next)
						return
					}
					next.ServeHTTP(w, r)
				})
				got, err = b.ReadRange(t.Context(), "seg.log", 10, 90_000)
				if err != nil || !bytes.Equal(got, data[10:90_010]) {
					t.Errorf("second attempt whole: %d bytes, %v", len(got), err)
				}
			})
		})
	}
}

// case 4-15: throttling is waited out, or reported as what it is.
func TestSlowDown(t *testing.T) {
	eachClient(t, func(t *testing.T, client string) {
		stub, b, data := faulty(t, client, open.Options{Retry: quick})
		var left atomic.Int32
		stub.SetFault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if left.Add(-1) >= 0 {
				s3test.Fail(w, http.StatusServiceUnavailable, "SlowDown")
				return
			}
			next.ServeHTTP(w, r)
		})
		left.Store(3)
		got, err := b.ReadRange(t.Context(), "seg.log", 0, 10)
		if err != nil || !bytes.Equal(got, data[:10]) {
			t.Errorf("after three refusals: %v", err)
		}
		left.Store(3)
		put(t, b, "other.log", data)
		left.Store(1 << 30)
		_, err = b.ReadRange(t.Context(), "seg.log", 0, 10)
		wantIs(t, err, objstore.ErrUnavailable)

		// The store answered, so running out of time is its failure, not silence.
		const never = 100_000 * time.Hour // the pause before the next attempt would be too long
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		slow := mustOpen(t, s3test.URL(stub.Endpoint, "p", client), open.Options{Retry: objstore.RetryOptions{BaseDelay: never, MaxDelay: never}})
		_, err = slow.ReadRange(ctx, "seg.log", 0, 10)
		wantIs(t, err, objstore.ErrUnavailable)
		if errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v is also a deadline", err)
		}
	})
}

// case 4-35: an object that is not seen yet is asked for again, but a document
// that may be absent is not.
func TestNotSeenYet(t *testing.T) {
	eachClient(t, func(t *testing.T, client string) {
		stub, b, data := faulty(t, client, open.Options{Retry: quick})
		var left atomic.Int32
		stub.SetFault(onObject(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if left.Add(-1) >= 0 {
				s3test.Fail(w, http.StatusNotFound, "NoSuchKey")
				return
			}
			next.ServeHTTP(w, r)
		}))
		left.Store(2)
		got, err := b.ReadRange(t.Context(), "seg.log", 0, 10)
		if err != nil || !bytes.Equal(got, data[:10]) {
			t.Errorf("third attempt: %v", err)
		}
		left.Store(1)
		_, _, err = b.Get(t.Context(), "seg.log", 1<<20)
		wantIs(t, err, objstore.ErrNotFound)
	})
}
