package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"time"
)

// process is a server that was started for a measurement.
type process struct {
	cmd   *exec.Cmd
	addr  string
	stdin io.Closer // closing it ends the process, where it listens to that
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// stop ends the process, in which nothing is worth keeping.
func (p *process) stop() {
	if p.stdin != nil {
		_ = p.stdin.Close()
	}
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.cmd.Wait()
}

// childBare makes this program the least HTTP server there is: net/http with one
// handler that answers every request with the same value, and Content-Type and
// Content-Length. It prints its address and ends with its standard input.
const childBare = "child-bare"

func startBare(size int) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, childBare, "-size", strconv.Itoa(size))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, stdin: stdin}
	if p.addr, err = readLine(stdout); err != nil {
		p.stop()
		return nil, fmt.Errorf("bare handler: %w", err)
	}
	return p, nil
}

func runBare(args []string) error {
	flags := flag.NewFlagSet(childBare, flag.ContinueOnError)
	size := flags.Int("size", 0, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	value := bytes.Repeat([]byte("v"), *size)
	contentType, length := []string{"application/octet-stream"}, []string{strconv.Itoa(*size)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h["Content-Type"], h["Content-Length"] = contentType, length
		_, _ = w.Write(value)
	})}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = srv.Close()
	}()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// errNoRedis says that there is no redis-server on this machine.
var errNoRedis = errors.New("redis-server is not in PATH")

// startRedis runs a redis-server that writes nothing to disk and fills it.
func startRedis(ctx context.Context, dir string, keys int, value func(i int) []byte) (*process, error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, errNoRedis
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(program, "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no", "--dir", dir), addr: addr}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	if err := fillRedis(ctx, addr, keys, value); err != nil {
		p.stop()
		return nil, fmt.Errorf("redis: %w", err)
	}
	return p, nil
}

func fillRedis(ctx context.Context, addr string, keys int, value func(i int) []byte) error {
	var conn net.Conn
	err := poll(ctx, 20*time.Second, "redis-server listens", func() (bool, error) {
		var err error
		conn, err = net.Dial("tcp", addr)
		return err == nil, nil
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	answer := make([]byte, len("+OK\r\n"))
	var b []byte
	for i := range keys {
		key, v := hotKey(i), value(i)
		b = fmt.Appendf(b[:0], "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(key), key, len(v), v)
		if _, err := conn.Write(b); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, answer); err != nil {
			return err
		}
		if string(answer) != "+OK\r\n" {
			return fmt.Errorf("SET answers %q", answer)
		}
	}
	return nil
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// poll asks until done, an error or the deadline: its callers have no event to
// wait for.
func poll(ctx context.Context, timeout time.Duration, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w", what, ctx.Err())
		}
	}
}
