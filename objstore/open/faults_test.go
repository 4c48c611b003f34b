package open_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
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
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		slow := mustOpen(t, s3test.URL(stub.Endpoint, "p", client), open.Options{Retry: objstore.RetryOptions{BaseDelay: time.Hour, MaxDelay: time.Hour}})
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

// case 4-17, and other refusals that must not look like an empty bucket.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name   string
		fault  s3test.Fault
		want   error
		detail string
	}{
		{"403", refuse(403, "AccessDenied"), objstore.ErrDenied, s3test.Bucket},
		{"no such bucket", refuse(404, "NoSuchBucket"), objstore.ErrMisconfigured, s3test.Bucket},
		{"signature", refuse(403, "SignatureDoesNotMatch"), objstore.ErrDenied, "SignatureDoesNotMatch"},
		{"4-21 region by redirect", func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("X-Amz-Bucket-Region", "eu-central-1")
			s3test.Fail(w, http.StatusMovedPermanently, "PermanentRedirect")
		}, objstore.ErrMisconfigured, "eu-central-1, configured is us-east-1"},
		{"4-21 region by body", func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-3</Region></Error>")
		}, objstore.ErrMisconfigured, "eu-west-3, configured is us-east-1"},
		{"4-21 redirect elsewhere", func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(http.StatusTemporaryRedirect)
		}, objstore.ErrMisconfigured, "us-east-1"},
		{"4-18 clock", refuse(403, "RequestTimeTooSkewed"), objstore.ErrUnavailable, "RequestTimeTooSkewed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachClient(t, func(t *testing.T, client string) {
				stub, b, _ := faulty(t, client, open.Options{Retry: quick})
				stub.SetFault(c.fault)
				_, readErr := b.ReadRange(t.Context(), "seg.log", 0, 1)
				_, _, getErr := b.Get(t.Context(), "manifest.json", 100)
				_, putErr := b.Put(t.Context(), "manifest.json", strings.NewReader("{}"), 2, objstore.Condition{IfNoneMatch: true})
				_, probeErr := objstore.Probe(t.Context(), b)
				errs := map[string]error{
					"read": readErr, "get": getErr, "put": putErr, "probe": probeErr,
					"delete": b.Delete(t.Context(), "seg.log"),
					"list":   b.List(t.Context(), "", func(objstore.Object) error { return nil }),
				}
				for op, err := range errs {
					if !errors.Is(err, c.want) || errors.Is(err, objstore.ErrNotFound) || !strings.Contains(fmt.Sprint(err), c.detail) {
						t.Errorf("%s: %v; want %v with %q", op, err, c.want, c.detail)
					}
				}
				stub.SetFault(nil)
				if _, ok := stub.Object("p/manifest.json"); ok {
					t.Error("something was stored")
				}
			})
		})
	}
}

func refuse(status int, code string) s3test.Fault {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { s3test.Fail(w, status, code) }
}

// case 4-26: stores without conditions are found out.
func TestProbeOfStoresWithoutConditions(t *testing.T) {
	for name, fault := range map[string]s3test.Fault{
		"501": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.Header.Get("If-Match") != "" || r.Header.Get("If-None-Match") != "" {
				s3test.Fail(w, http.StatusNotImplemented, "NotImplemented")
				return
			}
			next.ServeHTTP(w, r)
		},
		"ignored": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			r.Header.Del("If-Match")
			r.Header.Del("If-None-Match")
			next.ServeHTTP(w, r)
		},
		"If-Match ignored": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			r.Header.Del("If-Match")
			next.ServeHTTP(w, r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachClient(t, func(t *testing.T, client string) {
				stub, b, _ := faulty(t, client, open.Options{Retry: quick})
				stub.SetFault(fault)
				conditional, err := objstore.Probe(t.Context(), b)
				if conditional || err != nil {
					t.Errorf("probe says %v, %v", conditional, err)
				}
			})
		})
	}
}

// case 4-27: silence is cut, before the reply and within it, and on an upload
// that the store does not take; other calls go on.
func TestStalls(t *testing.T) {
	const limit = 200 * time.Millisecond
	half := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Range", "bytes 0-999/100000")
		w.Header().Set("Content-Length", "1000")
		w.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(make([]byte, 500))
		_ = http.NewResponseController(w).Flush()
	}
	eachClient(t, func(t *testing.T, client string) {
		stub, b, data := faulty(t, client, open.Options{Retry: quick, StallTimeout: limit, ReplyTimeout: limit})
		release := make(chan struct{})
		t.Cleanup(func() { close(release) }) // before the server closes
		stub.SetFault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			switch {
			case strings.HasSuffix(r.URL.Path, "half"):
				half(w, r)
			case !strings.HasSuffix(r.URL.Path, "silent"):
				next.ServeHTTP(w, r)
				return
			}
			select {
			case <-r.Context().Done():
			case <-release:
			}
		})
		start := time.Now()
		_, err := b.ReadRange(t.Context(), "half", 0, 1000)
		wantIs(t, err, objstore.ErrUnavailable)
		_, err = b.ReadRange(t.Context(), "silent", 0, 1000)
		wantIs(t, err, objstore.ErrUnavailable)
		big := bytes.Repeat(data, 100) // more than the socket buffers hold
		_, err = b.Put(t.Context(), "silent", bytes.NewReader(big), int64(len(big)), objstore.Condition{IfNoneMatch: true})
		wantIs(t, err, objstore.ErrUnavailable)
		if took := time.Since(start); took > 13*limit+20*time.Second {
			t.Errorf("took %v", took)
		}
		got, err := b.ReadRange(t.Context(), "seg.log", 0, 10)
		if err != nil || !bytes.Equal(got, data[:10]) {
			t.Errorf("another key: %v", err)
		}

		// A deadline that passes in silence is a deadline.
		ctx, cancel := context.WithTimeout(t.Context(), limit/2)
		defer cancel()
		_, err = b.ReadRange(ctx, "silent", 0, 1000)
		wantIs(t, err, context.DeadlineExceeded)
		if errors.Is(err, objstore.ErrUnavailable) {
			t.Errorf("%v is also a failure of the store", err)
		}
	})
}

// Nobody listens: the store is unavailable, quickly, and not "out of time".
func TestUnreachable(t *testing.T) {
	eachClient(t, func(t *testing.T, client string) {
		stub, b, _ := faulty(t, client, open.Options{Retry: quick})
		stub.Server.CloseClientConnections()
		stub.Server.Close()
		_, err := b.ReadRange(t.Context(), "seg.log", 0, 1)
		wantIs(t, err, objstore.ErrUnavailable)
		_, err = b.Put(t.Context(), "doc", strings.NewReader("x"), 1, objstore.Condition{IfNoneMatch: true})
		wantIs(t, err, objstore.ErrUnavailable)
	})
}

// case 4-29: parallel reads reuse their connections.
func TestConnectionsAreReused(t *testing.T) {
	const parallel, rounds = 50, 20
	eachClient(t, func(t *testing.T, client string) {
		stub, b, data := faulty(t, client, open.Options{Retry: quick})
		for range rounds {
			var wg sync.WaitGroup
			for i := range parallel {
				wg.Go(func() {
					off := int64(i * 100)
					got, err := b.ReadRange(t.Context(), "seg.log", off, 10_000)
					if err != nil || !bytes.Equal(got, data[off:off+10_000]) {
						t.Errorf("at %d: %v", off, err)
					}
				})
			}
			wg.Wait()
		}
		// Not one per read; a few more than are in use at once, because a
		// connection that is being dialled may lose its request to one that
		// came free.
		if n := stub.Connections(); n > 2*parallel {
			t.Errorf("%d connections for %d reads, %d at once", n, parallel*rounds, parallel)
		}
		if n := stub.Count(nil); n != parallel*rounds {
			t.Errorf("%d requests for %d reads", n, parallel*rounds)
		}
	})
}

// case 4-30: a listing that cannot go on is an error, not a short listing.
func TestTruncatedListing(t *testing.T) {
	eachClient(t, func(t *testing.T, client string) {
		stub, b, _ := faulty(t, client, open.Options{Retry: quick})
		for name, body := range map[string]string{
			"no token":   `<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>p/a</Key><Size>1</Size><LastModified>2026-01-02T03:04:05Z</LastModified></Contents></ListBucketResult>`,
			"same token": `<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken><Contents><Key>p/a</Key><Size>1</Size><LastModified>2026-01-02T03:04:05Z</LastModified></Contents></ListBucketResult>`,
		} {
			stub.SetFault(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
				w.Header().Set("Content-Length", strconv.Itoa(len(body)))
				fmt.Fprint(w, body)
			})
			err := b.List(t.Context(), "", func(objstore.Object) error { return nil })
			t.Log(name, err)
			wantIs(t, err, objstore.ErrUnusable)
		}
	})
}

// A listing that is given up between two pages must not look complete.
func TestListingCancelledBetweenPages(t *testing.T) {
	eachClient(t, func(t *testing.T, client string) {
		stub, b, data := faulty(t, client, open.Options{Retry: quick})
		put(t, b, "a", data)
		put(t, b, "b", data)
		stub.SetPageSize(1)
		ctx, cancel := context.WithCancel(t.Context())
		err := b.List(ctx, "", func(objstore.Object) error { cancel(); return nil })
		wantIs(t, err, context.Canceled)
	})
}

// case 4-32: an error in the body of a success is an error.
func TestErrorWithinSuccess(t *testing.T) {
	eachClient(t, func(t *testing.T, client string) {
		stub, b, _ := faulty(t, client, open.Options{Retry: quick})
		stub.SetFault(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("ETag", `"0123"`)
			s3test.Fail(w, http.StatusOK, "InternalError")
		})
		_, err := b.Put(t.Context(), "seg2.log", strings.NewReader("x"), 1, objstore.Condition{})
		wantIs(t, err, objstore.ErrUnavailable)
		wantIs(t, b.Delete(t.Context(), "seg.log"), objstore.ErrUnavailable)
		list := func() error { return b.List(t.Context(), "", func(objstore.Object) error { return nil }) }
		wantIs(t, list(), objstore.ErrUnavailable)
		for _, body := range []string{"", "<html><body>log in</body></html>", "<a>", "text", "<"} {
			stub.SetFault(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { fmt.Fprint(w, body) })
			if err := list(); !errors.Is(err, objstore.ErrUnavailable) {
				t.Errorf("%q is taken for a listing: %v", body, err)
			}
		}
	})
}

// case 4-18: the aws client learns from the store's refusal that a clock is off,
// and forgets it when the clocks agree again. The minio client has no such
// thing; with it the store is unavailable for so long, and recovers by itself.
func TestClockSkew(t *testing.T) {
	eachClient(t, func(t *testing.T, client string) {
		stub, b, data := faulty(t, client, open.Options{Retry: quick})
		var ahead atomic.Int64 // of the store, nanoseconds
		stub.SetFault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			now := time.Now().Add(time.Duration(ahead.Load()))
			w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
			signed, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
			if err != nil || signed.Sub(now).Abs() > 15*time.Minute {
				s3test.Fail(w, http.StatusForbidden, "RequestTimeTooSkewed")
				return
			}
			next.ServeHTTP(w, r)
		})
		for _, skew := range []time.Duration{0, 20 * time.Minute, 0, -20 * time.Minute, 0} {
			ahead.Store(int64(skew))
			stub.ResetRequests()
			got, err := b.ReadRange(t.Context(), "seg.log", 0, 10)
			if client == "minio" && skew != 0 {
				wantIs(t, err, objstore.ErrUnavailable)
				continue
			}
			if err != nil || !bytes.Equal(got, data[:10]) || stub.Count(nil) > 2 {
				t.Errorf("store is %v ahead: %v after %d requests", skew, err, stub.Count(nil))
			}
		}
	})
}

// A put whose connection breaks after the store has taken it is unavailable,
// and not repeated if it is conditional.
func TestLostReply(t *testing.T) {
	eachClient(t, func(t *testing.T, client string) {
		stub, b, _ := faulty(t, client, open.Options{Retry: quick})
		stub.SetFault(func(_ http.ResponseWriter, r *http.Request, next http.Handler) {
			next.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		})
		_, err := b.Put(t.Context(), "manifest.json", strings.NewReader("{}"), 2, objstore.Condition{IfNoneMatch: true})
		wantIs(t, err, objstore.ErrUnavailable)
		if n := stub.Count(nil); n != 1 {
			t.Errorf("%d requests", n)
		}
		if _, ok := stub.Object("p/manifest.json"); !ok {
			t.Error("nothing stored: the test tests nothing")
		}
	})
}
