package catalog

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/objstore/objstoretest"
)

// residentBytes is the memory of this process that is in RAM, as the kernel
// counts it.
func residentBytes(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip("no /proc on this system")
	}
	for _, line := range strings.Split(string(b), "\n") {
		var kib int64
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	t.Fatal("no VmRSS in /proc/self/status")
	return 0
}

// TestThousandPartitionsIdle holds that a topic with 1,000 partitions, each with
// some records, an index and a bucket, idles in under 512 MiB. It takes a while
// and is only true without the race detector, so it runs on request:
//
//	KEYHOLE_MEMORY_TEST=1 go test ./catalog -run ThousandPartitions -v
func TestThousandPartitionsIdle(t *testing.T) {
	if os.Getenv("KEYHOLE_MEMORY_TEST") == "" {
		t.Skip("KEYHOLE_MEMORY_TEST is not set")
	}
	const partitions, limit = 1000, 512 << 20
	n := newNode(t, objstoretest.NewMemory())
	n.fs, n.dir = vfs.Default, t.TempDir()
	c := n.start()
	known(t, c)
	allOn(t, c)
	topic := create(t, c, "t", partitions, map[string]string{propTopicIndex: "true"})
	for i := range int32(partitions) {
		appendKeys(t, serving(t, topic, i), 0, 100)
	}
	measure := func(when string) {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		rss := residentBytes(t)
		files, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: resident %d MiB, heap in use %d MiB, %d goroutines, %d open files", when, rss>>20, m.HeapInuse>>20, runtime.NumGoroutine(), len(files))
		if rss > limit {
			t.Errorf("%s: resident memory is %d MiB, limit %d MiB", when, rss>>20, limit>>20)
		}
	}
	measure("after writing")
	stop(t, c)
	c = n.start()
	known(t, c)
	eventually(t, "all ready", func() bool { return c.Ready().Ready })
	measure("after a restart")
}
