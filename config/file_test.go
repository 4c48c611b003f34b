package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestDecode(t *testing.T) {
	const in = `
# comment
data_dir: /var/lib/keyhole
max_body_bytes: 0x10
dev: true # and why
drain_window: 5s
quoted: "12"
`
	got, err := Decode("k.yaml", []byte(in))
	if err != nil {
		t.Fatal(err)
	}
	want := []Setting{
		{"data_dir", "/var/lib/keyhole", "!!str", 3},
		{"max_body_bytes", "0x10", "!!int", 4},
		{"dev", "true", "!!bool", 5},
		{"drain_window", "5s", "!!str", 6},
		{"quoted", "12", "!!str", 7},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestDecodeNothing(t *testing.T) {
	for _, in := range []string{"", "# only a comment\n", "---\n", "null\n", "{}\n"} {
		if got, err := Decode("k.yaml", []byte(in)); err != nil || len(got) != 0 {
			t.Errorf("%q: got %v, %v", in, got, err)
		}
	}
}

// case 8-05: a file that is wrong is refused as a whole and says where.
func TestDecodeRefuses(t *testing.T) {
	for _, c := range []struct {
		name, in string
		line     int
		key      string
	}{
		{"key twice", "a: 1\nb: 2\na: 3\n", 3, "a"},
		{"nested", "a:\n  b: 1\n", 2, "a"},
		{"list", "a: 1\nb: [1, 2]\n", 2, "b"},
		{"no value", "a: 1\nb:\n", 2, "b"},
		{"tilde", "a: ~\n", 1, "a"},
		{"anchor", "a: &x 1\n", 1, "a"},
		{"alias", "a: 1\nb: *geheim\n", 0, ""},
		{"merge", "<<: {a: 1}\n", 1, ""},
		{"number as key", "1: 2\n", 1, ""},
		{"empty key", "\"\": 2\n", 1, ""},
		{"list at the top", "- a\n", 1, ""},
		{"word at the top", "hello\n", 1, ""},
		{"two documents", "a: 1\n---\nb: 2\n", 0, ""},
		{"syntax", "a: 1\nb: c: d\n", 2, ""},
		{"open quote", "a: 'b\n", 0, ""},
		{"truncated", "a: {b", 0, ""},
		{"tab", "a:\n\t- b\n", 0, ""},
		{"not UTF-8", "a: \xff\xfe\n", 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Decode("k.yaml", []byte(c.in))
			var fe *FileError
			if !errors.As(err, &fe) {
				t.Fatalf("got %v, %v; want a *FileError", got, err)
			}
			if strings.Contains(err.Error(), "geheim") {
				t.Errorf("the content is repeated: %v", err)
			}
			if fe.File != "k.yaml" || c.line != 0 && fe.Line != c.line || fe.Key != c.key {
				t.Errorf("got %+v, want line %d, key %q", fe, c.line, c.key)
			}
		})
	}
}

func TestReadFileBound(t *testing.T) {
	name := filepath.Join(t.TempDir(), "big.yaml")
	if err := os.WriteFile(name, []byte("#"+strings.Repeat("x", MaxFileBytes)), 0o600); err != nil {
		t.Fatal(err)
	}
	var fe *FileError
	if _, err := ReadFile(name); !errors.As(err, &fe) {
		t.Errorf("got %v, want a *FileError", err)
	}
	if _, err := ReadFile(name + ".absent"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want os.ErrNotExist", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		"", "a: 1\n", "a: 1\nb: [1]\n", "a: &x 1\nb: *x\n", "---\na: b\n...\n", "? a\n: b\n", "a: !!binary aGk=\n",
		"a: |\n  x\n  y\n", "{a: 1, b: {c: d}}", "a: 'b", "<<: *x\n", "a: \xff\n", "\ufeffa: 1\n", "%YAML 1.1\n---\na: yes\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := Decode("k.yaml", data)
		if err != nil {
			var fe *FileError
			if !errors.As(err, &fe) {
				t.Fatalf("error is no *FileError: %v", err)
			}
			return
		}
		seen := make(map[string]bool)
		for _, s := range got {
			if s.Key == "" || seen[s.Key] || s.Line < 1 || s.Tag == "!!null" {
				t.Fatalf("bad setting %+v in %+v", s, got)
			}
			seen[s.Key] = true
		}
	})
}
