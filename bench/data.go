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
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// pair is a record to be written.
type pair struct {
	key   string
	value []byte // nil: a tombstone
}

// writeLines writes the lines of a produce file.
func writeLines(w io.Writer, records iter.Seq[pair]) error {
	buf := bufio.NewWriterSize(w, 1<<20)
	for r := range records {
		key, err := json.Marshal(r.key)
		if err != nil {
			return err
		}
		value := "null"
		if r.value != nil {
			value = `{"base64":"` + base64.StdEncoding.EncodeToString(r.value) + `"}`
		}
		if _, err := fmt.Fprintf(buf, "{\"key\":%s,\"value\":%s}\n", key, value); err != nil {
			return err
		}
	}
	return buf.Flush()
}

// synthetic values hold no pattern that a disk or a network could profit from.
func syntheticValue(i, size int) []byte {
	v := make([]byte, size)
	for x, at := uint64(i)*0x9e3779b97f4a7c15+1, 0; at < size; at++ {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		v[at] = byte(x)
	}
	return v
}

// dataset is real input: its records in order, and the keys that have a value
// once all are written, in the order of their last record.
type dataset struct {
	name    string
	what    string
	records []pair
	live    []string
	bytes   int64 // of all values
}

func (d *dataset) add(r pair) {
	d.records = append(d.records, r)
	d.bytes += int64(len(r.value))
}

// finish finds the live keys.
func (d *dataset) finish() {
	last := make(map[string]int, len(d.records))
	for i, r := range d.records {
		last[r.key] = i
	}
	for i, r := range d.records {
		if last[r.key] == i && r.value != nil {
			d.live = append(d.live, r.key)
		}
	}
}

var errEnough = errors.New("enough")

// goSource is the source tree of the Go installation: path → content.
func goSource(ctx context.Context, maxBytes int64) (*dataset, error) {
	output, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOROOT: %w", err)
	}
	root := filepath.Join(strings.TrimSpace(string(output)), "src")
	d := &dataset{name: "go-source", what: "source tree of the Go installation, path → content"}
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		if d.bytes >= maxBytes {
			return errEnough
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if content == nil {
			content = []byte{}
		}
		d.add(pair{strings.TrimPrefix(filepath.ToSlash(strings.TrimPrefix(path, root)), "/"), content})
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	d.finish()
	return d, nil
}

// historyFile is the change history of Apache Kafka's files as NDJSON; it is
// optional, and looked for in KEYHOLE_TESTDATA and in a folder beside the module.
const historyFile = "kafka-file-history.ndjson.gz"

// history gives nil where the file is not found.
func history(maxBytes int64) (*dataset, error) {
	candidates := []string{filepath.Join("..", "shared", "data", historyFile)}
	if dir := os.Getenv("KEYHOLE_TESTDATA"); dir != "" {
		candidates = append([]string{filepath.Join(dir, historyFile)}, candidates...)
	}
	for _, name := range candidates {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return readHistory(f, maxBytes)
	}
	return nil, nil
}

func readHistory(r io.Reader, maxBytes int64) (*dataset, error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	d := &dataset{name: "kafka-files", what: "every change of every file of Apache Kafka, path → blob"}
	for lines := json.NewDecoder(z); d.bytes < maxBytes; {
		var line struct {
			Key   string          `json:"key"`
			Value json.RawMessage `json:"value"`
		}
		err := lines.Decode(&line)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", historyFile, err)
		}
		p := pair{key: line.Key}
		if !bytes.Equal(line.Value, []byte("null")) {
			var text string
			if err := json.Unmarshal(line.Value, &text); err != nil {
				return nil, fmt.Errorf("%s: %w", historyFile, err)
			}
			p.value = []byte(text)
		}
		d.add(p)
	}
	d.finish()
	return d, nil
}
