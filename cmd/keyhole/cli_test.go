package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"keyhole/config"
)

func TestMisuse(t *testing.T) {
	yaml := func(text string) string {
		name := filepath.Join(t.TempDir(), "k.yaml")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for _, c := range []struct {
		args   []string
		env    []string
		stderr string
	}{
		{args: nil, stderr: "wants a command"},
		{args: []string{"sevre"}, stderr: `unknown command "sevre" for "keyhole"; did you mean serve?`},
		{args: []string{"zzz"}, stderr: "unknown command \"zzz\" for \"keyhole\"\n"},
		{args: []string{"help", "sevre"}, stderr: "did you mean serve?"},
		{args: []string{"help", "tier", "nope"}, stderr: `no command "nope" in "keyhole tier"`},
		{args: []string{"help", "get", "x"}, stderr: `no command "x" in "keyhole get"`},
		{args: []string{"topic"}, stderr: "wants a command"},
		{args: []string{"topic", "crate", "x"}, stderr: `unknown command "crate"`},
		{args: []string{"tier", "evit", "x"}, stderr: `unknown command "evit"`},
		{args: []string{"topic", "create"}, stderr: "wants TOPIC"},
		{args: []string{"topic", "create", "a", "b"}, stderr: "wants TOPIC"},
		{args: []string{"topic", "create", "a", "--partitions", "many"}, stderr: "partitions"},
		{args: []string{"topic", "create", "a", "-c", "novalue"}, stderr: "name=value"},
		{args: []string{"topic", "create", "a", "-c", "x=1", "-c", "x=2"}, stderr: "twice"},
		{args: []string{"topic", "alter-config", "a"}, stderr: "--set"},
		{args: []string{"topic", "list", "--nonsense"}, stderr: "unknown flag"},
		{args: []string{"get", "t"}, stderr: "wants TOPIC KEY"},
		{args: []string{"get", "t", "k", "--partition", "-1"}, stderr: "--partition"},
		{args: []string{"get", "t", "k", "--key-encoding", "rot13"}, stderr: "--key-encoding"},
		{args: []string{"get", "t", "xyz", "--key-encoding", "hex"}, stderr: "hexadecimal"},
		{args: []string{"get", "t", "?", "--key-encoding", "base64url"}, stderr: "base64url"},
		{args: []string{"get", "t", "k", "--wait", "31s"}, stderr: "--wait"},
		{args: []string{"get", "t", "k", "--url", "127.0.0.1:8082"}, stderr: "--url"},
		{args: []string{"get", "t", "k", "--url", "http://u:geheim@h:1/?q"}, stderr: "--url"},
		{args: []string{"get", "t", "k"}, env: []string{"KEYHOLE_URL=file:///x"}, stderr: "--url"},
		{args: []string{"get", "t", "k"}, env: []string{"KEYHOLE_TIMEOUT=soon"}, stderr: "KEYHOLE_TIMEOUT"},
		{args: []string{"get", "t", "k", "--timeout", "-1s"}, stderr: "--timeout"},
		{args: []string{"topic", "list"}, env: []string{"KEYHOLE_TIMEOUT=-1s"}, stderr: "--timeout"},
		{args: []string{"produce"}, stderr: "wants TOPIC"},
		{args: []string{"produce", "t", "--retry-timeout", "-1s"}, stderr: "--retry-timeout"},
		{args: []string{"config", "set", "x"}, stderr: "wants NAME VALUE"},
		{args: []string{"config", "set", "x", "1", "--default"}, stderr: "wants NAME"},
		{args: []string{"tier", "evict", "t", "zero"}, stderr: "PARTITION"},
		{args: []string{"tier", "compact"}, stderr: "wants TOPIC [PARTITION]"},
		{args: []string{"tier", "compact", "t", "zero"}, stderr: "PARTITION"},
		{args: []string{"tier", "gc", "t", "-1"}, stderr: "shorthand"},
		{args: []string{"tier", "gc", "t", "1.5"}, stderr: "PARTITION"},
		{args: []string{"tier", "gc", ""}, stderr: "TOPIC"},
		{args: []string{"tier", "gc", "t", "0", "x"}, stderr: "wants [TOPIC [PARTITION]]"},
		{args: []string{"tier", "evict", "t", "0", "--local-target-bytes", "-1"}, stderr: "--local-target-bytes"},
		{args: []string{"version", "x"}, stderr: "takes no arguments"},
		{args: []string{"serve"}, stderr: "--data-dir is required (or --dev)"},
		{args: []string{"serve", "--dev", "x"}, stderr: "takes no arguments"},
		{args: []string{"serve", "--read-replica"}, stderr: "--data-dir is required: a read replica keeps its indexes there"},
		{args: []string{"serve", "--read-replica", "--data-dir", "d"}, stderr: "--read-replica needs --object-store"},
		{args: []string{"serve", "--read-replica", "--dev"}, stderr: "--read-replica and --dev"},
		{args: []string{"serve", "--dev"}, env: []string{"KEYHOLE_READ_REPLICA=true"}, stderr: "--read-replica and --dev"},
		{args: []string{"serve", "--config", yaml("read_replica: true\ndata_dir: d\n")}, stderr: "--read-replica needs --object-store"},
		{args: []string{"serve", "--dev", "--listen", "8082"}, stderr: "--listen"},
		{args: []string{"serve", "--dev", "--log-level", "loud"}, stderr: "--log-level"},
		{args: []string{"serve", "--dev", "--log-format", "xml"}, stderr: "--log-format"},
		{args: []string{"serve", "--dev", "--max-body-bytes", "0"}, stderr: "--max-body-bytes"},
		{args: []string{"serve", "--dev", "--drain-window", "1m"}, stderr: "--drain-window"},
		{args: []string{"serve", "--data-dir", "d", "--object-store", "ftp://x"}, stderr: "--object-store"},
		{args: []string{"serve", "--data-dir", "d", "--object-store", "s3://AKIA:geheim@bucket/"}, stderr: "credentials"},
		{args: []string{"serve", "--config", "/nonexistent.yaml"}, stderr: "/nonexistent.yaml"},
		{args: []string{"serve", "--config", yaml("data_dir: d\nlisten: 1\n")}, stderr: `:2: key "listen"`},
		{args: []string{"serve"}, env: []string{"KEYHOLE_CONFIG=" + yaml("a: 1\nsecret_key: geheim\n")}, stderr: `:1: key "a"`},
		{args: []string{"serve", "--config", yaml("dev: true\nsecret_key: geheim\n")}, stderr: `:2: key "secret_key"`},
		{args: []string{"serve", "--config", yaml("dev: geheim\n")}, stderr: `:1: key "dev"`},
	} {
		t.Run(strings.Join(append(c.env, c.args...), " "), func(t *testing.T) {
			r := keyhole(t, c.env, nil, c.args...)
			r.want(t, exitMisuse, "", c.stderr)
			if r.stdout != "" {
				t.Errorf("stdout is %q, must be empty", r.stdout)
			}
			if strings.Contains(r.err, "geheim") { // case 8-21
				t.Errorf("a secret is repeated: %q", r.err)
			}
		})
	}
}

func TestFailure(t *testing.T) {
	dead := []string{"KEYHOLE_URL=http://user:geheim@127.0.0.1:1", "KEYHOLE_ADMIN_URL=http://user:geheim@127.0.0.1:1"}
	for _, args := range [][]string{
		{"topic", "list"}, {"get", "t", "k"}, {"config", "list"}, {"tier", "status", "t"}, {"healthcheck"}, {"healthcheck", "--live"},
		{"produce", "t", "/nonexistent.ndjson"}, {"produce", "t", "/"},
	} {
		r := keyhole(t, dead, nil, args...)
		r.want(t, exitFailed, "", "keyhole: ")
		if r.stdout != "" || strings.Contains(r.err, "geheim") {
			t.Errorf("%v: stdout %q, stderr %q", args, r.stdout, r.err)
		}
	}
}

func walkCommands(cmd *cobra.Command, fn func(*cobra.Command)) {
	fn(cmd)
	for _, c := range cmd.Commands() {
		walkCommands(c, fn)
	}
}

func TestHelp(t *testing.T) {
	var paths []string
	root := (&app{}).newRoot()
	walkCommands(root, func(cmd *cobra.Command) {
		paths = append(paths, cmd.CommandPath())
		if cmd.Short == "" || cmd.Example == "" {
			t.Errorf("%s: short help or example is missing", cmd.CommandPath())
		}
	})
	for _, path := range paths {
		args := append(strings.Fields(path)[1:], "--help")
		r := keyhole(t, nil, nil, args...)
		r.want(t, exitDone, "Examples:", "")
		if r.err != "" {
			t.Errorf("%s: stderr %q", path, r.err)
		}
	}
}

// Every flag can be set by its environment variable, and no two commands use
// one variable for flags of different types.
func TestFlagsAndEnvironment(t *testing.T) {
	types := make(map[string]string)
	walkCommands((&app{}).newRoot(), func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			name := config.EnvName(f.Name)
			if f.Usage == "" {
				t.Errorf("%s --%s has no description", cmd.CommandPath(), f.Name)
			}
			if old, ok := types[name]; ok && old != f.Value.Type() {
				t.Errorf("%s is a %s for one command and a %s for %s", name, old, f.Value.Type(), cmd.CommandPath())
			}
			types[name] = f.Value.Type()
		})
	})
	if len(types) < 30 {
		t.Errorf("only %d variables found", len(types))
	}
}

// Each command waits as long as its own help says, however many of them there are.
func TestTimeouts(t *testing.T) {
	want := map[string]time.Duration{"keyhole tier evict": 0, "keyhole tier compact": 0, "keyhole tier gc": 0, "keyhole healthcheck": 3 * time.Second}
	found := 0
	a := &app{env: func(string) (string, bool) { return "", false }}
	walkCommands(a.newRoot(), func(cmd *cobra.Command) {
		f := cmd.Flags().Lookup("timeout")
		if f == nil {
			return
		}
		found++
		if err := a.fromEnv(cmd); err != nil {
			t.Fatal(err)
		}
		effective, ok := want[cmd.CommandPath()]
		if !ok {
			effective = time.Minute
		}
		if a.client.timeout != effective || f.DefValue != effective.String() {
			t.Errorf("%s waits %s, its help says %s, want %s", cmd.CommandPath(), a.client.timeout, f.DefValue, effective)
		}
	})
	if found < 10 {
		t.Errorf("only %d commands have the flag", found)
	}
}

func TestVersion(t *testing.T) {
	plain := keyhole(t, nil, nil, "version")
	plain.want(t, exitDone, "keyhole ", "")
	if r := keyhole(t, []string{"KEYHOLE_VERSION=1.2"}, nil, "--version"); r != plain {
		t.Errorf("--version: %+v, the command: %+v", r, plain)
	}
	keyhole(t, []string{"KEYHOLE_VERSION=1.2"}, nil, "help", "tier", "evict").want(t, exitDone, "--local-target-bytes", "")
	keyhole(t, nil, nil, "help").want(t, exitDone, "Available Commands", "")
	keyhole(t, nil, nil, "version", "--json").want(t, exitDone, `"go":"go1.`, "")
	keyhole(t, []string{"KEYHOLE_JSON=true"}, nil, "version").want(t, exitDone, `"os":`, "")
}

// docs/cli.md is made from the commands themselves:
//
//	KEYHOLE_UPDATE=1 go test ./cmd/keyhole -run TestCLIPage
func TestCLIPage(t *testing.T) {
	page := filepath.Join("..", "..", "docs", "cli.md")
	want := cliPage((&app{}).newRoot())
	if os.Getenv("KEYHOLE_UPDATE") != "" {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/cli.md does not say what --help says; KEYHOLE_UPDATE=1 writes it anew")
	}
}

func cliPage(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString(`# Command line

<!-- Written by TestCLIPage of cmd/keyhole from the commands themselves. -->

One binary is server, client and tool. Results go to standard output, everything
else to standard error; ` + "`--json`" + ` prints results for programs. Exit code 0: done,
1: failed, 2: called wrongly.

Every flag has an environment variable: ` + "`--admin-url`" + ` is ` + "`KEYHOLE_ADMIN_URL`" + `; an
empty variable counts as absent. The flags of ` + "`serve`" + ` are keys of its YAML file too
(` + "`--data-dir`: `data_dir`" + `), where an unknown key, a key given twice or a value of the
wrong type is an error that names the line. A flag wins over the environment, the
environment over the file, the file over the default.

Shell completion, topic names included: ` + "`keyhole completion --help`" + `.
`)
	walkCommands(root, func(cmd *cobra.Command) {
		if !cmd.HasSubCommands() {
			writeCommand(&b, cmd)
		}
	})
	return b.String()
}

func writeCommand(b *strings.Builder, cmd *cobra.Command) {
	text := cmd.Long
	if text == "" {
		text = cmd.Short + "."
	}
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n```sh\n%s\n```\n", cmd.CommandPath(), text, strings.ReplaceAll(strings.TrimPrefix(cmd.Example, "  "), "\n  ", "\n"))
	fmt.Fprintf(b, "\nUsage: `%s`\n\n| flag | default | |\n|---|---|---|\n", strings.TrimSuffix(cmd.UseLine(), " [flags]"))
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		def := f.DefValue
		if def != "" && def != "[]" {
			def = "`" + def + "`"
		} else {
			def = ""
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", name, def, strings.ReplaceAll(f.Usage, "|", "\\|"))
	})
}
