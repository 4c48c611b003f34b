package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// MaxFileBytes is the largest configuration file that is read. Ours has a few
// dozen lines.
const MaxFileBytes = 1 << 20

// Setting is one line of a configuration file.
type Setting struct {
	Key   string
	Value string // as it stands in the file, without quotes
	Tag   string // YAML's type of the value: !!str, !!int, !!float, !!bool, …
	Line  int    // counted from 1
}

// FileError is a mistake in a configuration file.
type FileError struct {
	File string
	Line int    // 0 if unknown
	Key  string // empty if the mistake is not about one key
	Msg  string
}

func (e *FileError) Error() string {
	s := e.File
	if e.Line > 0 {
		s += fmt.Sprintf(":%d", e.Line)
	}
	if e.Key != "" {
		s += fmt.Sprintf(": key %q", e.Key)
	}
	return s + ": " + e.Msg
}

// ReadFile reads the settings of a file, in their order. Mistakes in the
// content are *FileError; others are errors of the file system.
func ReadFile(name string) ([]Setting, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
	if err != nil {
		return nil, err
	}
	return Decode(name, data)
}

// Decode is ReadFile for content in memory; name is used in errors. An empty
// file, or one of comments only, holds no settings.
func Decode(name string, data []byte) ([]Setting, error) {
	if len(data) > MaxFileBytes {
		return nil, &FileError{File: name, Msg: fmt.Sprintf("larger than %d bytes", MaxFileBytes)}
	}
	d := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := d.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		return nil, syntaxError(name, err)
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, &FileError{File: name, Msg: "must hold one YAML document"}
	}
	return settings(name, &doc)
}

// syntaxError keeps the parser's message only if it has the parser's usual form,
// in which it names a line and what was expected there. Others may repeat a part
// of the file.
func syntaxError(name string, err error) *FileError {
	var line int
	if n, _ := fmt.Sscanf(err.Error(), "yaml: line %d:", &line); n != 1 {
		return &FileError{File: name, Msg: "is not valid YAML"}
	}
	_, msg, _ := strings.Cut(err.Error(), fmt.Sprintf("line %d: ", line))
	return &FileError{File: name, Line: line, Msg: msg}
}

func settings(name string, doc *yaml.Node) ([]Setting, error) {
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		return nil, &FileError{File: name, Msg: "must hold one YAML document"}
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.ShortTag() == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, &FileError{File: name, Line: root.Line, Msg: "must be a mapping from keys to values"}
	}
	seen := make(map[string]bool, len(root.Content)/2)
	var out []Setting
	for i := 0; i+1 < len(root.Content); i += 2 {
		k, v := root.Content[i], root.Content[i+1]
		if k.Kind != yaml.ScalarNode || k.ShortTag() != "!!str" || k.Value == "" {
			return nil, &FileError{File: name, Line: k.Line, Msg: "a key must be the name of a setting"}
		}
		bad := &FileError{File: name, Line: v.Line, Key: k.Value}
		switch {
		case seen[k.Value]:
			bad.Msg, bad.Line = "is given twice", k.Line
			return nil, bad
		case v.Kind == yaml.AliasNode || v.Anchor != "":
			bad.Msg = "anchors and aliases are not supported"
			return nil, bad
		case v.Kind != yaml.ScalarNode:
			bad.Msg = "must be a single value"
			return nil, bad
		case v.ShortTag() == "!!null":
			bad.Msg = "has no value"
			return nil, bad
		}
		seen[k.Value] = true
		out = append(out, Setting{Key: k.Value, Value: v.Value, Tag: v.ShortTag(), Line: v.Line})
	}
	return out, nil
}
