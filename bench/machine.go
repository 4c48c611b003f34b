package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// machine is what the numbers depend on. Fields that this system does not tell
// are empty.
type machine struct {
	System      string  `json:"system"`
	Processor   string  `json:"processor"`
	Processors  int     `json:"processors"`
	MemoryGiB   float64 `json:"memory_gib"`
	Kernel      string  `json:"kernel"`
	Go          string  `json:"go"`
	SyncMicros  float64 `json:"sync_microseconds"` // of 1 KiB appended to a file
	LoadAtStart string  `json:"load_at_start"`
	LoadAtEnd   string  `json:"load_at_end"`
}

func (m machine) String() string {
	return fmt.Sprintf("%d × %s, %.0f GiB, %s, kernel %s, %s; append and sync of 1 KiB %.0f µs; load average %s → %s",
		m.Processors, m.Processor, m.MemoryGiB, m.System, m.Kernel, m.Go, m.SyncMicros, m.LoadAtStart, m.LoadAtEnd)
}

func describeMachine(dir string) machine {
	m := machine{
		System: runtime.GOOS + "/" + runtime.GOARCH, Processor: "processor", Processors: runtime.NumCPU(),
		Go: runtime.Version(), Kernel: strings.TrimSpace(readFile("/proc/sys/kernel/osrelease")), LoadAtStart: loadAverage(),
	}
	if v, ok := field(readFile("/proc/cpuinfo"), "model name"); ok {
		m.Processor = v
	}
	if v, ok := field(readFile("/proc/meminfo"), "MemTotal"); ok {
		kib, _ := strconv.ParseFloat(strings.TrimSuffix(v, " kB"), 64)
		m.MemoryGiB = kib / (1 << 20)
	}
	m.SyncMicros = syncTime(dir)
	return m
}

// readFile gives nothing for a file that is not there: /proc is Linux's.
func readFile(name string) string {
	b, _ := os.ReadFile(name)
	return string(b)
}

// field finds "name: value".
func field(text, name string) (string, bool) {
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v), true
		}
	}
	return "", false
}

func loadAverage() string {
	first, _, _ := strings.Cut(readFile("/proc/loadavg"), " ")
	return first
}

// syncTime is the median time to append 1 KiB and sync it, 0 if that fails.
func syncTime(dir string) float64 {
	f, err := vfs.Default.Create(filepath.Join(dir, "sync"), vfs.WriteCategoryUnspecified)
	if err != nil {
		return 0
	}
	defer f.Close()
	b := make([]byte, 1<<10)
	var l latencies
	for range 50 {
		start := time.Now()
		if _, err := f.Write(b); err != nil {
			return 0
		}
		if err := f.SyncData(); err != nil {
			return 0
		}
		l = append(l, time.Since(start))
	}
	return float64(l.quantile(0.5)) / 1e3
}

// cpuTime is the processor time that a process has used; false where the system
// does not tell.
func cpuTime(pid int) (time.Duration, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// The name of the program, in brackets, may hold anything.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 13 {
		return 0, false
	}
	user, err1 := strconv.ParseInt(string(fields[11]), 10, 64)
	system, err2 := strconv.ParseInt(string(fields[12]), 10, 64)
	if err1 != nil || err2 != nil {
		return 0, false
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every Linux
	return time.Duration(user+system) * tick, true
}

// residentMiB is the resident memory of a process.
func residentMiB(pid int) (float64, bool) {
	v, ok := field(readFile(fmt.Sprintf("/proc/%d/status", pid)), "VmRSS")
	kib, err := strconv.ParseFloat(strings.TrimSuffix(v, " kB"), 64)
	return kib / 1024, ok && err == nil
}
