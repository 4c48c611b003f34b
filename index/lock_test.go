package index

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// lockedDirEnv tells a child process of the test which index to hold open.
const lockedDirEnv = "KEYHOLE_TEST_INDEX_DIR"

// TestHoldOpen is not a test but the child process of TestSecondProcess.
func TestHoldOpen(t *testing.T) {
	dir := os.Getenv(lockedDirEnv)
	if dir == "" {
		t.Skip("runs as a child of TestSecondProcess")
	}
	shared := NewShared(1<<20, 16)
	x, err := Open(dir, Options{Shared: shared})
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	entries := map[string]int64{}
	for i := range 1000 {
		entries[fmt.Sprint(i)] = int64(i)
	}
	commit(t, x, entries, Position{1000, 1000, 0})
	if err := x.Flush(t.Context()); err != nil {
		fmt.Println("error:", err)
		return
	}
	commit(t, x, map[string]int64{"late": 1}, Position{1001, 1001, 0})
	fmt.Println("open")
	select {} // until it is killed
}

// case 6-14: two processes on one directory, and a lock whose holder was killed.
// case 6-02: after the kill, what was flushed is there and nothing else.
func TestSecondProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "index")
	cmd := exec.Command(os.Args[0], "-test.run=^TestHoldOpen$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), lockedDirEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	kill := func() {
		if !killed {
			killed = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // reports the kill
		}
	}
	defer kill()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "open\n" {
		t.Fatalf("child says %q, %v", line, err)
	}

	before := listing(t, dir)
	o := Options{Shared: newShared(t)}
	if x, err := Open(dir, o); !errors.Is(err, ErrLocked) {
		t.Errorf("second process: %v, %v", x, err)
	}
	if err := Remove(nil, dir); !errors.Is(err, ErrLocked) {
		t.Errorf("Remove by a second process: %v", err)
	}
	if after := listing(t, dir); after != before {
		t.Errorf("the second process changed the directory from %s to %s", before, after)
	}
	kill()

	x := mustOpen(t, dir, o)
	defer mustClose(t, x)
	if x.Applied() != (Position{1000, 1000, 0}) {
		t.Errorf("position %+v after the kill", x.Applied())
	}
	if m, err := contents(x); err != nil || len(m) != 1000 || m["999"] != 999 {
		t.Errorf("%d entries after the kill, %v", len(m), err)
	}
	if _, err := Open(dir, o); !errors.Is(err, ErrLocked) {
		t.Errorf("second opening in one process: %v", err)
	}
	if m, err := contents(x); err != nil || len(m) != 1000 {
		t.Errorf("%d entries after the second opening, %v", len(m), err)
	}
}

func listing(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	s := ""
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		s += fmt.Sprintf("%s:%d ", e.Name(), info.Size())
	}
	return s
}

// What the operating system refuses is not damage: nothing would be won by removing
// the index.
func TestOpenRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(filepath.Join(file, "index"), Options{Shared: newShared(t)})
	var path *os.PathError
	if !errors.As(err, &path) || errors.Is(err, ErrLocked) {
		t.Errorf("Open below a file: %v", err)
	}
}
