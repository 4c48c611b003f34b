package e2e

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// defaultLinearLives is how many processes TestLinearizable puts one history over
// without KEYHOLE_LINEAR_LIVES; all but the last are killed.
const defaultLinearLives = 3

const (
	linearKeys    = 6
	linearClients = 8
	// linearOps is how many requests each process answers before it is killed.
	linearOps = 300
	// linearPatience bounds the search for an order; a search that does not end
	// has shown nothing.
	linearPatience = 5 * time.Minute
)

// operation is the input of one step of a history.
type operation struct {
	kind  byte // 'p'ut, 'd'elete, 'g'et
	key   string
	value string // put
}

// outcome is its output. A write without an answer is not known; a read without
// one is left out of the history.
type outcome struct {
	known  bool
	found  bool // get
	value  string
	offset int64 // where a put, a delete or a get that found something was answered to be
}

// register is what one key holds. The offset is that of its latest record, -1
// if a write without an answer made it and nobody has seen it since.
type register struct {
	value  string // "": nothing
	offset int64
}

// registerModel says what a key may do: writes of one key take effect in the
// order of their offsets, and a write without an answer took effect or did not.
var registerModel = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, op := range history {
			key := op.Input.(operation).key
			byKey[key] = append(byKey[key], op)
		}
		var parts [][]porcupine.Operation
		for _, key := range sorted(byKey) {
			parts = append(parts, byKey[key])
		}
		return parts
	},
	Init: func() []any { return []any{register{offset: -1}} },
	Step: func(state, input, output any) []any {
		r, in, out := state.(register), input.(operation), output.(outcome)
		switch {
		case in.kind == 'g' && !out.found:
			if r.value != "" {
				return nil
			}
			return []any{r}
		case in.kind == 'g':
			if r.value != out.value || r.offset >= 0 && r.offset != out.offset {
				return nil
			}
			return []any{register{out.value, out.offset}}
		case !out.known:
			return []any{r, register{in.value, -1}}
		case out.offset <= r.offset:
			return nil
		}
		return []any{register{in.value, out.offset}}
	},
	DescribeOperation: func(input, output any) string {
		in, out := input.(operation), output.(outcome)
		result := fmt.Sprintf("%s at %d", shorten(out.value), out.offset)
		switch {
		case in.kind != 'g' && !out.known:
			result = "?"
		case in.kind == 'g' && !out.found:
			result = "nothing"
		}
		return fmt.Sprintf("%c(%s %s) → %s", in.kind, in.key, shorten(in.value), result)
	},
	DescribeState: func(state any) string {
		r := state.(register)
		return fmt.Sprintf("%s at %d", shorten(r.value), r.offset)
	},
}

// shorten gives the part of a value that tells it from others.
func shorten(value string) string {
	id, _, _ := strings.Cut(value, " ")
	return id
}

// chronicle is a history in the making.
type chronicle struct {
	start time.Time
	// writes is held by whoever writes, and by the one who evicts when no write
	// shall come between an eviction and the lookups behind it.
	writes sync.RWMutex

	mu      sync.Mutex
	ops     []porcupine.Operation
	answers int
	sources map[string]int // of values, by tier
	faults  []string

	compacted int // how often it was
}

func (c *chronicle) now() int64 { return int64(time.Since(c.start)) }

// openEnd stands for the return of an operation that may still take effect.
const openEnd = math.MaxInt64

func (c *chronicle) add(client int, in operation, call int64, out outcome, end int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ops = append(c.ops, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: end})
	if end != openEnd {
		c.answers++
	}
}

func (c *chronicle) readFrom(source string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sources[source]++
}

func (c *chronicle) answered() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answers
}

// cold is how many values came out of the bucket.
func (c *chronicle) cold() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sources["remote"] + c.sources["cache"]
}

func (c *chronicle) fault(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

// died says that the process which could have carried out what is open has
// ended: it took effect before, or never will.
func (c *chronicle) died() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.ops {
		if c.ops[i].Return == openEnd {
			c.ops[i].Return = c.now()
		}
	}
}

// step makes one request and enters it; a value begins with id, which is unique.
// It reports whether the answer was what had been asked for.
func (c *chronicle) step(n *node, client int, id string, rng *rand.Rand) bool {
	in := operation{kind: "ppdggggggg"[rng.IntN(10)], key: fmt.Sprintf("k%d", rng.IntN(linearKeys))}
	if in.kind != 'g' {
		c.writes.RLock()
		defer c.writes.RUnlock()
	}
	method, body := "GET", any(nil)
	switch in.kind {
	case 'p':
		in.value = id + " " + strings.Repeat("v", rng.IntN(300))
		method, body = "PUT", []byte(in.value)
	case 'd':
		method = "DELETE"
	}
	call := c.now()
	a, err := n.try(method, n.kv("t", in.key), nil, body)
	end := c.now()
	s := sightOf(a)
	switch {
	case err == nil && s.status == "" && in.kind == 'g':
		c.add(client, in, call, outcome{found: s.found, value: s.value, offset: s.place.offset}, end)
		if s.found {
			c.readFrom(a.header.Get("X-Kv-Source"))
		}
		return true
	case err == nil && s.found:
		c.add(client, in, call, outcome{known: true, offset: s.place.offset}, end)
		return true
	case err == nil && a.status != 503 && (in.kind != 'g' || !n.outOfTime(a)):
		c.fault("%c %s: %v", in.kind, in.key, a)
	}
	if in.kind != 'g' {
		c.add(client, in, call, outcome{}, openEnd)
	}
	return false
}

// evict moves everything to the bucket, while others write or, quietly, while
// none does until a few lookups have been answered. The process may be gone.
func (c *chronicle) evict(ctx context.Context, n *node, quietly bool) {
	if quietly {
		c.writes.Lock()
		defer c.writes.Unlock()
		defer pause(ctx, 60*time.Millisecond)
	}
	_, _ = n.try("POST", n.admin+"/v1/cloud_storage/evict/t/0", nil, object{"local_target_bytes": 0})
	_, _ = n.try("POST", n.admin+"/v1/cloud_storage/cache/trim", nil, nil)
}

// compact has both tiers compacted. The process may be gone.
func (c *chronicle) compact(n *node) {
	if a, err := n.try("POST", n.admin+"/v1/compact/t/0", nil, nil); err == nil && a.status == 200 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.compacted++
	}
}

// TestLinearizable runs clients that write, delete and read the same few keys,
// some hot, some cold, both tiers compacted all the time, over several processes of
// which all but the last are killed, and has the whole history checked: there must be one order of all
// operations that explains every answer and puts none before a call or behind an
// answer.
func TestLinearizable(t *testing.T) {
	lives := envRounds(t, "KEYHOLE_LINEAR_LIVES", defaultLinearLives)
	for _, backend := range []string{"aws", "dir"} {
		t.Run(backend, func(t *testing.T) {
			s := openStore(t, backend)
			n := startNode(t, s)
			n.indexed("t", 1, map[string]string{"segment.bytes": "4096", "retention.local.target.bytes": "8192", "delete.retention.ms": "0"})
			n.setCluster(remoteRead, true)
			n.setGrace(2000)
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			c := &chronicle{start: time.Now(), sources: map[string]int{}}
			for life := range lives {
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				for client := range linearClients {
					rng := rand.New(rand.NewPCG(seed+uint64(life), uint64(client)))
					wg.Go(func() {
						for i := 0; ctx.Err() == nil; i++ {
							if !c.step(n, client, fmt.Sprintf("%d.%d.%d", life, client, i), rng) {
								pause(ctx, 10*time.Millisecond)
							}
						}
					})
				}
				rng := rand.New(rand.NewPCG(seed+uint64(life), linearClients))
				wg.Go(func() {
					for ctx.Err() == nil {
						pause(ctx, time.Duration(rng.IntN(20))*time.Millisecond)
						c.evict(ctx, n, rng.IntN(2) == 0)
					}
				})
				wg.Go(func() {
					for ctx.Err() == nil {
						pause(ctx, 20*time.Millisecond)
						c.compact(n)
					}
				})
				enough := c.answered() + linearOps
				poll(t, "requests are answered, some out of the bucket", func() bool {
					return c.answered() >= enough && c.cold() > 5*life
				})
				if life == lives-1 {
					cancel()
					wg.Wait()
					break
				}
				n.kill()
				cancel()
				wg.Wait()
				c.died()
				n.start()
				// Not waited for: a node that is not ready must say so.
			}
			n.stop()
			n.mustCheck("after the history")
			c.check(t)
		})
	}
}

// check wants the history to be linearizable.
func (c *chronicle) check(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.faults {
		t.Error(f)
	}
	if c.sources["local"] == 0 || c.compacted == 0 {
		t.Errorf("nothing was read out of the local log, or nothing compacted: %v, %d", c.sources, c.compacted)
	}
	model := registerModel.ToModel()
	result, info := porcupine.CheckOperationsVerbose(model, c.ops, linearPatience)
	t.Logf("%d operations on %d keys, %d answered, values by source %v, %d compactions: %s", len(c.ops), linearKeys, c.answers, c.sources, c.compacted, result)
	if result == porcupine.Ok {
		return
	}
	file := filepath.Join(t.ArtifactDir(), "history.html")
	if err := porcupine.VisualizePath(model, info, file); err != nil {
		t.Error(err)
	}
	t.Errorf("the history is not linearizable (%s); drawn in %s, kept with go test -artifacts", result, file)
}

// TestRegisterModel shows the model histories on which its word is known.
func TestRegisterModel(t *testing.T) {
	put := func(value string, offset int64, call, end int64) porcupine.Operation {
		return porcupine.Operation{Input: operation{kind: 'p', key: "k", value: value}, Call: call, Output: outcome{known: offset >= 0, offset: offset}, Return: end}
	}
	del := func(offset int64, call, end int64) porcupine.Operation {
		return porcupine.Operation{Input: operation{kind: 'd', key: "k"}, Call: call, Output: outcome{known: offset >= 0, offset: offset}, Return: end}
	}
	got := func(value string, offset int64, call, end int64) porcupine.Operation {
		return porcupine.Operation{Input: operation{kind: 'g', key: "k"}, Call: call, Output: outcome{found: value != "", value: value, offset: offset}, Return: end}
	}
	type history = []porcupine.Operation
	for name, c := range map[string]struct {
		ops  history
		want bool
	}{
		"in turn":                          {history{put("a", 0, 0, 1), got("a", 0, 2, 3), del(1, 4, 5), got("", 0, 6, 7)}, true},
		"read while it is written":         {history{put("a", 0, 0, 9), got("", 0, 1, 2), got("a", 0, 3, 4)}, true},
		"blinks":                           {history{put("a", 0, 0, 1), put("b", 1, 2, 9), got("", 0, 3, 4)}, false},
		"back to the older value":          {history{put("a", 0, 0, 1), put("b", 1, 2, 9), got("b", 1, 3, 4), got("a", 0, 5, 6)}, false},
		"deleted and back":                 {history{put("a", 0, 0, 1), del(1, 2, 3), got("a", 0, 4, 5)}, false},
		"lost":                             {history{put("a", 0, 0, 1), got("", 0, 2, 3)}, false},
		"offset moved":                     {history{put("a", 0, 0, 1), got("a", 1, 2, 3)}, false},
		"order of offsets":                 {history{put("a", 1, 0, 1), put("b", 0, 2, 3)}, false},
		"unanswered and never seen":        {history{put("a", 0, 0, 1), put("b", -1, 2, 3), got("a", 0, 4, 5)}, true},
		"unanswered and seen":              {history{put("a", 0, 0, 1), put("b", -1, 2, 3), got("b", 1, 4, 5)}, true},
		"unanswered, seen and gone":        {history{put("b", -1, 0, 3), got("b", 1, 4, 5), got("", 0, 6, 7)}, false},
		"unanswered, and there much later": {history{put("b", -1, 0, 3), got("", 0, 4, 5), got("b", 1, 6, 7)}, false},
	} {
		if got := porcupine.CheckOperations(registerModel.ToModel(), c.ops); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// envRounds is the number in an environment variable, or byDefault.
func envRounds(t *testing.T, name string, byDefault int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return byDefault
	}
	var n int
	if _, err := fmt.Sscan(s, &n); err != nil || n < 1 {
		t.Fatalf("%s=%q: want a number from 1", name, s)
	}
	return n
}
