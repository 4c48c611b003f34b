package partition

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
)

// From the moment at which an index is asked for, the partition is not ready
// until it has one.
func TestNotReadyUntilTheIndexIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.settings.IndexMaintained, r.settings.IndexActive = false, false
		p := r.start()
		defer r.stop()
		<-p.Opened()
		put(t, p, "k", "v")
		synctest.Wait() // the background work pauses
		p.Configure(defaults())
		if ready, _, _ := p.State(); ready {
			if _, err := get(p, "k"); err != nil {
				t.Fatalf("ready, and a lookup says %v", err)
			}
		}
		time.Sleep(2 * choreInterval)
		synctest.Wait()
		mustGet(t, p, "k")
		if ready, reason, _ := p.State(); !ready {
			t.Fatal(reason)
		}
	})
}

// Trouble with an upload is over once uploads are not wanted any more.
func TestTroubleEndsWithRemoteWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		p := r.start()
		defer r.stop()
		<-p.Opened()
		fill(t, p, "k", 40)
		r.store.Before(func(context.Context, objstoretest.Call) error { return objstore.ErrUnavailable })
		if _, err := p.Evict(t.Context(), 0); err == nil || p.StoreTrouble() == nil {
			t.Fatalf("evict: %v, trouble: %v", err, p.StoreTrouble())
		}
		s := r.settings
		s.RemoteWrite = false
		p.Configure(s)
		time.Sleep(2 * maxBackoff)
		synctest.Wait()
		if err := p.StoreTrouble(); err != nil {
			t.Fatalf("still in trouble: %v", err)
		}
	})
}

// A store that never answers is told apart from a client that has gone.
func TestEvictSaysThatTheStoreStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		p := r.start()
		defer r.stop()
		<-p.Opened()
		fill(t, p, "k", 40)
		r.store.Before(func(ctx context.Context, _ objstoretest.Call) error {
			<-ctx.Done()
			return ctx.Err()
		})
		begun := time.Now()
		_, err := p.Evict(t.Context(), 0)
		if !errors.Is(err, objstore.ErrUnavailable) || time.Since(begun) > 10*time.Second {
			t.Fatalf("after %v: %v", time.Since(begun), err)
		}
	})
}

// A manifest whose reply was lost is met again by a look at the owner. Then
// nothing is left to be uploaded, and the trouble is over.
func TestTroubleEndsWhenTheLostReplyIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		p := r.start()
		defer r.stop()
		<-p.Opened()
		synctest.Wait()
		r.store.After(func(_ context.Context, c objstoretest.Call) error {
			if c.Op == objstoretest.OpPut && strings.HasSuffix(c.Key, "manifest.json") {
				return objstore.ErrUnavailable
			}
			return nil
		})
		fill(t, p, "k", 40)
		time.Sleep(choreGap)
		synctest.Wait()
		if p.StoreTrouble() == nil {
			t.Fatal("no reply was lost")
		}
		r.store.After(nil)
		if _, err := p.CheckOwner(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * maxBackoff)
		synctest.Wait()
		if err := p.StoreTrouble(); err != nil {
			t.Fatalf("still in trouble: %v", err)
		}
	})
}
