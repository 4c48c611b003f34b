package locallog

import (
	"context"
	"fmt"
	"path"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// trace collects the file operations that change something, by base name.
type trace struct {
	mu    sync.Mutex
	lines []string
}

var paths = regexp.MustCompile(`[^ ]*/[^ ]*`)

func (tr *trace) log(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if strings.HasPrefix(line, "read-at") || strings.HasPrefix(line, "close") || strings.HasPrefix(line, "open-read-write") || strings.HasPrefix(line, "open: ") {
		return
	}
	line = paths.ReplaceAllStringFunc(line, path.Base)
	line = strings.ReplaceAll(line, strings.Repeat("0", 15), "…")
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.lines = append(tr.lines, line)
}

func (tr *trace) take() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	s := strings.Join(tr.lines, "\n")
	tr.lines = nil
	return s
}

// The order of file operations is what durability hangs on, so it is written out.
func TestFileOperations(t *testing.T) {
	ctx := context.Background()
	tr := &trace{}
	mem := vfs.NewMem()
	o := options(vfs.WithLogging(mem, tr.log))
	l := mustOpen(t, o)
	step := func(name, want string) {
		t.Helper()
		want = strings.ReplaceAll(strings.TrimSpace(want), "\t", "")
		if got := tr.take(); got != want {
			t.Errorf("%s:\n%s\n\nwant:\n%s", name, got, want)
		}
	}
	step("begin", `
		mkdir-all: data 0755
		open-dir: .
		sync: .
		mkdir-all: topic 0755
		open-dir: data
		sync: data
		mkdir-all: 0 0755
		open-dir: topic
		sync: topic
		create: …00000-0.log.tmp
		sync: …00000-0.log.tmp
		rename: …00000-0.log.tmp -> …00000-0.log
		open-dir: 0
		sync: 0
		open-dir: topic
		sync: topic`)
	appendValues(t, l, "a")
	step("append", `
		write-at(138, 71): …00000-0.log
		sync-data: …00000-0.log`)
	appendValues(t, l, "b", "c")
	step("append two batches", `
		write-at(209, 142): …00000-0.log
		sync-data: …00000-0.log`)
	must(t, l.Note(ctx, Note{RemoteNext: 1}))
	step("note", `
		write-at(351, 138): …00000-0.log
		sync-data: …00000-0.log`)
	must(t, l.Roll(ctx))
	step("roll", `
		create: …00000-0.index.tmp
		sync: …00000-0.index.tmp
		rename: …00000-0.index.tmp -> …00000-0.index
		create: …00005-0.log.tmp
		sync: …00005-0.log.tmp
		rename: …00005-0.log.tmp -> …00005-0.log
		open-dir: 0
		sync: 0`)
	must(t, l.TrimPrefix(ctx, 3))
	step("trim: the note first, then the files", `
		write-at(138, 138): …00005-0.log
		sync-data: …00005-0.log
		remove: …00000-0.index
		remove: …00000-0.log`)
	must(t, l.Close())
	step("close", `
		create: clean-stop.tmp
		sync: clean-stop.tmp
		rename: clean-stop.tmp -> clean-stop
		open-dir: 0
		sync: 0`)
	l = mustOpen(t, o)
	step("open after a clean stop", ``)
	must(t, l.Close())
	step("close without a write", ``)
	l = mustOpen(t, o)
	appendValues(t, l, "d")
	step("first write", `
		remove: clean-stop
		open-dir: 0
		sync: 0
		write-at(276, 71): …00005-0.log
		sync-data: …00005-0.log`)
	appendValues(t, l, "e")
	tr.take()
	must(t, l.TruncateSuffix(ctx, 4))
	step("truncate", `
		create: truncating.tmp
		sync: truncating.tmp
		rename: truncating.tmp -> truncating
		open-dir: 0
		sync: 0
		remove: …00005-0.index
		create: …00005-0.log.tmp
		sync: …00005-0.log.tmp
		rename: …00005-0.log.tmp -> …00005-0.log
		open-dir: 0
		sync: 0
		remove: truncating
		open-dir: 0
		sync: 0`)
}
