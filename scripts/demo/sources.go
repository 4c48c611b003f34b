package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// source is real input with the truth about it.
type source struct {
	what       string
	topic      string
	partitions string
	produce    func(ctx context.Context, d *demo) error
	// truth calls fn for every key with the value that a lookup has to give;
	// nil: the key was deleted.
	truth func(fn func(key string, value []byte) error) error
}

func findInputs(ctx context.Context) ([]*source, error) {
	tree, err := goSource(ctx)
	if err != nil {
		return nil, err
	}
	inputs := []*source{tree}
	if name, ok := findHistory(); ok {
		inputs = append(inputs, history(name))
	}
	return inputs, nil
}

// goSource is the source tree of the Go installation: one record a file.
func goSource(ctx context.Context) (*source, error) {
	output, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOROOT: %w", err)
	}
	root := filepath.Join(strings.TrimSpace(string(output)), "src")
	walk := func(fn func(key string, value []byte) error) error { return walkFiles(root, fn) }
	return &source{
		what:       "the source tree of the Go installation: " + root,
		topic:      treeTopic,
		partitions: "4",
		truth:      walk,
		produce: func(ctx context.Context, d *demo) error {
			r, w := io.Pipe()
			done := make(chan struct{})
			go func() {
				defer close(done)
				w.CloseWithError(writeRecords(w, walk))
			}()
			err := d.keyhole(ctx, r, "produce", treeTopic)
			r.CloseWithError(errors.New("keyhole produce has ended"))
			<-done
			return err
		},
	}, nil
}

// walkFiles calls fn for every file below root with its path and content.
func walkFiles(root string, fn func(key string, value []byte) error) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		key, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		return fn(filepath.ToSlash(key), content)
	})
}

// writeRecords writes the lines of a produce file. Values are base64, because
// not every file is UTF-8.
func writeRecords(w io.Writer, walk func(func(key string, value []byte) error) error) error {
	buf := bufio.NewWriterSize(w, 1<<20)
	err := walk(func(key string, value []byte) error {
		name, err := json.Marshal(key)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(buf, "{\"key\":%s,\"value\":{\"base64\":\"%s\"}}\n", name, base64.StdEncoding.EncodeToString(value))
		return err
	})
	return errors.Join(err, buf.Flush())
}

// historyFile is the change history of Apache Kafka's files as NDJSON; it is
// optional, and looked for in KEYHOLE_TESTDATA and in a folder beside the module.
const historyFile = "kafka-file-history.ndjson.gz"

func findHistory() (string, bool) {
	var candidates []string
	if dir := os.Getenv("KEYHOLE_TESTDATA"); dir != "" {
		candidates = append(candidates, filepath.Join(dir, historyFile))
	}
	candidates = append(candidates, filepath.Join("..", "shared", "data", historyFile))
	for _, name := range candidates {
		if _, err := os.Stat(name); err == nil {
			return name, true
		}
	}
	return "", false
}

func history(name string) *source {
	return &source{
		what:       "every change of every file of Apache Kafka: " + filepath.Base(name),
		topic:      historyTopic,
		partitions: "4",
		produce: func(ctx context.Context, d *demo) error {
			return d.keyhole(ctx, nil, "produce", historyTopic, name)
		},
		truth: func(fn func(key string, value []byte) error) error {
			last, err := lastValues(name)
			if err != nil {
				return err
			}
			for key, value := range last {
				if err := fn(key, value); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// lastValues replays the file into a map; a deleted key stays, with nil.
func lastValues(name string) (map[string][]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	last := make(map[string][]byte)
	d := json.NewDecoder(r)
	for {
		var line struct {
			Key   string          `json:"key"`
			Value json.RawMessage `json:"value"`
		}
		err := d.Decode(&line)
		if errors.Is(err, io.EOF) {
			return last, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if last[line.Key], err = lineValue(line.Value); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
}

// lineValue is the value that a line of a produce file stands for.
func lineValue(raw json.RawMessage) ([]byte, error) {
	switch {
	case len(raw) == 0 || bytes.Equal(raw, []byte("null")):
		return nil, nil
	case raw[0] == '"':
		var s string
		err := json.Unmarshal(raw, &s)
		return []byte(s), err
	}
	return raw, nil
}
