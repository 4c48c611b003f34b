package index

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// keysEnv sets the number of keys of TestSizeAndSpeed: ten million take two minutes.
const keysEnv = "KEYHOLE_TEST_INDEX_KEYS"

func sequentialKey(dst []byte, i int) []byte { return fmt.Appendf(dst, "%016d", i) }

// fill commits n ascending keys of 16 bytes with ascending offsets.
func fill(t testing.TB, x *Index, n int) {
	t.Helper()
	b := x.NewBatch()
	defer b.Close()
	var key []byte
	for i := range n {
		key = sequentialKey(key[:0], i)
		b.Set(key, int64(i))
		if b.Len() == 1000 || i == n-1 {
			if err := b.Commit(Position{int64(i) + 1, int64(i) + 1, 0}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := x.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// latencies returns the median and the 99th percentile of lookups of random keys.
func latencies(t testing.TB, x *Index, n int, suffix string) (p50, p99 time.Duration) {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 1))
	var key []byte
	took := make([]time.Duration, 0, 100_000)
	for range cap(took) {
		i := rng.IntN(n)
		key = append(sequentialKey(key[:0], i), suffix...)
		start := time.Now()
		offset, ok, err := x.Get(key)
		took = append(took, time.Since(start))
		if err != nil || ok != (suffix == "") || ok && offset != int64(i) {
			t.Fatalf("Get(%s): %d, %v, %v", key, offset, ok, err)
		}
	}
	slices.Sort(took)
	return took[len(took)/2], took[len(took)*99/100]
}

// The size of the index on disk, measured over sequential keys of 16 bytes. The
// times are for the eye only: they depend on the machine and its load.
func TestSizeAndSpeed(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("a measurement")
	}
	n := 1_000_000
	if s := os.Getenv(keysEnv); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(t.TempDir(), "index")
	shared := NewShared(144<<20, 256)
	t.Cleanup(shared.Close)
	o := Options{Shared: shared}
	x := mustOpen(t, dir, o)
	start := time.Now()
	fill(t, x, n)
	t.Logf("%d keys in %v", n, time.Since(start).Round(time.Millisecond))
	if got := x.EstimatedKeys(); got < int64(n)*99/100 || got > int64(n)*101/100 {
		t.Errorf("estimate: %d keys of %d", got, n)
	}
	mustClose(t, x)

	var size int64
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		info, err := file.Info()
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	perKey := float64(size) / float64(n)
	t.Logf("%.2f bytes a key in %d files", perKey, len(files))
	if perKey > 12 {
		t.Errorf("%.2f bytes a key, at most 12 are allowed", perKey)
	}

	x = mustOpen(t, dir, o)
	defer mustClose(t, x)
	for range 2 { // the first round fills the cache
		p50, p99 := latencies(t, x, n, "")
		a50, a99 := latencies(t, x, n, "x")
		t.Logf("present p50 %v p99 %v, absent p50 %v p99 %v, blocks in cache %d MiB", p50, p99, a50, a99, shared.blocks.Metrics().Size>>20)
	}
}

// residentBytes returns the memory of the process that is in RAM.
func residentBytes(t *testing.T) int64 {
	t.Helper()
	debug.FreeOSMemory()
	status, err := os.Open("/proc/self/status")
	if err != nil {
		t.Skip("no /proc: ", err)
	}
	defer status.Close()
	for lines := bufio.NewScanner(status); lines.Scan(); {
		if rest, ok := bytes.CutPrefix(lines.Bytes(), []byte("VmRSS:")); ok {
			kib, err := strconv.ParseInt(string(bytes.Fields(rest)[0]), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Skip("no VmRSS")
	return 0
}

func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		t.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// idleEnv tells a child process of the test where the indexes of TestThousandIdle are.
const idleEnv = "KEYHOLE_TEST_INDEX_IDLE"

const idleIndexes = 1000

// openIdle opens the indexes in root, several at once as that waits for the disk,
// and gives each to fn.
func openIdle(t *testing.T, root string, shared *Shared, fn func(x *Index)) {
	t.Helper()
	next := make(chan int)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := range next {
				x, err := Open(filepath.Join(root, strconv.Itoa(i)), Options{Shared: shared})
				if err != nil {
					t.Error(err)
					continue
				}
				fn(x)
			}
		})
	}
	for i := range idleIndexes {
		next <- i
	}
	close(next)
	wg.Wait()
}

// A thousand open indexes, each with some keys in its tables: memory and processor
// time at rest. It takes a process of its own, as the memory allocators of this one
// hold what earlier tests have left.
func TestThousandIdle(t *testing.T) {
	if root := os.Getenv(idleEnv); root != "" {
		measureIdle(t, root)
		os.Exit(0) // closing them all would only take time
	}
	if testing.Short() || raceEnabled {
		t.Skip("a measurement")
	}
	root := t.TempDir()
	openIdle(t, root, newShared(t), func(x *Index) {
		commit(t, x, map[string]int64{"a": 1, "b": 2, "c": 3}, Position{3, 3, 0})
		mustClose(t, x)
	})
	cmd := exec.Command(os.Args[0], "-test.run=^TestThousandIdle$")
	cmd.Env = append(os.Environ(), idleEnv+"="+root)
	out, err := cmd.Output()
	var rss, used int64
	if _, scanErr := fmt.Sscan(string(out), &rss, &used); err != nil || scanErr != nil {
		t.Fatalf("child: %v, %q", err, out)
	}
	perIndex := float64(rss) / idleIndexes / (1 << 20)
	t.Logf("%.3f MiB an index; %v of processor time in %v at rest", perIndex, time.Duration(used), idleTime)
	if perIndex > 0.3 {
		t.Errorf("%.3f MiB an index, at most 0.3 are allowed", perIndex)
	}
	if time.Duration(used) > idleTime/10 {
		t.Errorf("%v of processor time in %v at rest", time.Duration(used), idleTime)
	}
}

const idleTime = 2 * time.Second

// measureIdle prints by how many bytes the process has grown, and how many
// nanoseconds of processor time it takes at rest.
func measureIdle(t *testing.T, root string) {
	shared := NewShared(16<<20, 256)
	before := residentBytes(t)
	var mu sync.Mutex
	var open []*Index
	openIdle(t, root, shared, func(x *Index) {
		commit(t, x, map[string]int64{"d": 4}, Position{4, 4, 0})
		mu.Lock()
		defer mu.Unlock()
		open = append(open, x)
	})
	grown := residentBytes(t) - before
	// The passing of time is what is measured here, so it has to pass.
	used := processorTime(t)
	<-time.After(idleTime)
	used = processorTime(t) - used
	if len(open) != idleIndexes || t.Failed() {
		os.Exit(1)
	}
	fmt.Println(grown, used.Nanoseconds())
}

// The memtables of many idle indexes leave the block cache to the blocks.
func TestIdleIndexesLeaveTheCache(t *testing.T) {
	const count, cacheBytes = 64, 4 << 20 // 16 MiB of memtables
	shared := NewShared(cacheBytes, 64)
	t.Cleanup(shared.Close)
	fs := vfs.NewMem()
	var open []*Index
	for i := range count {
		open = append(open, mustOpen(t, "/"+strconv.Itoa(i), Options{FS: fs, Shared: shared}))
	}
	x := open[0]
	fill(t, x, 20_000)
	read := func() {
		for i := range 20_000 {
			if _, ok, err := x.Get(sequentialKey(nil, i)); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
	}
	read()
	before := shared.blocks.Metrics()
	read()
	after := shared.blocks.Metrics()
	// A compaction may end in between; without the cache each lookup would miss.
	if misses, hits := after.Misses-before.Misses, after.Hits-before.Hits; misses > hits/50 || hits < 20_000 {
		t.Errorf("%d misses, %d hits when read again", misses, hits)
	}
	if after.Size > cacheBytes {
		t.Errorf("%d bytes of blocks, limit %d", after.Size, cacheBytes)
	}
	var errs []error
	for _, x := range open {
		errs = append(errs, x.Close())
	}
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// The cache holds no more than it was given, however much is read.
func TestCacheLimit(t *testing.T) {
	const cacheBytes = 1 << 20
	shared := NewShared(cacheBytes, 64)
	t.Cleanup(shared.Close)
	x := mustOpen(t, "/db", Options{FS: vfs.NewMem(), Shared: shared})
	defer mustClose(t, x)
	fill(t, x, 100_000)
	for i := 0; i < 100_000; i += 10 { // several of each block
		if _, ok, err := x.Get(sequentialKey(nil, i)); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	// Pebble lets go of the last memtable a moment after its flush has ended.
	if size := shared.blocks.Metrics().Size; size > cacheBytes+memTableSize || size < cacheBytes/2 {
		t.Errorf("%d bytes of blocks, limit %d", size, cacheBytes)
	}
}

func BenchmarkGet(b *testing.B) {
	for _, n := range []int{10_000, 1_000_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			shared := NewShared(64<<20, 256)
			defer shared.Close()
			x := mustOpen(b, filepath.Join(b.TempDir(), "index"), Options{Shared: shared})
			defer mustClose(b, x)
			fill(b, x, n)
			rng := rand.New(rand.NewPCG(1, 1))
			var key []byte
			b.ReportAllocs()
			for b.Loop() {
				key = sequentialKey(key[:0], rng.IntN(n))
				if _, ok, err := x.Get(key); !ok || err != nil {
					b.Fatal(ok, err)
				}
			}
		})
	}
}
