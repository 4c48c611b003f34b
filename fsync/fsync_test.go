package fsync_test

import (
	"errors"
	"os"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"keyhole/fsync"
)

// A name outlives a power cut iff its directory was synced.
func TestDir(t *testing.T) {
	for _, synced := range []bool{false, true} {
		fs := vfs.NewCrashableMem()
		f, err := fs.Create("name", vfs.WriteCategoryUnspecified)
		if err == nil {
			err = errors.Join(f.Sync(), f.Close())
		}
		if err == nil && synced {
			err = fsync.Dir(fs, "")
		}
		if err != nil {
			t.Fatal(err)
		}
		_, err = fs.CrashClone(vfs.CrashCloneCfg{}).Stat("name")
		if synced != (err == nil) {
			t.Errorf("synced %t: %v", synced, err)
		}
	}
}

func TestDirFails(t *testing.T) {
	if err := fsync.Dir(vfs.NewMem(), "absent"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an absent directory: %v", err)
	}
	broken := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSync {
			return errorfs.ErrInjected
		}
		return nil
	}))
	if err := fsync.Dir(broken, ""); !errors.Is(err, errorfs.ErrInjected) {
		t.Errorf("a sync that fails: %v", err)
	}
}
