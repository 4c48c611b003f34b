// Command keyhole is the gateway, its client and its tools in one binary.
//
//	serve                      wiring: flags → store → catalog → gateway, and back down on a signal
//	topic config tier          ask the admin listener   ─┐
//	produce get                ask the data listener     ├ client.go
//	healthcheck                asks whether a node is ready ─┘
//
// Results go to standard output, everything else to standard error. It exits
// with 0 when done, 1 when something failed, 2 when it was called wrongly.
// Every flag can be given as an environment variable, and the flags of serve in
// a YAML file as well; package config holds the rules. Each command is one file.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitMisuse = 2
)

// app is what the commands share: the world outside of the process.
type app struct {
	in   io.Reader
	out  io.Writer // results
	err  io.Writer // messages, progress, logs
	env  func(string) (string, bool)
	json bool // flag --json

	client clientFlags
}

func main() {
	// The first signal asks the command to end in order; after it the signals
	// have their default effect again, so that a second one aborts.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.LookupEnv}
	code := a.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// run executes one command line and gives the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.newRoot()
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	var misuse *usageError
	if errors.As(err, &misuse) {
		fmt.Fprintf(a.err, "keyhole: %v\nTry '%s --help'.\n", err, cmd.CommandPath())
		return exitMisuse
	}
	fmt.Fprintf(a.err, "keyhole: %v\n", err)
	return exitFailed
}

// usageError is a command line, an environment variable or a configuration file
// that makes no sense; nothing has been tried.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func misused(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// exactly wants n arguments; what names them in the message.
func exactly(n int, what string) cobra.PositionalArgs { return between(n, n, what) }

// between wants lo to hi arguments; hi < 0 is no limit.
func between(lo, hi int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < lo || hi >= 0 && len(args) > hi {
			if what == "" {
				return misused("takes no arguments, got %d", len(args))
			}
			return misused("wants %s, got %d argument(s)", what, len(args))
		}
		return nil
	}
}
