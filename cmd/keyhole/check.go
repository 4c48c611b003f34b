package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spf13/cobra"

	"keyhole/check"
	"keyhole/objstore"
	"keyhole/objstore/open"
)

type checkFlags struct {
	dataDir     string
	objectStore string
	s3CAFile    string
}

func (a *app) newCheck() *cobra.Command {
	var f checkFlags
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Read both tiers and say whether all holds",
		Long: `Reads everything that the data directory and the bucket hold and compares it:
checksums, offsets, sizes, and every entry of the indexes with the records. Nothing
is changed. The gateway of the data directory must be stopped, be it a writer or a
read replica; without --data-dir the bucket alone is checked, which may be done at
any time. The store of serve --dev is the folder object-store in its data directory,
and has to be named like any other.

Each finding is one line with the file name or object key and the byte position.
"damage" is what a reader misses or gets wrong: exit code 1. "note" is what costs no
reader anything, such as objects that were replaced and wait for their deletion,
orphans, or a torn tail, which the next start cuts.
What cannot be read, and a place that holds nothing of keyhole, is exit code 1 too.
With --json: one line for each finding, then one with the summary.

The temporary directory (TMPDIR) takes some ten bytes for each key of one partition.`,
		Example: `  keyhole check --data-dir /var/lib/keyhole \
      --object-store 's3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=us-east-1'
  keyhole check --object-store s3://bucket/prefix --json
  keyhole check --data-dir keyhole-data --object-store "file://$PWD/keyhole-data/object-store"`,
		Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.dataDir == "" && f.objectStore == "" {
				return misused("wants --data-dir, --object-store or both")
			}
			if _, err := objstore.ParseURL(f.objectStore); err != nil && f.objectStore != "" {
				return misused("--object-store: %w", err)
			}
			return a.check(cmd.Context(), &f)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.dataDir, "data-dir", "", "data directory of a stopped gateway; none: only the bucket is checked")
	fl.StringVar(&f.objectStore, "object-store", "", "URL of the bucket, as for serve; none: only the data directory is checked")
	fl.StringVar(&f.s3CAFile, "s3-ca-file", "", "PEM file of certificate authorities to trust besides the system's, for the object store")
	a.jsonFlag(cmd)
	return cmd
}

func (a *app) check(ctx context.Context, f *checkFlags) (err error) {
	o := check.Options{FS: vfs.Default, DataDir: f.dataDir, ScratchFS: vfs.Default}
	if f.objectStore != "" {
		if o.Bucket, err = open.Bucket(ctx, f.objectStore, open.Options{CAFile: f.s3CAFile, ReadOnly: true}); err != nil {
			return fmt.Errorf("--object-store: %w", err)
		}
		defer func() { err = errors.Join(err, o.Bucket.Close()) }()
	}
	if o.ScratchDir, err = os.MkdirTemp("", "keyhole-check-"); err != nil {
		return fmt.Errorf("temporary directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.ScratchDir)) }()

	bar := &progress{}
	defer func() { bar.finish() }()
	o.Begin = func(bytes int64) { bar = a.newProgress("checking", "bytes", bytes) }
	o.Step = func(bytes int64) { bar.add(bytes) }
	var failure error // of standard output
	o.Report = func(finding check.Finding) {
		bar.hide()
		failure = errors.Join(failure, a.printFinding(finding))
	}
	summary, err := check.Run(ctx, o)
	bar.finish()
	switch {
	case errors.Is(err, check.ErrRunning):
		return fmt.Errorf("%w; stop it first, or check the bucket alone with --data-dir ''", err)
	case errors.Is(err, check.ErrNothing):
		return fmt.Errorf("%w; is that the place of serve's --data-dir and --object-store, prefix included?", err)
	case err != nil:
		return fmt.Errorf("could not look at everything: %w", err)
	}
	if err := errors.Join(failure, a.printSummary(&summary)); err != nil {
		return err
	}
	if !summary.OK() {
		return fmt.Errorf("damage found in %s", counted(summary.Damages, "place"))
	}
	return nil
}

func (a *app) printFinding(f check.Finding) error {
	if a.json {
		return a.printJSON(f)
	}
	_, err := fmt.Fprintf(a.out, "%-6s  %s:%d  %s\n", f.Severity, printable(f.Object), f.Position, printable(f.Message))
	return err
}

func (a *app) printSummary(s *check.Summary) error {
	if a.json {
		return a.printJSON(struct {
			OK bool `json:"ok"`
			*check.Summary
		}{s.OK(), s})
	}
	verdict := "all holds"
	if !s.OK() {
		verdict = "damaged: " + counted(s.Damages, "finding")
	}
	_, err := fmt.Fprintf(a.out, "%s; %s, %s, %d local and %s, %s, %s read; %s\n",
		verdict, counted(s.Topics, "topic"), counted(s.Partitions, "partition"), s.LocalSegments, counted(s.RemoteSegments, "remote segment"),
		counted(s.Keys, "index entry"), counted(s.Bytes, "byte"), counted(s.Notes, "note"))
	return err
}

// counted is a number with its noun.
func counted[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if stem, ok := strings.CutSuffix(noun, "y"); ok {
		noun = stem + "ie"
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
