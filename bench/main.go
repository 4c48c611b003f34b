package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// section is one group of measurements.
type section struct {
	name string
	what string
	run  func(context.Context, *bench) error
}

var sections = []section{
	{"hot", "hot GET over loopback HTTP", measureHot},
	{"cold", "cold GET from a store that is far away", measureCold},
	{"chunks", "chunk sizes on real data", measureChunks},
	{"rebuild", "the index from the bucket", measureRebuild},
	{"shape", "what merged and compressed uploads cost and save", measureShape},
	{"compaction", "compaction against a plain copy, and lookups beside it", measureCompaction},
	{"append", "append and index", measureAppend},
	{"growth", "lookups as the number of keys grows", measureGrowth},
	{"idle", "memory of idle partitions", measureIdle},
}

// bench is one run of the program.
type bench struct {
	dir    string // scratch, removed at the end
	binary string // keyhole, built for this run
	scale  scale
	report *report
	log    io.Writer // progress
}

func run(ctx context.Context, args []string) (err error) {
	// The load generator and the bare handler are this program again, as
	// processes of their own.
	if len(args) > 0 {
		switch args[0] {
		case childLoad:
			return runLoad(args[1:])
		case childBare:
			return runBare(args[1:])
		}
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	quick := flags.Bool("quick", false, "few rounds and little data: is everything in order?")
	full := flags.Bool("full", false, "also what takes minutes, such as ten million keys")
	asJSON := flags.Bool("json", false, "print JSON instead of a table")
	limit := flags.Duration("limit", 30*time.Minute, "time after which the rest is given up")
	only := flags.String("only", "", "sections to run, with commas between: "+strings.Join(names(), ", "))
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	chosen, err := choose(*only)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "keyhole-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	b := &bench{dir: dir, binary: filepath.Join(dir, "keyhole"), scale: normal, log: os.Stderr}
	switch {
	case *quick:
		b.scale = short
	case *full:
		b.scale = long
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", b.binary, "keyhole/cmd/keyhole")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, output)
	}
	b.report = &report{Machine: describeMachine(dir), Scale: b.scale.name, Started: time.Now().UTC().Truncate(time.Second)}
	for _, s := range chosen {
		fmt.Fprintf(b.log, "%s: %s\n", s.name, s.what)
		b.report.section = s.name
		if sErr := s.run(ctx, b); sErr != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", s.name, sErr))
		}
	}
	b.report.Seconds = time.Since(b.report.Started).Seconds()
	b.report.Machine.LoadAtEnd = loadAverage()
	return errors.Join(err, b.report.print(os.Stdout, *asJSON))
}

func names() []string {
	var all []string
	for _, s := range sections {
		all = append(all, s.name)
	}
	return all
}

func choose(only string) ([]section, error) {
	if only == "" {
		return sections, nil
	}
	var chosen []section
	for name := range strings.SplitSeq(only, ",") {
		i := slices.Index(names(), name)
		if i < 0 {
			return nil, fmt.Errorf("-only: there is no section %q", name)
		}
		chosen = append(chosen, sections[i])
	}
	return chosen, nil
}

// scale is how much of everything is done.
type scale struct {
	name string

	hotRounds int
	hotRound  time.Duration
	hotKeys   int

	coldBlocks, coldBlock int // blocks of so many lookups
	coldKeys              int

	chunkSizes []int64
	chunkBytes int64 // of each data set, at most
	chunkColds int
	chunkMixed int

	shapes      []string // of keyhole.remote.compression.type, the one without merging first
	shapeBlocks int

	rebuildBytes  int // of values
	rebuildRounds int

	compactBytes          int // of values
	compactRounds         int
	besideRounds          int // of lookups beside a compaction
	besideRound           time.Duration
	besideBytes           int // of values that are written for each
	appendRounds, appends int

	growth        []int // numbers of keys
	growthRounds  int
	growthLookups int

	idlePartitions int
}

var (
	short = scale{
		name:      "quick",
		hotRounds: 3, hotRound: time.Second, hotKeys: 10_000,
		coldBlocks: 3, coldBlock: 80, coldKeys: 5_000,
		chunkSizes: []int64{16 << 10, 128 << 10}, chunkBytes: 6 << 20, chunkColds: 60, chunkMixed: 200,
		shapes: []string{"producer", "zstd"}, shapeBlocks: 1,
		rebuildBytes: 8 << 20, rebuildRounds: 1,
		compactBytes: 4 << 20, compactRounds: 1, besideRounds: 1, besideRound: 500 * time.Millisecond, besideBytes: 24 << 20,
		appendRounds: 3, appends: 4_000,
		growth: []int{10_000, 200_000}, growthRounds: 2, growthLookups: 30_000,
		idlePartitions: 200,
	}
	normal = scale{
		name:      "normal",
		hotRounds: 9, hotRound: 3 * time.Second, hotKeys: 50_000,
		coldBlocks: 10, coldBlock: 200, coldKeys: 20_000,
		chunkSizes: []int64{16 << 10, 32 << 10, 64 << 10, 128 << 10}, chunkBytes: 1 << 40, chunkColds: 300, chunkMixed: 3000,
		shapes: []string{"producer", "none", "zstd"}, shapeBlocks: 9,
		rebuildBytes: 64 << 20, rebuildRounds: 5,
		compactBytes: 32 << 20, compactRounds: 5, besideRounds: 7, besideRound: 1500 * time.Millisecond, besideBytes: 96 << 20,
		appendRounds: 15, appends: 8_000,
		growth: []int{10_000, 1_000_000}, growthRounds: 7, growthLookups: 100_000,
		idlePartitions: 1000,
	}
	long = func() scale {
		s := normal
		s.name = "full"
		s.growth = []int{10_000, 1_000_000, 10_000_000}
		s.shapes = []string{"producer", "none", "snappy", "lz4", "gzip", "zstd"}
		s.chunkSizes = append(slices.Clone(s.chunkSizes), 256<<10, 512<<10, 1<<20)
		return s
	}()
)
