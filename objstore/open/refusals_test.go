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
