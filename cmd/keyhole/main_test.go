package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// beKeyhole makes the test binary behave as keyhole, so that the tests run the
// real command line, its process and its exit code, and the race detector sees
// that process too.
const beKeyhole = "KEYHOLE_TEST_BE_KEYHOLE"

func TestMain(m *testing.M) {
	if os.Getenv(beKeyhole) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// commandTimeout ends a command that hangs.
const commandTimeout = 3 * time.Minute

// command prepares keyhole with the given arguments and nothing of the
// environment but what env says.
func command(ctx context.Context, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	// Without GORACE a process with the race detector sleeps a second at its end.
	cmd.Env = append([]string{"GORACE=atexit_sleep_ms=0", beKeyhole + "=1", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.TempDir()}, env...)
	return cmd
}

// result is what a command did.
type result struct {
	code        int
	stdout, err string
}

// keyhole runs a command to its end.
func keyhole(t *testing.T, env []string, stdin io.Reader, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	cmd := command(ctx, env, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("keyhole %s: %v\n%s", strings.Join(args, " "), err, errs.String())
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// want fails unless the command ended with code, and its output and its
// messages contain the given texts.
func (r result) want(t *testing.T, code int, stdout, stderr string) {
	t.Helper()
	if r.code != code || !strings.Contains(r.stdout, stdout) || !strings.Contains(r.err, stderr) {
		t.Fatalf("exit %d, stdout %q, stderr %q\nwant exit %d, stdout with %q, stderr with %q", r.code, r.stdout, r.err, code, stdout, stderr)
	}
	if code != exitDone && r.err == "" {
		t.Fatal("failed without a message")
	}
}
