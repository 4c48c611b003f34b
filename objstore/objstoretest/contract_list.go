package objstoretest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"keyhole/objstore"
)

func listed(t *testing.T, b objstore.Bucket, prefix string) []string {
	t.Helper()
	var keys []string
	if err := b.List(testCtx(t), prefix, func(o objstore.Object) error {
		keys = append(keys, o.Key)
		return nil
	}); err != nil {
		t.Fatalf("list %q: %v", prefix, err)
	}
	return keys
}

func testList(t *testing.T, b objstore.Bucket) {
	keys := []string{"a", "b/1", "b/10", "b/2", "b-/x", "b.x", "b0", "c/d/e/f", "c/d/g", "c/d.log"}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, i := range r.Perm(len(keys)) {
		mustPut(t, b, keys[i], bytes.Repeat([]byte("x"), i))
	}
	sorted := slices.Sorted(slices.Values(keys))
	for _, prefix := range []string{"", "b", "b/", "b/1", "c/d", "c/d/", "c/d/e", "z", "b/1x", "none/"} {
		var want []string
		for _, key := range sorted {
			if strings.HasPrefix(key, prefix) {
				want = append(want, key)
			}
		}
		if got := listed(t, b, prefix); !slices.Equal(got, want) {
			t.Errorf("prefix %q: %q, want %q", prefix, got, want)
		}
	}
	err := b.List(testCtx(t), "b/10", func(o objstore.Object) error {
		if o.Size != 2 || time.Since(o.ModTime).Abs() > time.Hour {
			t.Errorf("size %d, time %v", o.Size, o.ModTime)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	stop := errors.New("stop")
	calls := 0
	err = b.List(testCtx(t), "", func(objstore.Object) error { calls++; return stop })
	if !errors.Is(err, stop) || calls != 1 {
		t.Errorf("callback's error: %v after %d calls", err, calls)
	}
}

// case 4-30: more than the thousand that one page holds.
func testListManyPages(t *testing.T, b objstore.Bucket) {
	const n = 1205
	var want []string
	for i := range n {
		want = append(want, fmt.Sprintf("t/%05d.log", i))
	}
	var wg sync.WaitGroup
	next := make(chan string)
	for range 4 {
		wg.Go(func() {
			for key := range next {
				if _, err := putIf(t, b, key, "x", objstore.Condition{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, key := range want {
		next <- key
	}
	close(next)
	wg.Wait()
	if got := listed(t, b, "t/"); !slices.Equal(got, want) {
		t.Errorf("%d of %d objects listed", len(got), n)
	}
}

func testListPrefixes(t *testing.T, b objstore.Bucket) {
	for _, key := range []string{"cluster.json", "orders/id1/0/m", "orders/id1/1/m", "orders/id2/0/m", "orders.dlq/id3/0/m", "users/id4/topic.json"} {
		mustPut(t, b, key, []byte("x"))
	}
	for prefix, want := range map[string][]string{
		"":            {"orders.dlq/", "orders/", "users/"},
		"orders/":     {"orders/id1/", "orders/id2/"},
		"orders/id1/": {"orders/id1/0/", "orders/id1/1/"},
		"users/id4/":  nil,
		"absent/":     nil,
	} {
		var got []string
		err := b.ListPrefixes(testCtx(t), prefix, func(p string) error { got = append(got, p); return nil })
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("prefix %q: %q, %v; want %q", prefix, got, err, want)
		}
	}
	wantErr(t, "prefix without a slash", b.ListPrefixes(testCtx(t), "orders", func(string) error { return nil }), objstore.ErrInvalid)
	// A folder goes with its last object.
	for _, key := range []string{"orders/id2/0/m", "users/id4/topic.json"} {
		if err := b.Delete(testCtx(t), key); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	if err := b.ListPrefixes(testCtx(t), "", func(p string) error { got = append(got, p); return nil }); err != nil {
		t.Fatal(err)
	}
	if want := []string{"orders.dlq/", "orders/"}; !slices.Equal(got, want) {
		t.Errorf("after deleting: %q, want %q", got, want)
	}
}
