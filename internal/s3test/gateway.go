// Package s3test gives tests S3 stores to talk to: a real one (Gateway, the
// versitygw program over a temporary folder), a small one in this process that
// can be told to misbehave (Stub), and a proxy that counts what reaches either
// (Proxy). All of them listen on the loopback interface only and end with the
// test.
package s3test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Credentials of every store here.
const (
	AccessKey = "keyhole-test-access"
	SecretKey = "keyhole-test-secret-0123456789"
	Bucket    = "keyhole-test"
)

// Gateway is a running versitygw.
type Gateway struct {
	Endpoint string // http://127.0.0.1:port
	Dir      string // folder that holds the bucket Bucket as a folder
}

// startTimeout is how long versitygw may take until it answers.
const startTimeout = time.Minute

// StartGateway runs versitygw with an empty bucket until the test ends. The
// program is searched as $KEYHOLE_VERSITYGW, bin/versitygw in the module, and
// in PATH; without it the test is skipped.
func StartGateway(t testing.TB) *Gateway {
	t.Helper()
	program, ok := findGateway()
	if !ok {
		t.Skip("versitygw is not there: set KEYHOLE_VERSITYGW, or put it into bin/ or PATH")
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, Bucket), 0o755); err != nil {
		t.Fatal(err)
	}
	// Between finding a free port and using it somebody else may take it.
	for range 20 {
		g, output, err := startGateway(t, program, dir)
		if err == nil {
			return g
		}
		t.Logf("versitygw: %v\n%s", err, output)
	}
	t.Fatal("versitygw does not start")
	return nil
}

func startGateway(t testing.TB, program, dir string) (*Gateway, string, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, "", err
	}
	var output lockedBuffer
	cmd := exec.Command(program, "--access", AccessKey, "--secret", SecretKey, "--port", addr,
		"--keep-alive", "--quiet", "posix", dir)
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it is killed below: the error says only that
	}()
	stop := func() {
		_ = cmd.Process.Kill() // it may have ended by itself
		<-ended
	}
	if err := waitForAnswer("http://"+addr, ended); err != nil {
		stop()
		return nil, output.String(), err
	}
	t.Cleanup(stop)
	return &Gateway{Endpoint: "http://" + addr, Dir: dir}, "", nil
}

// waitForAnswer polls until the server answers anything at all.
func waitForAnswer(endpoint string, ended <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint, nil)
		if err != nil {
			return err
		}
		if resp, err := client.Do(req); err == nil {
			return resp.Body.Close()
		}
		select {
		case <-ended:
			return errors.New("ended at once")
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// freeAddr gives an address that nobody listens on. Its port is none that the system
// would give to whoever asks for any: such a one could be taken before the program
// has it, by a server that answers in its place.
func freeAddr() (string, error) {
	const first, last = 10_000, 30_000
	var errs error
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+rand.IntN(last-first)))
		if err == nil {
			return l.Addr().String(), l.Close()
		}
		errs = err
	}
	return "", errs
}

func findGateway() (string, bool) {
	if program := os.Getenv("KEYHOLE_VERSITYGW"); program != "" {
		return program, true
	}
	if dir, err := os.Getwd(); err == nil {
		for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
			if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
				continue
			}
			program := filepath.Join(dir, "bin", "versitygw")
			if _, err := os.Stat(program); err == nil {
				return program, true
			}
			break
		}
	}
	program, err := exec.LookPath("versitygw")
	return program, err == nil
}

// URL is an object store URL for a bucket at an endpoint of this package.
func URL(endpoint, prefix, client string) string {
	query := url.Values{"endpoint": {endpoint}, "region": {"us-east-1"}, "path_style": {"true"}, "client": {client}}
	u := url.URL{Scheme: "s3", Host: Bucket, Path: "/" + prefix, RawQuery: query.Encode()}
	return u.String()
}

// Environment is the credentials for a child process, and what keeps it from
// finding any others.
func Environment() []string {
	var env []string
	for name, value := range environment {
		env = append(env, name+"="+value)
	}
	return env
}

var environment = map[string]string{
	"AWS_ACCESS_KEY_ID":           AccessKey,
	"AWS_SECRET_ACCESS_KEY":       SecretKey,
	"AWS_SESSION_TOKEN":           "",
	"AWS_PROFILE":                 "",
	"AWS_REGION":                  "",
	"AWS_DEFAULT_REGION":          "",
	"AWS_ENDPOINT_URL":            "",
	"AWS_ENDPOINT_URL_S3":         "",
	"AWS_CONFIG_FILE":             os.DevNull,
	"AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
	"AWS_EC2_METADATA_DISABLED":   "true",
}

// SetEnvironment gives this process the credentials for the length of a test.
func SetEnvironment(t testing.TB) {
	for name, value := range environment {
		t.Setenv(name, value)
	}
}

// lockedBuffer is a buffer that a child process and a test may use at once.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

var _ io.Writer = (*lockedBuffer)(nil)

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
