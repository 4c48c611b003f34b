package main

import (
	"github.com/spf13/cobra"

	"keyhole/config"
)

func (a *app) newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "keyhole",
		Short: "A keyhole into compacted topics: GET by key, hot from disk, cold from object storage",
		Long: `A keyhole into compacted topics: GET by key, hot from local disk, cold from
object storage with one ranged read.

Every flag has an environment variable: --admin-url is KEYHOLE_ADMIN_URL.
Results go to standard output, everything else to standard error.
Exit code 0: done, 1: failed, 2: called wrongly.`,
		Example: `  keyhole serve --dev --data-dir ./data
  keyhole produce prices prices.ndjson
  keyhole get prices apple`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.fromEnv(cmd) },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.AddCommand(
		a.newServe(),
		a.newTopic(),
		a.newProduce(),
		a.newGet(),
		a.newConfig(),
		a.newTier(),
		a.newCheck(),
		a.newHealthcheck(),
		a.newVersion(),
	)
	asGroup(root)
	return root
}

// fromEnv fills the flags of cmd that were not given from the environment.
func (a *app) fromEnv(cmd *cobra.Command) error {
	if err := config.ApplyEnv(cmd.Flags(), a.env); err != nil {
		return &usageError{err}
	}
	return a.takeTimeout(cmd)
}

// asGroup makes a command that only holds others refuse to be called itself.
// Left alone, cobra would print the help of "keyhole topic crate" and say that
// all went well.
func asGroup(cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return misused("unknown command %q for %q", args[0], cmd.CommandPath())
		}
		cmd.SetOut(cmd.ErrOrStderr())
		_ = cmd.Help() // can only fail to write
		return misused("%q wants a command", cmd.CommandPath())
	}
	return cmd
}

// jsonFlag adds --json.
func (a *app) jsonFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&a.json, "json", false, "print the result as JSON")
}
