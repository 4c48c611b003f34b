package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// node is a running keyhole.
type node struct {
	binary  string
	command string // how it was started, for the reader
	version string
	data    string // base URL of the data listener
	admin   string // of the admin listener

	cmd    *exec.Cmd
	ended  chan struct{} // closed when the process has ended with exit
	exit   error
	log    tail
	client *http.Client
}

// startTimeout is how long a new node may take until it is ready.
const startTimeout = 30 * time.Second

// stopTimeout is how long it may take to stop.
const stopTimeout = 60 * time.Second

// startNode builds keyhole and starts it with everything in dir.
func startNode(ctx context.Context, dir string) (*node, error) {
	n := &node{
		binary: filepath.Join(dir, "keyhole"),
		ended:  make(chan struct{}),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", n.binary, "keyhole/cmd/keyhole")
	if output, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w\n%s", err, output)
	}
	version, err := n.run(ctx, nil, "version")
	if err != nil {
		return nil, err
	}
	n.version = strings.TrimSpace(version)

	args := []string{"serve", "--dev", "--data-dir", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}
	n.command = "$ keyhole " + strings.Join(args, " ")
	n.cmd = exec.Command(n.binary, append(args, "--log-format", "json")...)
	n.cmd.Env = cleanEnv()
	stderr, err := n.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := n.cmd.Start(); err != nil {
		return nil, err
	}
	serving := make(chan struct{})
	go func() {
		defer close(n.ended)
		n.follow(stderr, serving)
		n.exit = n.cmd.Wait()
	}()
	if err := n.waitReady(ctx, serving); err != nil {
		return nil, errors.Join(fmt.Errorf("start: %w\n%s", err, n.log.String()), n.stop())
	}
	return n, nil
}

// cleanEnv is the environment without settings of keyhole that would change
// what the demo shows.
func cleanEnv() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "KEYHOLE_") {
			env = append(env, e)
		}
	}
	return env
}

// follow reads the log until its end, takes the addresses from it and keeps its
// last lines for error messages.
func (n *node) follow(r io.Reader, serving chan<- struct{}) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	found := false
	for lines.Scan() {
		n.log.add(lines.Text())
		var line struct{ Msg, Data, Admin string }
		if !found && json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "serving" {
			n.data, n.admin = line.Data, line.Admin
			found = true
			close(serving)
		}
	}
	_, _ = io.Copy(io.Discard, r) // after a line too long, so that the node is not blocked
}

func (n *node) waitReady(ctx context.Context, serving <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case <-serving:
	case <-n.ended:
		return errors.New("keyhole ended at once")
	case <-ctx.Done():
		return ctx.Err()
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		resp, _, err := n.fetch(ctx, n.admin+"/v1/status/ready")
		if err == nil && resp.StatusCode == http.StatusOK {
			return nil
		}
		select {
		case <-tick.C:
		case <-n.ended:
			return errors.New("keyhole ended")
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w", ctx.Err())
		}
	}
}

// stop ends the node as an operator would and expects it to say that all went
// well.
func (n *node) stop() error {
	n.client.CloseIdleConnections()
	select {
	case <-n.ended:
		return fmt.Errorf("keyhole ended by itself: %v\n%s", n.exit, n.log.String())
	default:
	}
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	kill := time.AfterFunc(stopTimeout, func() { _ = n.cmd.Process.Kill() })
	defer kill.Stop()
	<-n.ended
	if n.exit != nil {
		return fmt.Errorf("keyhole did not stop in order: %w\n%s", n.exit, n.log.String())
	}
	return nil
}

// run executes a client command against the node and gives its output.
func (n *node) run(ctx context.Context, in io.Reader, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, n.binary, args...)
	cmd.Env = append(cleanEnv(), "KEYHOLE_URL="+n.data, "KEYHOLE_ADMIN_URL="+n.admin)
	cmd.Stdin = in
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("keyhole %s: %w\n%s", args[0], err, errs.String())
	}
	return out.String(), nil
}

// get looks a key up.
func (n *node) get(ctx context.Context, topic, key string) (*http.Response, []byte, error) {
	segments := strings.Split(key, "/")
	for i := range segments {
		segments[i] = url.PathEscape(segments[i])
	}
	return n.fetch(ctx, n.data+"/kv/"+topic+"/"+strings.Join(segments, "/"))
}

func (n *node) fetch(ctx context.Context, target string) (*http.Response, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, nil, err
	}
	resp, err := n.client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, body, err
}

// storeRequests is how many requests the node has made to the object store to
// read or to list.
func (n *node) storeRequests(ctx context.Context) (int, error) {
	resp, body, err := n.fetch(ctx, n.admin+"/metrics")
	if err != nil {
		return 0, err
	}
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("metrics: HTTP %s", resp.Status)
	}
	sum, found := 0.0, false
	for line := range strings.Lines(string(body)) {
		rest, ok := strings.CutPrefix(line, "keyhole_object_store_requests_total{")
		if !ok {
			continue
		}
		labels, value, _ := strings.Cut(rest, "} ")
		if !strings.Contains(labels, `op="read"`) && !strings.Contains(labels, `op="get"`) && !strings.Contains(labels, `op="list"`) {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			return 0, fmt.Errorf("metrics: %w", err)
		}
		sum, found = sum+v, true
	}
	if !found {
		return 0, errors.New("metrics do not count the requests to the object store")
	}
	return int(sum), nil
}

// tail keeps the last lines of a log.
type tail struct {
	mu    sync.Mutex
	lines []string
}

const tailLines = 40

func (t *tail) add(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lines = append(t.lines, line); len(t.lines) > tailLines {
		t.lines = t.lines[1:]
	}
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.lines, "\n")
}
