package catalog

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the generated tables of docs/configuration.md")

const docFile = "../docs/configuration.md"

// section gives what stands between the two markers of a section.
func section(t *testing.T, doc, name string) (before, inside, after string) {
	t.Helper()
	begin := strings.Index(doc, "<!-- begin "+name)
	end := strings.Index(doc, "<!-- end "+name+" -->")
	if begin < 0 || end < begin {
		t.Fatalf("%s has no section %q", docFile, name)
	}
	begin += strings.Index(doc[begin:], "\n") + 1
	return doc[:begin], doc[begin:end], doc[end:]
}

func readDoc(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(docFile)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// rows gives the cells of a table without its two head lines.
func rows(t *testing.T, table string) [][]string {
	t.Helper()
	var out [][]string
	for _, line := range strings.Split(strings.TrimSpace(table), "\n")[2:] {
		var cells []string
		for _, cell := range strings.Split(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		out = append(out, cells)
	}
	return out
}

func (t table) markdown() string {
	var b strings.Builder
	b.WriteString("| name | type | unit | default | allowed | meaning |\n|---|---|---|---|---|---|\n")
	for i := range t {
		p := &t[i]
		def := "`" + p.Default + "`"
		if p.StoreDefault != "" {
			def = fmt.Sprintf("`%s` with an object store, else `%s`", p.StoreDefault, p.Default)
		}
		allowed := "`" + strings.Join(p.Values, "`, `") + "`"
		switch p.Kind {
		case boolKind:
			allowed = "`true`, `false`"
		case intKind, ratioKind:
			allowed = strings.TrimPrefix(strings.Replace(p.bounds(), p.unitSuffix(), "", 1), "from ")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", p.Name, p.Kind, p.Unit, def, allowed, p.Doc)
	}
	return b.String()
}

func TestDocumentedProperties(t *testing.T) {
	doc := readDoc(t)
	for name, tbl := range map[string]table{"cluster properties": clusterTable, "topic properties": topicTable} {
		before, inside, after := section(t, doc, name)
		if inside == tbl.markdown() {
			continue
		}
		if !*update {
			t.Errorf("%s: the table of %s is out of date; run with -update", docFile, name)
		}
		doc = before + tbl.markdown() + after
	}
	if *update {
		if err := os.WriteFile(docFile, []byte(doc), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// combination is one line of a published table of switches.
func combination(t *testing.T, store bool, cluster overrides, feature, property, value string) *topicConfigAndSwitches {
	t.Helper()
	properties := overrides{}
	if value != "not set" {
		properties[property] = value
	}
	data := &topicData{Name: "t", ID: newID(), Partitions: 1, Revision: 1, Properties: properties}
	if err := data.validate(); err != nil {
		t.Fatal(err)
	}
	config, err := newTopicConfig(data, store)
	if err != nil {
		t.Fatal(err)
	}
	cfg := &configData{Properties: cluster, Features: map[string]string{FeatureIndex: feature}}
	if err := cfg.validate(); err != nil {
		t.Fatal(err)
	}
	return &topicConfigAndSwitches{config, newSwitches(cfg, store)}
}

type topicConfigAndSwitches struct {
	config *topicConfig
	sw     *switches
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// combinations is a set of lines, so that a table is known to be complete.
type combinations map[string]bool

func (c combinations) add(t *testing.T, cells ...string) {
	t.Helper()
	key := strings.Join(cells, " ")
	if c[key] {
		t.Errorf("%q is in the table twice", key)
	}
	c[key] = true
}

func (c combinations) want(t *testing.T, n int) {
	t.Helper()
	if len(c) != n {
		t.Errorf("the table has %d combinations, want %d", len(c), n)
	}
}

func TestPublishedSwitchTables(t *testing.T) { // case 8-03
	doc := readDoc(t)
	t.Run("index", func(t *testing.T) {
		_, inside, _ := section(t, doc, "index switches")
		seen := combinations{}
		for _, r := range rows(t, inside) {
			seen.add(t, r[:3]...)
			c := combination(t, true, overrides{propIndexEnabled: r[1]}, r[0], propTopicIndex, r[2])
			s := partitionSettings(c.config, c.sw)
			if yes(s.IndexActive) != r[3] || yes(s.IndexMaintained) != r[4] {
				t.Errorf("%v: used %s, maintained %s", r, yes(s.IndexActive), yes(s.IndexMaintained))
			}
		}
		seen.want(t, 12)
	})
	t.Run("remote read", func(t *testing.T) {
		_, inside, _ := section(t, doc, "remote read switches")
		seen := combinations{}
		for _, r := range rows(t, inside) {
			seen.add(t, r[:2]...)
			for i, store := range []bool{true, false} {
				c := combination(t, store, overrides{propRemoteRead: r[0]}, StateActive, propTopicRemoteRead, r[1])
				if s := partitionSettings(c.config, c.sw); yes(s.RemoteRead) != r[2+i] {
					t.Errorf("%v, store %v: %s", r, store, yes(s.RemoteRead))
				}
			}
		}
		seen.want(t, 6)
	})
	t.Run("remote write", func(t *testing.T) {
		_, inside, _ := section(t, doc, "remote write switches")
		seen := combinations{}
		for _, r := range rows(t, inside) {
			seen.add(t, r[0])
			for i, store := range []bool{true, false} {
				c := combination(t, store, nil, StateActive, propTopicRemoteWrite, r[0])
				if s := partitionSettings(c.config, c.sw); yes(s.RemoteWrite) != r[1+i] {
					t.Errorf("%v, store %v: %s", r, store, yes(s.RemoteWrite))
				}
			}
		}
		seen.want(t, 3)
	})
}
