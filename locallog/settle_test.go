package locallog

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"keyhole/fsync"
)

var errKilled = errors.New("killed")

// A process that is killed leaves what it wrote readable, but not durable. Once the
// log is open again, what it shows and what is appended to it survives a power
// failure, wherever between two steps of the disk the kill came.
func TestPowerFailsAfterKill(t *testing.T) {
	for k := 0; ; k++ {
		mem := vfs.NewCrashableMem()
		left, hit := k, false
		killed := errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsRead && op.Kind != errorfs.OpOpenDir || op.Kind == errorfs.OpFileClose {
				return nil
			}
			if left--; left < 0 {
				hit = true
				return errKilled
			}
			return nil
		})
		if err := mem.MkdirAll(testDir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{"data/topic", "data", ""} {
			must(t, fsync.Dir(mem, dir))
		}
		o := options(errorfs.Wrap(mem, killed))
		o.SegmentBytes = bytesOf(2000)
		if l, err := Open(t.Context(), o); err == nil {
			for i := range 8 {
				if _, err := l.Append(t.Context(), [][]byte{batchOf(t, value(i, 700))}); err != nil {
					break
				}
			}
			l.Close()
		}
		t.Run(fmt.Sprint("step ", k), func(t *testing.T) {
			l := mustOpen(t, options(mem))
			shown := l.State().HighWatermark
			after := mustOpen(t, options(crash(mem)))
			if got := after.State().HighWatermark; got != shown {
				t.Fatalf("offsets below %d were shown, %d are left", shown, got)
			}
			must(t, after.Close())
			appendValues(t, l, "answered")
			after = mustOpen(t, options(crash(mem)))
			wantValue(t, after, shown, "answered")
			for i := range shown {
				wantValue(t, after, i, value(int(i), 700))
			}
			must(t, after.Close())
			must(t, l.Close())
		})
		if !hit {
			return
		}
	}
}
