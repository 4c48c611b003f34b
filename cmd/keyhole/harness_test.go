package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// served is a running keyhole serve.
type served struct {
	t           *testing.T
	cmd         *exec.Cmd
	data, admin string
	serving     chan struct{} // closed when it has said where it listens
	ended       chan struct{} // closed when the process has ended
	code        int

	mu  sync.Mutex
	log strings.Builder
}

// deadline bounds every wait of these tests; it is never waited out when all is
// well, and generous, because the machine may be busy with other tests, or stand
// still for seconds.
const deadline = 2 * time.Minute

// startServe starts keyhole serve on free ports and waits until it listens.
func startServe(t *testing.T, env []string, args ...string) *served {
	t.Helper()
	s := beginServe(t, env, args...)
	select {
	case <-s.serving:
	case <-s.ended:
		t.Fatalf("serve ended with %d:\n%s", s.code, s.output())
	case <-time.After(deadline):
		t.Fatalf("serve does not listen:\n%s", s.output())
	}
	return s
}

func beginServe(t *testing.T, env []string, args ...string) *served {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	args = append([]string{"serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--log-format", "json"}, args...)
	s := &served{t: t, cmd: command(ctx, env, args...), serving: make(chan struct{}), ended: make(chan struct{})}
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.ended)
		s.follow(stderr)
		_ = s.cmd.Wait()
		s.code = s.cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() {
		cancel() // kills it if it still runs
		<-s.ended
	})
	return s
}

func (s *served) follow(r io.Reader) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		s.mu.Lock()
		s.log.WriteString(lines.Text() + "\n")
		s.mu.Unlock()
		var line struct{ Msg, Data, Admin string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "serving" {
			s.data, s.admin = line.Data, line.Admin
			close(s.serving)
		}
	}
}

func (s *served) output() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

func (s *served) env() []string {
	return []string{"KEYHOLE_URL=" + s.data, "KEYHOLE_ADMIN_URL=" + s.admin}
}

func (s *served) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// wantEnd waits for the end of the process.
func (s *served) wantEnd(code int) {
	s.t.Helper()
	select {
	case <-s.ended:
	case <-time.After(deadline):
		s.t.Fatalf("still running:\n%s", s.output())
	}
	if s.code != code {
		s.t.Fatalf("exit %d, want %d:\n%s", s.code, code, s.output())
	}
}

// status asks for a URL; 0: no answer.
func status(url string) int {
	client := http.Client{Timeout: deadline, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// eventually polls until ok, at most for the deadline.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for begun := time.Now(); ; {
		late := time.Since(begun) > deadline // asked before: a pause in between is none of ok's
		if ok() {
			return
		}
		if late {
			t.Fatalf("%s: not within %s", what, deadline)
		}
		<-tick.C
	}
}

func (s *served) waitReady() {
	s.t.Helper()
	eventually(s.t, "ready", func() bool { return status(s.admin+"/v1/status/ready") == http.StatusOK })
}
