package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"keyhole/config"
	"keyhole/internal/s3test"
)

func readRepo(t *testing.T, elem ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(append([]string{"..", ".."}, elem...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// The page and the script say the same: each command of the page begins a line
// of the script, in the same order, and the script has no other.
func TestQuickstartPage(t *testing.T) {
	var page []string
	inBlock := false
	for line := range strings.Lines(readRepo(t, "docs", "quickstart-minio.md")) {
		line = strings.TrimSpace(line)
		switch {
		case line == "```sh":
			inBlock = true
		case strings.HasPrefix(line, "```"):
			inBlock = false
		case inBlock && !strings.HasPrefix(line, "URL=") && !strings.HasPrefix(line, "keyhole() {"):
			page = append(page, line)
		}
	}
	var script []string
	_, steps, _ := strings.Cut(readRepo(t, "scripts", "quickstart.sh"), "\nstep \"")
	for line := range strings.Lines(steps) {
		if command, _, ok := strings.Cut(line, " | expect "); ok {
			script = append(script, command)
		}
	}
	if len(page) < 10 || len(page) != len(script) {
		t.Fatalf("the page has %d commands, the script %d", len(page), len(script))
	}
	for i := range page {
		if page[i] != script[i] {
			t.Errorf("command %d\npage:   %s\nscript: %s", i+1, page[i], script[i])
		}
	}
}

// The walk-through, in all but the containers: the script against a real S3
// server, with both clients.
func TestQuickstart(t *testing.T) {
	for _, tool := range []string{"bash", "curl", "awk", "seq"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the quickstart needs %s, which is not there", tool)
		}
	}
	gateway := s3test.StartGateway(t)
	for _, client := range []string{"aws", "minio"} {
		t.Run(client, func(t *testing.T) {
			s := startServe(t, s3test.Environment(), "--data-dir", t.TempDir(), "--object-store", s3test.URL(gateway.Endpoint, client, client))
			s.waitReady()
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
			defer cancel()
			script := exec.CommandContext(ctx, "bash", filepath.Join("..", "..", "scripts", "quickstart.sh"))
			script.Env = append(command(ctx, s.env()).Env, "URL="+s.data, "KEYHOLE="+os.Args[0])
			output, err := script.CombinedOutput()
			if err != nil || !strings.Contains(string(output), "--- passed") {
				t.Errorf("%v\n%s\nserve:\n%s", err, output, s.output())
			}
		})
	}
}

type composeFile struct {
	Services map[string]struct {
		Image       string
		Build       string
		Environment map[string]string
		Ports       []string
		DependsOn   yaml.Node `yaml:"depends_on"`
	}
}

// The compose file and the image name settings that exist, pin what they use and
// open nothing but loopback ports.
func TestContainers(t *testing.T) {
	var compose composeFile
	if err := yaml.Unmarshal([]byte(readRepo(t, "docker-compose.yml")), &compose); err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	serve, _, err := (&app{}).newRoot().Find([]string{"serve"})
	if err != nil {
		t.Fatal(err)
	}
	serve.Flags().VisitAll(func(f *pflag.Flag) { known[config.EnvName(f.Name)] = true })
	for name, s := range compose.Services {
		if s.Build == "" && (!strings.Contains(s.Image, ":RELEASE.") || strings.Contains(s.Image, "latest")) {
			t.Errorf("%s: image %q is not pinned to a release", name, s.Image)
		}
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("%s: port %s is open to others", name, p)
			}
		}
		for v := range s.Environment {
			if strings.HasPrefix(v, config.EnvPrefix) && !known[v] {
				t.Errorf("%s: %s is not a setting of serve", name, v)
			}
		}
	}
	if len(compose.Services) != 3 {
		t.Errorf("%d services", len(compose.Services))
	}
	image := readRepo(t, "Dockerfile")
	for word := range strings.FieldsSeq(image) {
		if v, _, ok := strings.Cut(word, "="); ok && strings.HasPrefix(v, config.EnvPrefix) && !known[v] {
			t.Errorf("Dockerfile: %s is not a setting of serve", v)
		}
	}
	// The compiler of the image and of the module are one version line.
	module := readRepo(t, "go.mod")
	_, goVersion, _ := strings.Cut(module, "\ngo ")
	goVersion, _, _ = strings.Cut(goVersion, "\n")
	if minor, _, _ := strings.Cut(strings.TrimPrefix(goVersion, "1."), "."); !strings.Contains(image, "FROM golang:1."+minor+".") {
		t.Errorf("Dockerfile does not build with Go 1.%s", minor)
	}
}

// Where the client is there, it has the last word about the compose file.
func TestComposeConfig(t *testing.T) {
	if exec.Command("docker", "compose", "version").Run() != nil {
		t.Skip("docker compose is not there")
	}
	cmd := exec.Command("docker", "compose", "--file", filepath.Join("..", "..", "docker-compose.yml"), "config", "--quiet")
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}
