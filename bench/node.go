package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// node is a running keyhole on a data directory.
type node struct {
	process
	binary      string
	env         []string
	args        []string
	data, admin string // base URLs
	http        *http.Client
	ended       chan struct{}
	exit        error
	mu          struct {
		sync.Mutex
		log []string // the last lines
	}
}

// startNode runs keyhole until it is ready, with all switches on. store is an
// object store URL, env its credentials.
func (b *bench) startNode(ctx context.Context, dir, store string, env ...string) (*node, error) {
	n := &node{
		binary: b.binary,
		env:    append(cleanEnv(), env...),
		args:   []string{"serve", "--data-dir", dir, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--drain-window", "0s", "--log-format", "json"},
		http:   &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
	}
	if store != "" {
		n.args = append(n.args, "--object-store", store)
	}
	if err := n.start(ctx); err != nil {
		return nil, err
	}
	on := map[string]any{"kv_index_enabled": true, "kv_index_remote_read_enabled": true}
	err := errors.Join(
		n.api(ctx, "PUT", "/v1/features/kv_index", map[string]any{"state": "active"}, nil),
		n.set(ctx, on),
	)
	if err != nil {
		n.kill()
		return nil, err
	}
	return n, nil
}

// cleanEnv is the environment without settings of keyhole or of a store.
func cleanEnv() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "KEYHOLE_") && !strings.HasPrefix(e, "AWS_") {
			env = append(env, e)
		}
	}
	return env
}

func (n *node) start(ctx context.Context) error {
	n.cmd = exec.Command(n.binary, n.args...)
	n.cmd.Env = n.env
	stderr, err := n.cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := n.cmd.Start(); err != nil {
		return err
	}
	serving := make(chan struct{})
	n.ended = make(chan struct{})
	go func() {
		defer close(n.ended)
		n.follow(stderr, serving)
		n.exit = n.cmd.Wait()
	}()
	select {
	case <-serving:
	case <-n.ended:
		return n.trouble(errors.New("keyhole ended at once"))
	case <-ctx.Done():
		n.kill()
		return ctx.Err()
	}
	n.addr = strings.TrimPrefix(n.data, "http://")
	if err := n.waitReady(ctx); err != nil {
		n.kill()
		return n.trouble(err)
	}
	return nil
}

func (n *node) waitReady(ctx context.Context) error {
	return poll(ctx, 5*time.Minute, "keyhole is ready", func() (bool, error) {
		select {
		case <-n.ended:
			return false, errors.New("keyhole ended")
		default:
		}
		err := n.api(ctx, "GET", "/v1/status/ready", nil, nil)
		return err == nil, nil
	})
}

// follow reads the log until its end, takes the addresses from it and keeps its
// last lines.
func (n *node) follow(r io.Reader, serving chan<- struct{}) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	found := false
	for lines.Scan() {
		n.mu.Lock()
		if n.mu.log = append(n.mu.log, lines.Text()); len(n.mu.log) > 30 {
			n.mu.log = n.mu.log[1:]
		}
		n.mu.Unlock()
		var line struct{ Msg, Data, Admin string }
		if !found && json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "serving" {
			n.data, n.admin = line.Data, line.Admin
			found = true
			close(serving)
		}
	}
	_, _ = io.Copy(io.Discard, r) // so that the node is never blocked
}

// trouble adds the end of the log to an error.
func (n *node) trouble(err error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return fmt.Errorf("%w\n%s", err, strings.Join(n.mu.log, "\n"))
}

// kill ends the node at once, if it runs.
func (n *node) kill() {
	_ = n.cmd.Process.Kill()
	<-n.ended
	n.http.CloseIdleConnections()
}

// halt ends the node in order.
func (n *node) halt() error {
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	<-n.ended
	n.http.CloseIdleConnections()
	if n.exit != nil {
		return n.trouble(n.exit)
	}
	return nil
}

// api calls the admin listener.
func (n *node) api(ctx context.Context, method, path string, body, into any) error {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, n.admin+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	resp, err := n.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, answer)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer, into)
}

// set sets cluster properties.
func (n *node) set(ctx context.Context, values map[string]any) error {
	return n.api(ctx, "PUT", "/v1/cluster_config", map[string]any{"upsert": values}, nil)
}

func (n *node) createTopic(ctx context.Context, name string, partitions int, configs map[string]string) error {
	all := map[string]string{"redpanda.kv.index.enabled": "true"}
	for k, v := range configs {
		all[k] = v
	}
	if err := n.api(ctx, "POST", "/v1/topics", map[string]any{"name": name, "partitions": partitions, "configs": all}, nil); err != nil {
		return err
	}
	return n.waitReady(ctx)
}

// produce writes records with the command for that.
func (n *node) produce(ctx context.Context, topic string, records iter.Seq[pair]) error {
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.CloseWithError(writeLines(w, records))
	}()
	cmd := exec.CommandContext(ctx, n.binary, "produce", topic)
	cmd.Env = append(cleanEnv(), "KEYHOLE_URL="+n.data, "KEYHOLE_ADMIN_URL="+n.admin)
	cmd.Stdin = r
	output, err := cmd.CombinedOutput()
	r.CloseWithError(errors.New("keyhole produce has ended"))
	<-done
	if err != nil {
		return fmt.Errorf("keyhole produce: %w\n%s", err, output)
	}
	return nil
}

// evict moves a whole topic to the object store.
func (n *node) evict(ctx context.Context, topic string, partitions int) error {
	for p := range partitions {
		if err := n.api(ctx, "POST", fmt.Sprintf("/v1/cloud_storage/evict/%s/%d", topic, p), map[string]any{"local_target_bytes": 0}, nil); err != nil {
			return err
		}
	}
	return nil
}

// answer is what matters of an answer to a lookup.
type answer struct {
	status int
	source string
	etag   string
	body   []byte
	took   time.Duration
}

// lookup sends one request for a key.
func (n *node) lookup(ctx context.Context, method, topic, key, etag string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, n.data+"/kv/"+topic+"/"+url.PathEscape(key), nil)
	if err != nil {
		return answer{}, err
	}
	if etag != "" {
		req.Header.Set("If-None-Match", etag)
	}
	start := time.Now()
	resp, err := n.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header.Get("X-Kv-Source"), resp.Header.Get("ETag"), body, time.Since(start)}, err
}
