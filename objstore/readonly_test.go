package objstore_test

import (
	"bytes"
	"errors"
	"testing"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
)

func TestReadOnly(t *testing.T) {
	inner := objstoretest.NewFaulty(nil)
	data := []byte("0123456789")
	etag, err := inner.Put(t.Context(), "a/b", bytes.NewReader(data), int64(len(data)), objstore.Condition{})
	if err != nil {
		t.Fatal(err)
	}
	inner.ResetCalls()
	b := objstore.ReadOnly(inner)

	for _, cond := range []objstore.Condition{{}, {IfMatch: etag}, {IfNoneMatch: true}} {
		if _, err := b.Put(t.Context(), "a/c", bytes.NewReader(data), int64(len(data)), cond); !errors.Is(err, objstore.ErrReadOnly) {
			t.Errorf("put %+v: %v", cond, err)
		}
	}
	if err := b.Delete(t.Context(), "a/b"); !errors.Is(err, objstore.ErrReadOnly) {
		t.Errorf("delete: %v", err)
	}
	if n := inner.Count(objstoretest.OpPut, objstoretest.OpDelete); n != 0 {
		t.Errorf("%d writes reached the store", n)
	}
	if _, err := objstore.Probe(t.Context(), b); !errors.Is(err, objstore.ErrReadOnly) {
		t.Errorf("probe: %v", err)
	}

	if got, tag, err := b.Get(t.Context(), "a/b", 100); err != nil || !bytes.Equal(got, data) || tag != etag {
		t.Errorf("get: %q, %q, %v", got, tag, err)
	}
	if _, _, err := b.GetIfChanged(t.Context(), "a/b", etag, 100); !errors.Is(err, objstore.ErrNotModified) {
		t.Errorf("get if changed: %v", err)
	}
	if got, err := b.ReadRange(t.Context(), "a/b", 2, 3); err != nil || string(got) != "234" {
		t.Errorf("read: %q, %v", got, err)
	}
	var seen []string
	if err := b.List(t.Context(), "a/", func(o objstore.Object) error { seen = append(seen, o.Key); return nil }); err != nil {
		t.Errorf("list: %v", err)
	}
	if err := b.ListPrefixes(t.Context(), "", func(p string) error { seen = append(seen, p); return nil }); err != nil {
		t.Errorf("list prefixes: %v", err)
	}
	if len(seen) != 2 || seen[0] != "a/b" || seen[1] != "a/" {
		t.Errorf("listed %q", seen)
	}
	if err := b.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if _, _, err := inner.Get(t.Context(), "a/b", 100); !errors.Is(err, objstore.ErrClosed) {
		t.Errorf("the inner bucket after close: %v", err)
	}
}
