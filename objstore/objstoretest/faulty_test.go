package objstoretest_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFaultyHooks(t *testing.T) {
	ctx := t.Context()
	errHook := errors.New("from the hook")
	f := objstoretest.NewFaulty(nil)
	put := func() error {
		_, err := f.Put(ctx, "k", strings.NewReader("value"), 5, objstore.Condition{})
		return err
	}
	fail := func(context.Context, objstoretest.Call) error { return errHook }

	f.Before(fail)
	if err := put(); !errors.Is(err, errHook) {
		t.Errorf("before: %v", err)
	}
	if _, _, err := f.Inner().Get(ctx, "k", 10); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("a call that failed before reached the store: %v", err)
	}
	f.Before(nil)
	f.After(fail)
	if err := put(); !errors.Is(err, errHook) {
		t.Errorf("after: %v", err)
	}
	if data, _, err := f.Inner().Get(ctx, "k", 10); string(data) != "value" {
		t.Errorf("a call that failed after did not take effect: %v", err)
	}
	f.After(nil)

	f.FailNext(objstoretest.OpReadRange, 1, errHook)
	if err := put(); err != nil {
		t.Errorf("another kind: %v", err)
	}
	_, err := f.ReadRange(ctx, "k", 1, 2)
	if !errors.Is(err, errHook) {
		t.Errorf("first read: %v", err)
	}
	f.FilterRead(func(_ objstoretest.Call, data []byte) []byte {
		data[0] ^= 1
		return data
	})
	if data, err := f.ReadRange(ctx, "k", 1, 2); err != nil || string(data) != "`l" {
		t.Errorf("damaged read: %q, %v", data, err)
	}

	if puts, reads := f.Count(objstoretest.OpPut), f.CountKey("k", objstoretest.OpReadRange); puts != 3 || reads != 2 || f.Count() != 5 || f.CountKey("x") != 0 {
		t.Errorf("%d puts, %d reads, %d calls", puts, reads, f.Count())
	}
	if last := f.Calls()[4]; last != (objstoretest.Call{Op: objstoretest.OpReadRange, Key: "k", Off: 1, N: 2}) {
		t.Errorf("last call is %+v", last)
	}
	f.ResetCalls()
	if f.Count() != 0 {
		t.Error("calls after a reset")
	}
}
