package gateway

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

type ctxKey struct{}

// A deadlineContext behaves like context.WithDeadline, whether or not anybody
// has asked for Done.
func TestDeadlineContext(t *testing.T) {
	for _, armed := range []bool{false, true} {
		for _, end := range []string{"deadline", "parent", "release"} {
			synctest.Test(t, func(t *testing.T) {
				parent, cancel := context.WithCancel(context.WithValue(t.Context(), ctxKey{}, "v"))
				defer cancel()
				c := withDeadline(parent, time.Now().Add(time.Second))
				defer c.release()
				if armed {
					c.Done()
				}
				if d, ok := c.Deadline(); !ok || time.Until(d) != time.Second || c.Err() != nil || c.Value(ctxKey{}) != "v" {
					t.Errorf("fresh: deadline %v %v, err %v, value %v", d, ok, c.Err(), c.Value(ctxKey{}))
				}
				child, cancelChild := context.WithCancel(c)
				defer cancelChild()
				want := context.Canceled
				switch end {
				case "deadline":
					time.Sleep(time.Second) // the bubble's clock
					want = context.DeadlineExceeded
				case "parent":
					cancel()
				case "release":
					c.release()
				}
				synctest.Wait()
				if err := c.Err(); !errors.Is(err, want) {
					t.Errorf("armed %v, %s: err %v, want %v", armed, end, err, want)
				}
				select {
				case <-c.Done():
				default:
					t.Errorf("armed %v, %s: not done", armed, end)
				}
				if err := child.Err(); !errors.Is(err, want) {
					t.Errorf("armed %v, %s: child's err %v, want %v", armed, end, err, want)
				}
			})
		}
	}
	// Without a child nobody has asked for Done: the clock alone decides.
	synctest.Test(t, func(t *testing.T) {
		c := withDeadline(t.Context(), time.Now().Add(time.Second))
		time.Sleep(time.Second - time.Nanosecond)
		if c.Err() != nil {
			t.Error("ended early")
		}
		time.Sleep(time.Nanosecond)
		if !errors.Is(c.Err(), context.DeadlineExceeded) {
			t.Error("did not end")
		}
		c.release()
		if c.mu.armed != nil {
			t.Error("a timer was started")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		parent, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c := withDeadline(parent, time.Now().Add(time.Minute))
		if d, _ := c.Deadline(); time.Until(d) != time.Second {
			t.Error("the parent's earlier deadline does not count")
		}
		c.release()
		if !errors.Is(c.Err(), context.Canceled) {
			t.Error("released, but not ended")
		}
	})
}
