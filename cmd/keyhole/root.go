package main

import (
	"strings"

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
	root.Version = readBuildInfo().String()
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetHelpCommand(newHelp(root))
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
			return misused("unknown command %q for %q%s", args[0], cmd.CommandPath(), suggestion(cmd, args[0]))
		}
		cmd.SetOut(cmd.ErrOrStderr())
		_ = cmd.Help() // can only fail to write
		return misused("%q wants a command", cmd.CommandPath())
	}
	return cmd
}

// suggestion names the commands that wrong may be a misspelling of.
func suggestion(cmd *cobra.Command, wrong string) string {
	cmd.SuggestionsMinimumDistance = 2 // single edits, and two letters that swapped places
	near := cmd.SuggestionsFor(wrong)
	if len(near) == 0 {
		return ""
	}
	return "; did you mean " + strings.Join(near, " or ") + "?"
}

// newHelp is cobra's help command, except that help for what does not exist is
// misuse. Left alone, cobra would say so and exit with 0.
func newHelp(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Print the help of a command",
		Example: "  keyhole help tier evict",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			switch {
			case err != nil:
				return &usageError{err}
			case len(rest) > 0:
				return misused("no command %q in %q%s", rest[0], cmd.CommandPath(), suggestion(cmd, rest[0]))
			}
			cmd.InitDefaultHelpFlag()
			cmd.InitDefaultVersionFlag()
			return cmd.Help()
		},
	}
}

// jsonFlag adds --json.
func (a *app) jsonFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&a.json, "json", false, "print the result as JSON")
}
