package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds what must happen soon. It is never waited out when all is well, and
// generous, because the machine may be busy with other tests, or stand still for
// seconds.
const patience = 2 * time.Minute

// poll asks until ok, for as long as patience says; its callers have no event to wait for.
func poll(t testing.TB, what string, ok func() bool) {
	t.Helper()
	begun := time.Now()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		late := time.Since(begun) > patience // asked before: a pause in between is none of ok's
		if ok() {
			return
		}
		if late {
			t.Fatalf("not within %v: %s", patience, what)
		}
		<-tick.C
	}
}

// output is what a process writes, readable while it runs.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// node is one data directory and the process on it, which may come and go.
type node struct {
	t     testing.TB
	dir   string
	store *store // nil: none
	flags []string

	// lookups is how long a lookup may take once the index is switched on, in
	// milliseconds.
	lookups int

	data, admin string // addresses of the running process
	logs        *output
	cmd         *exec.Cmd
	exited      chan struct{} // closed once the process has ended and was waited for
}

// newNode prepares a node on an empty data directory; start runs it.
func newNode(t testing.TB, s *store, flags ...string) *node {
	n := &node{t: t, dir: filepath.Join(t.TempDir(), "data"), store: s, flags: flags, lookups: slowLookups, logs: &output{}}
	t.Cleanup(func() {
		n.kill()
		for _, bug := range []string{"DATA RACE", "panic"} {
			if strings.Contains(n.logs.String(), bug) {
				t.Errorf("the log tells of a bug: %q", bug)
			}
		}
		if t.Failed() {
			t.Logf("logs of the node on %s:\n%s", n.dir, tail(n.logs.String(), 16<<10))
		}
	})
	return n
}

// startNode is a running, ready node on an empty data directory.
func startNode(t testing.TB, s *store, flags ...string) *node {
	t.Helper()
	n := newNode(t, s, flags...)
	n.start()
	n.waitReady()
	return n
}

// in makes a subtest the one that the node's methods report to, until it ends.
func (n *node) in(t testing.TB) {
	outer := n.t
	n.t = t
	t.Cleanup(func() { n.t = outer })
}

func tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return "…" + s[len(s)-n:]
}

// environment is that of a child process: ours without any setting of keyhole
// or credentials, and the store's.
func environment(s *store, extra ...string) []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "KEYHOLE_") && !strings.HasPrefix(kv, "AWS_") {
			env = append(env, kv)
		}
	}
	if s != nil {
		env = append(env, s.env...)
	}
	return append(env, extra...)
}

func (n *node) args() []string {
	args := []string{"serve", "--data-dir", n.dir, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--drain-window", "0s"}
	if n.store != nil {
		args = append(args, "--object-store", n.store.url)
	}
	return append(args, n.flags...)
}

// start runs the process and waits until it has told where it listens.
func (n *node) start() {
	n.t.Helper()
	mark := len(n.logs.String())
	cmd := exec.Command(program, n.args()...)
	cmd.Env = environment(n.store)
	cmd.Stdout, cmd.Stderr = n.logs, n.logs
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait() // the state is read from cmd.ProcessState
	}()
	n.cmd, n.exited = cmd, exited
	poll(n.t, "the node tells its addresses", func() bool {
		select {
		case <-exited:
			n.t.Fatalf("the node ended at its start: %v", cmd.ProcessState)
		default:
		}
		n.data, n.admin = addresses(n.logs.String()[mark:])
		return n.admin != ""
	})
}

// addresses finds the URLs of both listeners in the log.
func addresses(logs string) (data, admin string) {
	for line := range strings.Lines(logs) {
		if !strings.Contains(line, "msg=serving") || !strings.HasSuffix(line, "\n") {
			continue
		}
		for field := range strings.FieldsSeq(line) {
			if v, ok := strings.CutPrefix(field, "data="); ok {
				data = v
			}
			if v, ok := strings.CutPrefix(field, "admin="); ok {
				admin = v
			}
		}
	}
	return data, admin
}

func (n *node) waitReady() {
	n.t.Helper()
	poll(n.t, "readiness", func() bool {
		select {
		case <-n.exited:
			n.t.Fatalf("the node ended: %v", n.cmd.ProcessState)
		default:
		}
		r, err := n.try("GET", n.admin+"/v1/status/ready", nil, nil)
		return err == nil && r.status == 200
	})
}

// wait gives the exit code of the process.
func (n *node) wait() int {
	n.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-n.exited:
	case <-timer.C:
		_ = n.cmd.Process.Signal(syscall.SIGQUIT) // shows where it hangs
		<-n.exited
		n.t.Fatalf("the node did not end within %v", patience)
	}
	return n.cmd.ProcessState.ExitCode()
}

// stop ends the process in order, which must succeed.
func (n *node) stop() {
	n.t.Helper()
	n.terminate()
	if code := n.wait(); code != 0 {
		n.t.Fatalf("exit code %d after SIGTERM, want 0", code)
	}
}

func (n *node) terminate() {
	n.t.Helper()
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		n.t.Fatal(err)
	}
}

// kill ends the process at once, if it runs.
func (n *node) kill() {
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Kill() // it may have ended
	<-n.exited
}

// restart ends the process in order and runs it again. No client may be at work.
func (n *node) restart() {
	n.t.Helper()
	n.leave()
	n.start()
	n.waitReady()
}

// cliResult is how a command ended.
type cliResult struct {
	stdout, stderr string
	code           int
}

// cli runs a client command against the node.
func (n *node) cli(stdin string, args ...string) cliResult {
	n.t.Helper()
	return runCLI(n.t, stdin, environment(n.store, "KEYHOLE_URL="+n.data, "KEYHOLE_ADMIN_URL="+n.admin), args...)
}

// check runs the check of both tiers, which the node may have left in any way.
func (n *node) check() cliResult {
	n.t.Helper()
	return runCLI(n.t, "", environment(n.store), "check", "--data-dir", n.dir, "--object-store", n.store.url)
}

// mustCheck wants that all holds.
func (n *node) mustCheck(when string) {
	n.t.Helper()
	if r := n.check(); r.code != 0 {
		n.t.Fatalf("check %s: exit %d\n%s%s", when, r.code, r.stdout, r.stderr)
	}
}

// mustCLI is cli that must succeed; it gives the standard output.
func (n *node) mustCLI(stdin string, args ...string) string {
	n.t.Helper()
	r := n.cli(stdin, args...)
	if r.code != 0 {
		n.t.Fatalf("keyhole %s: exit %d\n%s%s", strings.Join(args, " "), r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

func runCLI(t testing.TB, stdin string, env []string, args ...string) cliResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = env
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("keyhole %s: %v", strings.Join(args, " "), err)
	}
	return cliResult{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// rawGET sends one request line exactly as given, which no HTTP client would,
// and gives the whole answer as text.
func (n *node) rawGET(target string) string {
	n.t.Helper()
	addr := strings.TrimPrefix(n.data, "http://")
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		n.t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		n.t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", target, addr); err != nil {
		n.t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := b.ReadFrom(conn); err != nil {
		n.t.Fatal(err)
	}
	return b.String()
}
