package objstore_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func put(t *testing.T, b objstore.Bucket, key, data string) string {
	t.Helper()
	etag, err := b.Put(t.Context(), key, strings.NewReader(data), int64(len(data)), objstore.Condition{})
	if err != nil {
		t.Fatal(err)
	}
	return etag
}

func wantIs(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error is %v, want %v", what, err, want)
	}
}

// unavailable is what a driver gives for a reply that helps nobody.
var unavailable = &objstore.OpError{Op: "read", Key: "k", Kind: objstore.ErrUnavailable, Status: 503, Code: "SlowDown"}

func TestRetryCounts(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error
		reads int // attempts of ReadRange
		gets  int
	}{
		{"unavailable", unavailable, 6, 6},
		{"missing", objstore.ErrNotFound, 3, 1},
		{"denied", objstore.ErrDenied, 1, 1},
		{"misconfigured", objstore.ErrMisconfigured, 1, 1},
		{"range", objstore.ErrRange, 1, 1},
		{"unusable", objstore.ErrUnusable, 1, 1},
		{"unsupported", objstore.ErrUnsupported, 1, 1},
		{"closed", objstore.ErrClosed, 1, 1},
		{"of no class", errors.New("other"), 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := objstoretest.NewFaulty(nil)
				put(t, f.Inner(), "k", "value")
				b := objstore.WithRetry(f, objstore.RetryOptions{})
				f.Before(func(context.Context, objstoretest.Call) error { return c.err })

				start := time.Now()
				_, err := b.ReadRange(t.Context(), "k", 0, 1)
				wantIs(t, "read", err, c.err)
				// Full jitter: at most 50+100+200+400+800 ms in all.
				if took := time.Since(start); took > 1550*time.Millisecond {
					t.Errorf("took %v", took)
				}
				_, _, err = b.Get(t.Context(), "k", 10)
				wantIs(t, "get", err, c.err)
				_, _, err = b.GetIfChanged(t.Context(), "k", "x", 10)
				wantIs(t, "get if changed", err, c.err)
				wantIs(t, "delete", b.Delete(t.Context(), "k"), c.err)
				for op, want := range map[objstoretest.Op]int{
					objstoretest.OpReadRange: c.reads, objstoretest.OpGet: c.gets,
					objstoretest.OpGetIfChanged: c.gets, objstoretest.OpDelete: c.gets,
				} {
					if n := f.Count(op); n != want {
						t.Errorf("%s: %d attempts, want %d", op, n, want)
					}
				}
			})
		})
	}
}

func TestRetrySucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := objstoretest.NewFaulty(nil)
		put(t, f.Inner(), "k", "value")
		var told []string
		b := objstore.WithRetry(f, objstore.RetryOptions{OnRetry: func(op string, _ error) { told = append(told, op) }})
		f.FailNext(objstoretest.OpReadRange, 5, unavailable)
		data, err := b.ReadRange(t.Context(), "k", 0, 5)
		if err != nil || string(data) != "value" {
			t.Errorf("%q, %v", data, err)
		}
		f.FailNext(objstoretest.OpPut, 2, unavailable)
		put(t, b, "other", "body that is rewound")
		if got, _, err := b.Get(t.Context(), "other", 100); err != nil || string(got) != "body that is rewound" {
			t.Errorf("%q, %v", got, err)
		}
		if want := "read read read read read put put"; strings.Join(told, " ") != want {
			t.Errorf("told of %v", told)
		}
	})
}

// A conditional put is never repeated: its first attempt may have taken effect.
func TestRetryLeavesConditionalPuts(t *testing.T) {
	f := objstoretest.NewFaulty(nil)
	b := objstore.WithRetry(f, objstore.RetryOptions{})
	f.After(func(_ context.Context, c objstoretest.Call) error { return unavailable })
	_, err := b.Put(t.Context(), "k", strings.NewReader("x"), 1, objstore.Condition{IfNoneMatch: true})
	wantIs(t, "put", err, objstore.ErrUnavailable)
	if n := f.Count(); n != 1 {
		t.Errorf("%d attempts", n)
	}
}

// An attempt that hangs is cut and repeated within the caller's time.
func TestRetryCutsAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := objstoretest.NewFaulty(nil)
		put(t, f.Inner(), "k", "value")
		b := objstore.WithRetry(f, objstore.RetryOptions{AttemptTimeout: time.Second})
		hang := func(ctx context.Context, _ objstoretest.Call) error {
			<-ctx.Done()
			return ctx.Err()
		}
		f.Before(hang)
		_, err := b.ReadRange(t.Context(), "k", 0, 1)
		wantIs(t, "all attempts hang", err, objstore.ErrUnavailable)
		if n := f.Count(objstoretest.OpReadRange); n != 6 {
			t.Errorf("%d attempts", n)
		}

		start := time.Now()
		_, _, err = b.Get(t.Context(), "k", 1<<62)
		wantIs(t, "get without a bound", err, objstore.ErrUnavailable)
		if took := time.Since(start); took < time.Hour || took > 7*time.Hour {
			t.Errorf("get without a bound: %v", took)
		}

		n := 0
		f.Before(func(ctx context.Context, c objstoretest.Call) error {
			if n++; n == 1 {
				return hang(ctx, c)
			}
			return nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if data, err := b.ReadRange(ctx, "k", 0, 5); err != nil || string(data) != "value" {
			t.Errorf("one attempt hangs: %q, %v", data, err)
		}
	})
}

// At the deadline: silence is a deadline, an answer is the store's fault.
func TestRetryDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := objstoretest.NewFaulty(nil)
		b := objstore.WithRetry(f, objstore.RetryOptions{AttemptTimeout: 300 * time.Millisecond, Repeats: 1000})
		read := func(hook objstoretest.Hook) error {
			f.Before(hook)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			start := time.Now()
			_, err := b.ReadRange(ctx, "k", 0, 1)
			if took := time.Since(start); took > time.Second {
				t.Errorf("took %v", took)
			}
			return err
		}
		hang := func(ctx context.Context, _ objstoretest.Call) error {
			<-ctx.Done()
			return ctx.Err()
		}
		err := read(hang)
		wantIs(t, "silence", err, context.DeadlineExceeded)
		if errors.Is(err, objstore.ErrUnavailable) {
			t.Errorf("silence: %v", err)
		}
		check := func(what string, err error) {
			wantIs(t, what, err, unavailable)
			if errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", what, err)
			}
		}
		check("answers only", read(func(context.Context, objstoretest.Call) error { return unavailable }))
		n := 0
		check("one answer, then silence", read(func(ctx context.Context, c objstoretest.Call) error {
			if n++; n == 1 {
				return unavailable
			}
			return hang(ctx, c)
		}))
	})
}

func TestRetryCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := objstoretest.NewFaulty(nil)
		b := objstore.WithRetry(f, objstore.RetryOptions{BaseDelay: time.Hour, MaxDelay: time.Hour, Repeats: 1000})
		f.Before(func(context.Context, objstoretest.Call) error { return unavailable })
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		start := time.Now()
		_, err := b.ReadRange(ctx, "k", 0, 1)
		wantIs(t, "read", err, context.Canceled)
		if errors.Is(err, objstore.ErrUnavailable) || time.Since(start) > time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// brokenListing fails each listing after a number of items.
type brokenListing struct {
	objstore.Bucket
	after int
}

func (b *brokenListing) List(ctx context.Context, prefix string, fn func(objstore.Object) error) error {
	b.after++
	n := 0
	return b.Bucket.List(ctx, prefix, func(o objstore.Object) error {
		if n++; n > b.after {
			return unavailable
		}
		return fn(o)
	})
}

func TestRetryListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := objstoretest.NewMemory()
		for _, key := range []string{"a", "b", "c", "d"} {
			put(t, m, key, "x")
		}
		b := objstore.WithRetry(&brokenListing{Bucket: m}, objstore.RetryOptions{})
		var got bytes.Buffer
		err := b.List(t.Context(), "", func(o objstore.Object) error { got.WriteString(o.Key); return nil })
		if err != nil || got.String() != "abcd" {
			t.Errorf("%s, %v", &got, err)
		}
		calls := 0
		err = b.List(t.Context(), "", func(objstore.Object) error { calls++; return unavailable })
		if err != error(unavailable) || calls != 1 {
			t.Errorf("caller's error: %v after %d calls", err, calls)
		}
	})
}
