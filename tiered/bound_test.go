package tiered

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/record"
)

// countedSource counts itself when it is first read.
type countedSource struct {
	*memSource
	read *atomic.Int64
}

func (s countedSource) Batches(fn func(pos int64, batch []byte, kafkaBase int64) error) error {
	s.read.Add(1)
	return s.memSource.Batches(fn)
}

// However many partitions want to upload, only so many segments are in memory at
// once. A place is given back also by an upload that fails, and who waits for one
// may give up.
func TestUploadsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const partitions = 6
		var read, failed atomic.Int64
		var first *node
		gate := make(chan struct{})
		impatient, giveUp := context.WithCancel(t.Context())
		done := make(chan error, partitions)
		for i := range partitions {
			b := newBucket()
			n := newNode(t, b, nodeOptions{})
			if first == nil {
				first = n
			}
			n.o.Shared = first.o.Shared
			b.Before(func(ctx context.Context, c objstoretest.Call) error {
				if c.Op != objstoretest.OpPut || !strings.HasSuffix(c.Key, ".log") {
					return nil
				}
				select {
				case <-gate:
				case <-ctx.Done():
					return ctx.Err()
				}
				if failed.Add(1) == 1 {
					return objstore.ErrInvalid
				}
				return nil
			})
			build := newBuilder(t, 0)
			build.add(record.None, kv(0, "k", "v"))
			src := countedSource{build.done(), &read}
			ctx := t.Context()
			if i == partitions-1 {
				synctest.Wait() // the others have the places
				ctx = impatient
			}
			go func() {
				_, err := n.Upload(ctx, []Source{src}, 0)
				done <- err
			}()
		}
		synctest.Wait()
		if n := read.Load(); n != maxUploads {
			t.Fatalf("%d segments in memory, want %d", n, maxUploads)
		}
		giveUp()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatalf("an upload that was given up: %v", err)
		}
		close(gate)
		good := 0
		for range partitions - 1 {
			if err := <-done; err == nil {
				good++
			} else if !errors.Is(err, objstore.ErrInvalid) {
				t.Error(err)
			}
		}
		if good != partitions-2 || len(first.o.Shared.uploads) != 0 {
			t.Fatalf("%d of %d uploads, %d places taken", good, partitions-2, len(first.o.Shared.uploads))
		}
	})
}

// Of two lookups that wait for one chunk, the less patient one is told what the
// store said so far, and not only that its time is up.
func TestImpatientWaiterHearsOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		retrying := objstore.WithRetry(b, objstore.RetryOptions{BaseDelay: time.Nanosecond, MaxDelay: time.Nanosecond})
		n := newNode(t, retrying, nodeOptions{})
		build := newBuilder(t, 0)
		build.add(record.None, kv(0, "k", "v"))
		n.upload(t, build.done())
		var calls atomic.Int64
		b.Before(func(ctx context.Context, c objstoretest.Call) error {
			if calls.Add(1) == 1 {
				return objstore.ErrUnavailable
			}
			select {
			case <-time.After(5 * time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		patient := make(chan error)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, _, err := n.read(ctx, 0)
			patient <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := n.read(ctx, 0); !errors.Is(err, objstore.ErrUnavailable) {
			t.Errorf("at its deadline: %v", err)
		}
		if err := <-patient; err != nil {
			t.Errorf("the patient one: %v", err)
		}
	})
}
