package main

import (
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"keyhole/catalog"
	"keyhole/gateway"
	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
)

// noter takes down what is registered: a metric with labels shows up in an
// output only once it has a value.
type noter struct {
	prometheus.Registerer
	mu    sync.Mutex
	found map[string][]string // name → labels
}

var descForm = regexp.MustCompile(`fqName: "(keyhole_\w+)".*variableLabels: \{([^}]*)\}`)

func (n *noter) Register(c prometheus.Collector) error {
	ch := make(chan *prometheus.Desc, 100)
	c.Describe(ch)
	close(ch)
	n.mu.Lock()
	defer n.mu.Unlock()
	for d := range ch {
		if m := descForm.FindStringSubmatch(d.String()); m != nil {
			n.found[m[1]] = strings.FieldsFunc(m[2], func(r rune) bool { return r == ',' })
		}
	}
	return n.Registerer.Register(c)
}

func (n *noter) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := n.Register(c); err != nil {
			panic(err)
		}
	}
}

// docs/operations.md lists every metric of a node with its labels, and no other.
func TestMetricsPage(t *testing.T) {
	registry := newRegistry()
	n := &noter{Registerer: registry, found: map[string][]string{"keyhole_build_info": {"version", "go"}}}
	if _, err := objstore.NewMetrics(n); err != nil {
		t.Fatal(err)
	}
	topics, err := catalog.Open(t.Context(), catalog.Options{
		DataDir: "/data", FS: vfs.NewMem(), Bucket: objstoretest.NewFaulty(nil), Logger: slog.New(slog.DiscardHandler), Registerer: n,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := topics.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	gateway.New(gateway.Options{Catalog: topics, Logger: slog.New(slog.DiscardHandler), Registerer: n, Gatherer: registry})

	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := make(map[string][]string)
	row := regexp.MustCompile("(?m)^\\| `(keyhole_\\w+)` \\|([^|]*)\\|")
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		var labels []string
		for _, l := range regexp.MustCompile("`(\\w+)`(?: \\([^)]*\\))?").FindAllStringSubmatch(m[2], -1) {
			labels = append(labels, l[1])
		}
		if _, twice := documented[m[1]]; twice {
			t.Errorf("%s is there twice", m[1])
		}
		documented[m[1]] = labels
	}
	for _, name := range slices.Sorted(maps.Keys(n.found)) {
		labels, ok := documented[name]
		switch {
		case !ok:
			t.Errorf("%s{%s} is missing", name, strings.Join(n.found[name], ","))
		case !slices.Equal(slices.Sorted(slices.Values(labels)), slices.Sorted(slices.Values(n.found[name]))):
			t.Errorf("%s has the labels %v, the page says %v", name, n.found[name], labels)
		}
		delete(documented, name)
	}
	for name := range documented {
		t.Errorf("%s does not exist", name)
	}
	if len(n.found) < 20 {
		t.Errorf("only %d metrics found", len(n.found))
	}
}
