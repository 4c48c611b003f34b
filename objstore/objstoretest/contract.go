package objstoretest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"keyhole/objstore"
)

// Run holds a bucket to the contract of objstore.Bucket. open gives a fresh,
// empty bucket that honours conditions, and closes it when the test ends.
func Run(t *testing.T, open func(t *testing.T) objstore.Bucket) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, b objstore.Bucket)
	}{
		{"ReadRange", testReadRange},
		{"ReadRangeOwnsItsBytes", testOwnership},
		{"Missing", testMissing},
		{"Get", testGet},
		{"GetIfChanged", testGetIfChanged},
		{"EmptyObject", testEmptyObject},
		{"PutConditions", testPutConditions},
		{"PutIsAtomic", testPutIsAtomic},
		{"PutRewindsAndKeepsTheBody", testPutBody},
		{"OneWinner", testOneWinner},
		{"CompareAndSwapCounter", testCounter},
		{"List", testList},
		{"ListManyPages", testListManyPages},
		{"ListPrefixes", testListPrefixes},
		{"NeighbouringNames", testNeighbours},
		{"InvalidArguments", testInvalid},
		{"LargeObject", testLargeObject},
		{"Context", testContext},
		{"Probe", testProbe},
		{"Close", testClose},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

// testTimeout bounds one test of the suite. A store that hangs fails it.
const testTimeout = time.Minute

func testCtx(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

func mustPut(t *testing.T, b objstore.Bucket, key string, data []byte) string {
	t.Helper()
	etag, err := b.Put(testCtx(t), key, bytes.NewReader(data), int64(len(data)), objstore.Condition{})
	if err != nil {
		t.Fatalf("put %q: %v", key, err)
	}
	if etag == "" {
		t.Fatalf("put %q: no ETag", key)
	}
	return etag
}

func putIf(t *testing.T, b objstore.Bucket, key, data string, cond objstore.Condition) (string, error) {
	t.Helper()
	return b.Put(testCtx(t), key, strings.NewReader(data), int64(len(data)), cond)
}

func wantErr(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: error is %v, want %v", what, got, want)
	}
}

func wantContent(t *testing.T, b objstore.Bucket, key, want string) {
	t.Helper()
	data, _, err := b.Get(testCtx(t), key, 1<<20)
	if err != nil || string(data) != want {
		t.Errorf("get %q: %.40q, %v; want %.40q", key, data, err, want)
	}
}

// pattern is bytes whose every run of 8 is different, so that a shifted read
// cannot look right.
func pattern(n int) []byte {
	out := make([]byte, 0, n+8)
	for i := uint64(0); len(out) < n; i++ {
		x := i * 0x9e3779b97f4a7c15
		out = append(out, byte(x>>56), byte(x>>48), byte(x>>40), byte(x>>32), byte(x>>24), byte(x>>16), byte(x>>8), byte(i))
	}
	return out[:n]
}

func testReadRange(t *testing.T, b objstore.Bucket) {
	const size = 10_000
	data := pattern(size)
	mustPut(t, b, "topic/id/0/a.log", data)
	for _, r := range []struct{ off, n int64 }{
		{0, 1}, {0, size}, {size - 1, 1}, {1, size - 1}, {4096, 4096}, {0, size - 1},
	} {
		got, err := b.ReadRange(testCtx(t), "topic/id/0/a.log", r.off, r.n)
		if err != nil || !bytes.Equal(got, data[r.off:r.off+r.n]) {
			t.Errorf("%d bytes at %d: %d bytes, %v", r.n, r.off, len(got), err)
		}
		if int64(cap(got)) != r.n {
			t.Errorf("%d bytes at %d: capacity %d", r.n, r.off, cap(got))
		}
	}
	// Reading past the end is never a short read.
	for _, r := range []struct{ off, n int64 }{
		{0, size + 1}, {size - 1, 2}, {size, 1}, {size + 1, 1}, {1 << 40, 10},
	} {
		got, err := b.ReadRange(testCtx(t), "topic/id/0/a.log", r.off, r.n)
		wantErr(t, fmt.Sprintf("%d bytes at %d", r.n, r.off), err, objstore.ErrRange)
		if got != nil {
			t.Errorf("%d bytes at %d: data with an error", r.n, r.off)
		}
	}
}

func testOwnership(t *testing.T, b objstore.Bucket) {
	data := pattern(100)
	mustPut(t, b, "key", data)
	first, err := b.ReadRange(testCtx(t), "key", 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	clear(first)
	second, err := b.ReadRange(testCtx(t), "key", 0, 100)
	if err != nil || !bytes.Equal(second, data) {
		t.Fatalf("writing into the result of a read changed the object (%v)", err)
	}
}

func testMissing(t *testing.T, b objstore.Bucket) {
	ctx := testCtx(t)
	mustPut(t, b, "there/object", []byte("x"))
	for _, key := range []string{"absent", "there", "there/absent", "there/object/below", "no/such/folder/object"} {
		_, err := b.ReadRange(ctx, key, 0, 1)
		wantErr(t, "read "+key, err, objstore.ErrNotFound)
		_, _, err = b.Get(ctx, key, 10)
		wantErr(t, "get "+key, err, objstore.ErrNotFound)
		_, _, err = b.GetIfChanged(ctx, key, `"0123"`, 10)
		wantErr(t, "get if changed "+key, err, objstore.ErrNotFound)
	}
	for _, key := range []string{"absent", "there/absent", "no/such/folder/object"} {
		if err := b.Delete(ctx, key); err != nil {
			t.Errorf("delete %s: %v", key, err)
		}
	}
	if err := b.Delete(ctx, "there/object"); err != nil {
		t.Error(err)
	}
	_, err := b.ReadRange(ctx, "there/object", 0, 1)
	wantErr(t, "read after delete", err, objstore.ErrNotFound)
}

func testGet(t *testing.T, b objstore.Bucket) {
	ctx := testCtx(t)
	etag := mustPut(t, b, "doc", []byte("hello"))
	data, gotTag, err := b.Get(ctx, "doc", 5)
	if err != nil || string(data) != "hello" || gotTag != etag {
		t.Errorf("got %q, ETag %s, %v; want hello, ETag %s", data, gotTag, err, etag)
	}
	data, _, err = b.Get(ctx, "doc", 4)
	wantErr(t, "one byte too large", err, objstore.ErrTooLarge)
	if data != nil {
		t.Error("data with an error")
	}
	if again := mustPut(t, b, "doc", []byte("other")); again == etag {
		t.Error("ETag did not change with the content")
	}
	wantContent(t, b, "doc", "other")
}

func testGetIfChanged(t *testing.T, b objstore.Bucket) {
	ctx := testCtx(t)
	etag := mustPut(t, b, "doc", []byte("one"))
	_, _, err := b.GetIfChanged(ctx, "doc", etag, 100)
	wantErr(t, "unchanged", err, objstore.ErrNotModified)
	second := mustPut(t, b, "doc", []byte("two"))
	data, newTag, err := b.GetIfChanged(ctx, "doc", etag, 100)
	if err != nil || string(data) != "two" || newTag != second {
		t.Errorf("changed: %q, %s, %v", data, newTag, err)
	}
}

// case 4-08
func testEmptyObject(t *testing.T, b objstore.Bucket) {
	ctx := testCtx(t)
	mustPut(t, b, "empty", nil)
	data, _, err := b.Get(ctx, "empty", 0)
	if err != nil || len(data) != 0 {
		t.Errorf("get: %q, %v", data, err)
	}
	_, err = b.ReadRange(ctx, "empty", 0, 1)
	wantErr(t, "range of an empty object", err, objstore.ErrRange)
}

func testPutConditions(t *testing.T, b objstore.Bucket) {
	create, match := objstore.Condition{IfNoneMatch: true}, func(etag string) objstore.Condition {
		return objstore.Condition{IfMatch: etag}
	}
	_, err := putIf(t, b, "a/doc", "lost", match(`"00000000000000000000000000000000"`))
	wantErr(t, "match on an absent object", err, objstore.ErrPrecondition)
	_, _, err = b.Get(testCtx(t), "a/doc", 10)
	wantErr(t, "refused put left an object", err, objstore.ErrNotFound)

	first, err := putIf(t, b, "a/doc", "first", create)
	if err != nil {
		t.Fatal(err)
	}
	_, err = putIf(t, b, "a/doc", "lost", create)
	wantErr(t, "create over an object", err, objstore.ErrPrecondition)
	second, err := putIf(t, b, "a/doc", "second", match(first))
	if err != nil {
		t.Fatal(err)
	}
	_, err = putIf(t, b, "a/doc", "lost", match(first))
	wantErr(t, "match on an old ETag", err, objstore.ErrPrecondition)
	wantContent(t, b, "a/doc", "second")
	if _, err = putIf(t, b, "a/doc", "third", match(second)); err != nil {
		t.Error(err)
	}
	if err := b.Delete(testCtx(t), "a/doc"); err != nil {
		t.Fatal(err)
	}
	if _, err = putIf(t, b, "a/doc", "fourth", create); err != nil {
		t.Errorf("create after delete: %v", err)
	}
	wantContent(t, b, "a/doc", "fourth")
}

// testPutIsAtomic: readers see whole versions only.
func testPutIsAtomic(t *testing.T, b objstore.Bucket) {
	const size = 64 << 10
	version := func(n int) []byte { return bytes.Repeat([]byte{byte(n)}, size) }
	mustPut(t, b, "doc", version(0))
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for !stop.Load() {
				data, _, err := b.Get(testCtx(t), "doc", size)
				if err != nil || len(data) != size || bytes.Count(data, data[:1]) != size {
					t.Errorf("reader: %d bytes, %v", len(data), err)
					return
				}
			}
		})
	}
	for n := 1; n <= 20; n++ {
		mustPut(t, b, "doc", version(n))
	}
	stop.Store(true)
	wg.Wait()
}

// onceCloser fails the test if a driver closes the caller's body.
type onceCloser struct {
	io.ReadSeeker
	t *testing.T
}

func (c onceCloser) Close() error {
	c.t.Error("body was closed")
	return nil
}

func testPutBody(t *testing.T, b objstore.Bucket) {
	ctx := testCtx(t)
	body := onceCloser{strings.NewReader("content"), t}
	for range 2 { // the second time the body stands at its end
		if _, err := b.Put(ctx, "doc", body, 7, objstore.Condition{}); err != nil {
			t.Fatal(err)
		}
		wantContent(t, b, "doc", "content")
	}
	for _, size := range []int64{6, 8, 0} {
		_, err := b.Put(ctx, "other", strings.NewReader("content"), size, objstore.Condition{})
		wantErr(t, fmt.Sprintf("7 bytes declared as %d", size), err, objstore.ErrInvalid)
	}
	_, _, err := b.Get(ctx, "other", 100)
	wantErr(t, "object of a refused put", err, objstore.ErrNotFound)
}

func testOneWinner(t *testing.T, b objstore.Bucket) {
	const writers = 8
	var won atomic.Int32
	var wg sync.WaitGroup
	for n := range writers {
		wg.Go(func() {
			_, err := putIf(t, b, "folder/lock", fmt.Sprint(n), objstore.Condition{IfNoneMatch: true})
			switch {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, objstore.ErrPrecondition) && !errors.Is(err, objstore.ErrUnavailable):
				t.Errorf("writer %d: %v", n, err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d of %d writers created the object", won.Load(), writers)
	}
}

// testCounter loses no update among writers that read, add one and write back.
func testCounter(t *testing.T, b objstore.Bucket) {
	const writers, each = 4, 5
	mustPut(t, b, "counter", []byte("0"))
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for done := 0; done < each; {
				data, etag, err := b.Get(testCtx(t), "counter", 100)
				if err != nil {
					t.Error(err)
					return
				}
				n := 0
				if _, err := fmt.Sscan(string(data), &n); err != nil {
					t.Errorf("counter is %q", data)
					return
				}
				_, err = putIf(t, b, "counter", fmt.Sprint(n+1), objstore.Condition{IfMatch: etag})
				switch {
				case err == nil:
					done++
				case !errors.Is(err, objstore.ErrPrecondition) && !errors.Is(err, objstore.ErrUnavailable):
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	wantContent(t, b, "counter", fmt.Sprint(writers*each))
}

// case 7-30: no name stands for another, whatever a store uses for itself.
func testNeighbours(t *testing.T, b objstore.Bucket) {
	keys := []string{"x", "x.tmp", "x.part", "x~", ".x", "x.tmp.1", "tmp", ".tmp", "lock", "~probe2/x", "x y+z%41&=?#", "ключ/値"}
	for _, key := range keys {
		mustPut(t, b, key, []byte("content of "+key))
	}
	for _, key := range keys {
		wantContent(t, b, key, "content of "+key)
	}
	if got, want := listed(t, b, ""), slices.Sorted(slices.Values(keys)); !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
}

func testInvalid(t *testing.T, b objstore.Bucket) {
	ctx := testCtx(t)
	for _, key := range []string{"", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a/..", "a\x00b", "a\nb", "\xff", strings.Repeat("k/", 512) + "k"} {
		_, err := b.ReadRange(ctx, key, 0, 1)
		wantErr(t, fmt.Sprintf("read %.20q", key), err, objstore.ErrInvalid)
		_, _, err = b.Get(ctx, key, 1)
		wantErr(t, fmt.Sprintf("get %.20q", key), err, objstore.ErrInvalid)
		_, err = b.Put(ctx, key, strings.NewReader("x"), 1, objstore.Condition{})
		wantErr(t, fmt.Sprintf("put %.20q", key), err, objstore.ErrInvalid)
		wantErr(t, fmt.Sprintf("delete %.20q", key), b.Delete(ctx, key), objstore.ErrInvalid)
	}
	for _, r := range []struct{ off, n int64 }{{-1, 1}, {0, 0}, {0, -1}, {1<<63 - 1, 1}} {
		_, err := b.ReadRange(ctx, "a", r.off, r.n)
		wantErr(t, fmt.Sprintf("%d bytes at %d", r.n, r.off), err, objstore.ErrInvalid)
	}
	_, err := b.Put(ctx, "a", strings.NewReader("x"), 1, objstore.Condition{IfMatch: "x", IfNoneMatch: true})
	wantErr(t, "two conditions", err, objstore.ErrInvalid)
	_, _, err = b.GetIfChanged(ctx, "a", "", 1)
	wantErr(t, "empty ETag", err, objstore.ErrInvalid)
}

func testLargeObject(t *testing.T, b objstore.Bucket) {
	const size = 20 << 20 // beyond where libraries begin multipart uploads
	data := pattern(size)
	mustPut(t, b, "large", data)
	for _, off := range []int64{0, 5<<20 - 1, size - 65536} {
		got, err := b.ReadRange(testCtx(t), "large", off, 65536)
		if err != nil || !bytes.Equal(got, data[off:off+65536]) {
			t.Errorf("at %d: %v", off, err)
		}
	}
	got, _, err := b.Get(testCtx(t), "large", size)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("whole: %v", err)
	}
}

func testContext(t *testing.T, b objstore.Bucket) {
	mustPut(t, b, "doc", []byte("x"))
	cancelled, cancel := context.WithCancel(testCtx(t))
	cancel()
	late, cancelLate := context.WithDeadline(testCtx(t), time.Unix(1, 0))
	defer cancelLate()
	for want, ctx := range map[error]context.Context{context.Canceled: cancelled, context.DeadlineExceeded: late} {
		_, err := b.ReadRange(ctx, "doc", 0, 1)
		wantErr(t, "read", err, want)
		_, _, err = b.Get(ctx, "doc", 1)
		wantErr(t, "get", err, want)
		_, err = b.Put(ctx, "doc", strings.NewReader("y"), 1, objstore.Condition{})
		wantErr(t, "put", err, want)
		wantErr(t, "delete", b.Delete(ctx, "doc"), want)
		wantErr(t, "list", b.List(ctx, "", func(objstore.Object) error { return nil }), want)
		wantErr(t, "list prefixes", b.ListPrefixes(ctx, "", func(string) error { return nil }), want)
	}
	wantContent(t, b, "doc", "x")
}

// case 4-26, the good one.
func testProbe(t *testing.T, b objstore.Bucket) {
	conditional, err := objstore.Probe(testCtx(t), b)
	if err != nil || !conditional {
		t.Errorf("probe: %v, %v", conditional, err)
	}
	if left := listed(t, b, ""); len(left) != 0 {
		t.Errorf("probe left %q", left)
	}
}

func testClose(t *testing.T, b objstore.Bucket) {
	mustPut(t, b, "doc", []byte("x"))
	for range 2 {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	ctx := testCtx(t)
	_, err := b.ReadRange(ctx, "doc", 0, 1)
	wantErr(t, "read", err, objstore.ErrClosed)
	_, err = b.Put(ctx, "doc", strings.NewReader("y"), 1, objstore.Condition{})
	wantErr(t, "put", err, objstore.ErrClosed)
	wantErr(t, "list", b.List(ctx, "", func(objstore.Object) error { return nil }), objstore.ErrClosed)
}
