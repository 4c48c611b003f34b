package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the build (-ldflags "-X main.version=…"); a plain go build
// or go install leaves it to the module version.
var version string

type buildInfo struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func (b buildInfo) String() string {
	commit := ""
	if b.Commit != "" {
		commit = ", commit " + b.Commit
	}
	return fmt.Sprintf("keyhole %s (%s, %s/%s%s)", b.Version, b.Go, b.OS, b.Arch, commit)
}

func readBuildInfo() buildInfo {
	b := buildInfo{Version: version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if b.Version == "" {
		b.Version = info.Main.Version
	}
	dirty := ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				dirty = "-dirty"
			}
		}
	}
	if b.Commit != "" {
		b.Commit += dirty
	}
	return b
}

func (a *app) newVersion() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  keyhole version --json",
		Args:    exactly(0, ""),
		RunE: func(*cobra.Command, []string) error {
			b := readBuildInfo()
			if a.json {
				return a.printJSON(b)
			}
			_, err := fmt.Fprintln(a.out, b)
			return err
		},
	}
	a.jsonFlag(cmd)
	return cmd
}
