package main

import (
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress shows how far long work is, on a terminal only. Its zero value shows
// nothing.
type progress struct{ bar *progressbar.ProgressBar }

// newProgress begins a bar over total units ("bytes" are shown as such);
// total < 0: unknown.
func (a *app) newProgress(what, unit string, total int64) *progress {
	f, ok := a.err.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return &progress{}
	}
	options := []progressbar.Option{
		progressbar.OptionSetWriter(f),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(),
		progressbar.OptionSetItsString(unit),
		progressbar.OptionThrottle(100 * time.Millisecond),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetRenderBlankState(true),
	}
	if unit == "bytes" {
		options = append(options, progressbar.OptionShowBytes(true))
	}
	return &progress{progressbar.NewOptions64(total, options...)}
}

// add counts n more units. Errors of the terminal are not the work's errors.
func (p *progress) add(n int64) {
	if p.bar != nil {
		_ = p.bar.Add64(n)
	}
}

// hide takes the bar away until the next step, to make room for a line.
func (p *progress) hide() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}

// finish takes the bar away. It may be called more than once.
func (p *progress) finish() {
	if p.bar != nil {
		_ = p.bar.Exit()
		_ = p.bar.Clear()
		p.bar = nil
	}
}
