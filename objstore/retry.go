package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// RetryOptions bound the repetition of failed calls. Zero fields take the
// defaults named.
type RetryOptions struct {
	// Repeats is how often a failed call is made again at most: 5. Negative:
	// never.
	Repeats int
	// MissingRepeats is the same for a ReadRange that answers ErrNotFound: 2.
	// Who reads a range knows from the manifest that the object exists, so a
	// store that does not see it yet is asked again. Negative: never.
	MissingRepeats int
	// BaseDelay is the upper bound of the first pause: 50 ms. It doubles with
	// each repetition up to MaxDelay: 2 s. The pause is drawn evenly from
	// zero up to the bound ("full jitter"), so that clients do not march in
	// step.
	BaseDelay, MaxDelay time.Duration
	// AttemptTimeout bounds one attempt of a read or a delete: 10 s, plus a
	// second for each MiB to read. Puts and listings are bounded by the
	// stall timeouts of the connection only.
	AttemptTimeout time.Duration
	// OnRetry, if set, is told of each failure that is about to be repeated.
	OnRetry func(op string, err error)
}

func (o *RetryOptions) setDefaults() {
	setDefault(&o.Repeats, 5)
	setDefault(&o.MissingRepeats, 2)
	setDefault(&o.BaseDelay, 50*time.Millisecond)
	setDefault(&o.MaxDelay, 2*time.Second)
	setDefault(&o.AttemptTimeout, 10*time.Second)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// WithRetry repeats what failed with ErrUnavailable inside the deadline of the
// call's context. Not repeated are: answers that a repetition cannot change
// (missing, denied, misconfigured, …) and conditional puts. Of those nobody
// here can tell whether the lost attempt took effect; the caller, who can read
// the object back, has to.
//
// When the context's deadline ends the attempts, the error is the last one the
// store gave, if it gave any (ErrUnavailable), and context.DeadlineExceeded
// only if the store never answered.
func WithRetry(b Bucket, o RetryOptions) Bucket {
	o.setDefaults()
	return &retrier{inner: b, o: o}
}

type retrier struct {
	inner Bucket
	o     RetryOptions
}

// try runs attempt until it succeeds or must not be repeated. timeout bounds
// one attempt, 0: it does not; missing is the number of repeats allowed for
// ErrNotFound.
func (r *retrier) try(ctx context.Context, op string, timeout time.Duration, missing int, attempt func(context.Context) error) error {
	var answer error // the last failure in which the store, or its host, said something
	for n := 0; ; n++ {
		err := r.once(ctx, timeout, attempt)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ended(ctx, err, answer)
		}
		limit := 0
		switch {
		case errors.Is(err, ErrUnavailable):
			limit = r.o.Repeats
		case errors.Is(err, ErrNotFound):
			limit = missing
		}
		if n >= limit {
			return err
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			answer = err
		}
		if tell, ok := ctx.Value(listener{}).(func(error)); ok && answer != nil {
			tell(answer)
		}
		if r.o.OnRetry != nil {
			r.o.OnRetry(op, err)
		}
		if !pause(ctx, r.delay(n)) {
			return ended(ctx, err, answer)
		}
	}
}

// listener is the key of what Listening adds to a context.
type listener struct{}

// Listening derives a context under which a bucket of WithRetry tells fn what the
// store answers, each time that it is about to ask again: who waits with less
// patience than the call's deadline can say more than that time is up.
func Listening(ctx context.Context, fn func(error)) context.Context {
	return context.WithValue(ctx, listener{}, fn)
}

// once makes one attempt. That its own timeout ran out while the caller still
// has time is a failure of the store: ErrUnavailable.
func (r *retrier) once(ctx context.Context, timeout time.Duration, attempt func(context.Context) error) error {
	if timeout == 0 {
		return attempt(ctx)
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := attempt(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil && !errors.Is(err, ErrUnavailable) {
		return fmt.Errorf("%w: no full reply within %v: %w", ErrUnavailable, timeout, err)
	}
	return err
}

// ended is the error for a call whose context is over.
func ended(ctx context.Context, err, answer error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("object store call given up: %w", ctx.Err())
	}
	if errors.Is(err, ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if answer != nil {
		return answer
	}
	return fmt.Errorf("object store did not answer in time: %w", context.DeadlineExceeded)
}

// delay is the pause before repetition n, counted from 0.
func (r *retrier) delay(n int) time.Duration {
	bound := r.o.MaxDelay
	if n < 30 && r.o.BaseDelay<<n < bound {
		bound = r.o.BaseDelay << n
	}
	return rand.N(bound + 1)
}

// pause waits, and reports false if ctx ended first. A pause that would outlast
// the deadline is not begun: the caller's answer is not delayed for nothing.
func pause(ctx context.Context, d time.Duration) bool {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= d {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// readTimeout bounds an attempt to read so many bytes; what nobody will ever
// read in one piece does not overflow.
func (r *retrier) readTimeout(bytes int64) time.Duration {
	return r.o.AttemptTimeout + time.Duration(min(bytes>>20, 3600))*time.Second
}

func (r *retrier) ReadRange(ctx context.Context, key string, off, n int64) (data []byte, err error) {
	err = r.try(ctx, opRead, r.readTimeout(n), r.o.MissingRepeats, func(ctx context.Context) (err error) {
		data, err = r.inner.ReadRange(ctx, key, off, n)
		return err
	})
	return data, err
}

func (r *retrier) Get(ctx context.Context, key string, maxBytes int64) (data []byte, etag string, err error) {
	err = r.try(ctx, opGet, r.readTimeout(maxBytes), 0, func(ctx context.Context) (err error) {
		data, etag, err = r.inner.Get(ctx, key, maxBytes)
		return err
	})
	return data, etag, err
}

func (r *retrier) GetIfChanged(ctx context.Context, key, etag string, maxBytes int64) (data []byte, newETag string, err error) {
	err = r.try(ctx, opLook, r.readTimeout(maxBytes), 0, func(ctx context.Context) (err error) {
		data, newETag, err = r.inner.GetIfChanged(ctx, key, etag, maxBytes)
		return err
	})
	return data, newETag, err
}

func (r *retrier) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond Condition) (etag string, err error) {
	if cond != (Condition{}) {
		return r.inner.Put(ctx, key, body, size, cond)
	}
	err = r.try(ctx, opPut, 0, 0, func(ctx context.Context) (err error) {
		etag, err = r.inner.Put(ctx, key, body, size, cond)
		return err
	})
	return etag, err
}

func (r *retrier) Delete(ctx context.Context, key string) error {
	return r.try(ctx, opDelete, r.o.AttemptTimeout, 0, func(ctx context.Context) error {
		return r.inner.Delete(ctx, key)
	})
}

// callerError marks an error of the caller's callback: it is handed through
// unseen by the retry rules.
type callerError struct{ error }

// List repeats a listing that broke from its start and leaves out what was
// delivered already; the order of the keys makes that safe.
func (r *retrier) List(ctx context.Context, prefix string, fn func(Object) error) error {
	return retryListing(ctx, r, func(ctx context.Context, each func(Object) error) error {
		return r.inner.List(ctx, prefix, each)
	}, func(o Object) string { return o.Key }, fn)
}

func (r *retrier) ListPrefixes(ctx context.Context, prefix string, fn func(string) error) error {
	return retryListing(ctx, r, func(ctx context.Context, each func(string) error) error {
		return r.inner.ListPrefixes(ctx, prefix, each)
	}, func(s string) string { return s }, fn)
}

func retryListing[T any](ctx context.Context, r *retrier, list func(context.Context, func(T) error) error, key func(T) string, fn func(T) error) error {
	last := "" // keys are never empty
	var callers *callerError
	err := r.try(ctx, opList, 0, 0, func(ctx context.Context) error {
		return list(ctx, func(item T) error {
			if key(item) <= last {
				return nil
			}
			if err := fn(item); err != nil {
				callers = &callerError{err}
				return errStopListing
			}
			last = key(item)
			return nil
		})
	})
	if callers != nil {
		return callers.error
	}
	return err
}

// errStopListing ends a listing whose caller wants no more; it is of no class,
// so it is not repeated.
var errStopListing = errors.New("listing stopped by its caller")

func (r *retrier) Close() error { return r.inner.Close() }
