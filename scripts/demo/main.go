// Command demo shows keyhole at work, on real input and on this machine only:
//
//	go run ./scripts/demo        (make demo)
//
// It builds keyhole, starts it with the embedded object store in a temporary
// directory, loads the source tree of the Go installation (key: path, value:
// content), and the history of Apache Kafka's files if it finds that, evicts
// everything to the object store, looks up one key in every state it can be in,
// compacts both tiers, and then checks every key against its source, byte for byte. It exits with 1
// if a single one is wrong.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// Topics of the demo, and the key that is followed through all states.
const (
	treeTopic    = "go-source"
	historyTopic = "kafka-file-history"
	followed     = "net/http/server.go"
	absent       = "net/http/no-such-file.go"
)

// demo is the story: every step prints what it does and what came of it.
type demo struct {
	out      io.Writer
	terminal bool // out is one
	node     *node
}

func run(ctx context.Context, out io.Writer) (err error) {
	start := time.Now()
	dir, err := os.MkdirTemp("", "keyhole-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	f, ok := out.(*os.File)
	d := &demo{out: out, terminal: ok && term.IsTerminal(int(f.Fd()))}
	d.title("Build and start: one binary, an object store in a folder")
	if d.node, err = startNode(ctx, dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.node.stop()) }()
	d.say("%s\n%s", d.node.version, d.node.command)

	inputs, err := findInputs(ctx)
	if err != nil {
		return err
	}
	for _, step := range []func(context.Context, []*source) error{d.load, d.hot, d.evict, d.refused, d.cold, d.cached, d.absent, d.compact, d.verify} {
		if err := step(ctx, inputs); err != nil {
			return err
		}
	}
	d.say("\nAll of it in %.0f s.", time.Since(start).Seconds())
	return nil
}

func (d *demo) title(s string) {
	if d.terminal {
		s = "\x1b[1m" + s + "\x1b[0m" // bold
	}
	fmt.Fprintf(d.out, "\n%s\n", s)
}

func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.out, format+"\n", args...)
}

// keyhole runs a command of the binary and shows both the command and what it
// printed.
func (d *demo) keyhole(ctx context.Context, in io.Reader, args ...string) error {
	d.say("$ keyhole %s", strings.Join(args, " "))
	output, err := d.node.run(ctx, in, args...)
	fmt.Fprint(d.out, output)
	return err
}

func (d *demo) load(ctx context.Context, inputs []*source) error {
	d.title("Load real input")
	if err := d.keyhole(ctx, nil, "config", "set", "kv_index_remote_read_enabled", "false"); err != nil {
		return err
	}
	for _, in := range inputs {
		d.say("# %s", in.what)
		create := []string{"topic", "create", in.topic, "-p", in.partitions, "-c", "redpanda.kv.index.enabled=true", "-c", "segment.bytes=4194304"}
		if err := d.keyhole(ctx, nil, create...); err != nil {
			return err
		}
		if err := in.produce(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// lookup asks for a key and shows the answer's status, headers, size and time.
// It fails unless status and source are the expected ones and the store saw as
// many requests as it may have seen.
func (d *demo) lookup(ctx context.Context, key string, wantStatus int, wantSource string, wantRequests int) error {
	before, err := d.node.storeRequests(ctx)
	if err != nil {
		return err
	}
	d.say("$ curl -i %s/kv/%s/%s", d.node.data, treeTopic, key)
	start := time.Now()
	resp, body, err := d.node.get(ctx, treeTopic, key)
	if err != nil {
		return err
	}
	took := time.Since(start)
	after, err := d.node.storeRequests(ctx)
	if err != nil {
		return err
	}
	d.say("HTTP %s", resp.Status)
	for _, name := range []string{"X-Kv-Partition", "X-Kv-Offset", "X-Kv-Position", "X-Kv-Source", "X-Kv-Reason"} {
		if v := resp.Header.Get(name); v != "" {
			d.say("%s: %s", name, v)
		}
	}
	if resp.StatusCode == http.StatusOK {
		d.say("(%d bytes)", len(body))
	} else {
		d.say("%s", strings.TrimSpace(string(body)))
	}
	d.say("→ %s, %d request(s) to the object store", took.Round(10*time.Microsecond), after-before)
	switch {
	case resp.StatusCode != wantStatus:
		return fmt.Errorf("expected status %d", wantStatus)
	case resp.Header.Get("X-Kv-Source") != wantSource:
		return fmt.Errorf("expected the source %q", wantSource)
	case after-before != wantRequests:
		return fmt.Errorf("expected %d request(s) to the object store", wantRequests)
	}
	return nil
}

func (d *demo) hot(ctx context.Context, _ []*source) error {
	d.title("A hot key: from the local log")
	return d.lookup(ctx, followed, http.StatusOK, "local", 0)
}

func (d *demo) evict(ctx context.Context, inputs []*source) error {
	d.title("Evict: everything goes to the object store, nothing stays on local disk")
	for _, in := range inputs {
		if err := d.keyhole(ctx, nil, "tier", "evict", in.topic); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) refused(ctx context.Context, _ []*source) error {
	d.title("The same key, now cold, while the operator's switch is off")
	return d.lookup(ctx, followed, http.StatusNotFound, "", 0)
}

func (d *demo) cold(ctx context.Context, _ []*source) error {
	d.title("The switch, flipped live: one ranged read")
	if err := d.keyhole(ctx, nil, "config", "set", "kv_index_remote_read_enabled", "true"); err != nil {
		return err
	}
	return d.lookup(ctx, followed, http.StatusOK, "remote", 1)
}

func (d *demo) cached(ctx context.Context, _ []*source) error {
	d.title("Once more: from the chunk cache")
	return d.lookup(ctx, followed, http.StatusOK, "cache", 0)
}

func (d *demo) absent(ctx context.Context, _ []*source) error {
	d.title("A key that does not exist: the index knows, the store is not asked")
	return d.lookup(ctx, absent, http.StatusNotFound, "", 0)
}

func (d *demo) compact(ctx context.Context, inputs []*source) error {
	d.title("Write all files once more, then compact: what was replaced or deleted goes, in both tiers, and no offset moves")
	if err := inputs[0].produce(ctx, d); err != nil {
		return err
	}
	for _, in := range inputs {
		if err := d.keyhole(ctx, nil, "tier", "compact", in.topic); err != nil {
			return err
		}
	}
	return nil
}
