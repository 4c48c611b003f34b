package partitioner_test

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"keyhole/partitioner"
)

type vector struct {
	key                   string // hex
	murmur2, crc32, fnv1a uint32
	of3, of12             [3]int32 // partitions by murmur2, crc32, fnv1a
}

var golden = []vector{
	{"", 275646681, 0, 2166136261, [3]int32{0, 0, 0}, [3]int32{9, 0, 3}},
	{"00", 375494588, 3523407757, 84696351, [3]int32{2, 1, 0}, [3]int32{8, 1, 3}},
	{"61", 2731586172, 3904355907, 3826002220, [3]int32{1, 0, 0}, [3]int32{4, 3, 0}},
	{"7775", 290249560, 29915261, 1279759993, [3]int32{1, 2, 1}, [3]int32{4, 5, 1}},
	{"fffe80", 4134240899, 643736300, 811680688, [3]int32{0, 2, 1}, [3]int32{3, 8, 4}},
	{"6b61666b61", 3496464228, 1539077399, 221496545, [3]int32{1, 2, 2}, [3]int32{4, 11, 5}},
	{"666f6f626172", 3504634814, 2666930069, 3214735720, [3]int32{0, 2, 0}, [3]int32{6, 5, 0}},
	{"d0bad0bbd18ed187", 2122343024, 212833818, 2512710113, [3]int32{2, 0, 2}, [3]int32{8, 6, 11}},
}

var names = [3]string{partitioner.NameMurmur2, partitioner.NameCRC32, partitioner.NameFNV1a}

func TestGoldenVectors(t *testing.T) {
	for _, v := range golden {
		key, err := hex.DecodeString(v.key)
		if err != nil {
			t.Fatal(err)
		}
		if m, c, f := partitioner.Murmur2(key), partitioner.CRC32(key), partitioner.FNV1a(key); m != v.murmur2 || c != v.crc32 || f != v.fnv1a {
			t.Errorf("%s: hashes %d %d %d", v.key, m, c, f)
		}
		for i, name := range names {
			check(t, name, key, 3, v.of3[i])
			check(t, name, key, 12, v.of12[i])
			check(t, name, key, 1, 0)
		}
	}
}

func check(t *testing.T, name string, key []byte, n, want int32) {
	t.Helper()
	part, err := partitioner.For(name)
	if err != nil {
		t.Fatal(err)
	}
	if got := part(key, n); got != want {
		t.Errorf("%s of %x over %d: got %d, want %d", name, key, n, got, want)
	}
}

// TestSharedVectors runs the whole file of vectors where it is at hand: in the
// folder KEYHOLE_TESTDATA, or in shared/vectors beside a checkout.
func TestSharedVectors(t *testing.T) {
	var data []byte
	for _, path := range []string{
		filepath.Join(os.Getenv("KEYHOLE_TESTDATA"), "partitioners.json"),
		filepath.Join("..", "..", "shared", "vectors", "partitioners.json"),
	} {
		if b, err := os.ReadFile(path); err == nil {
			data = b
			break
		}
	}
	if data == nil {
		t.Skip("no partitioners.json; set KEYHOLE_TESTDATA to its folder")
	}
	var file struct {
		Vectors []struct {
			Key       string `json:"key_hex"`
			Murmur2   uint32
			CRC32     uint32
			FNV1a     uint32
			Partition map[string]map[string]int32
		}
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Vectors) == 0 {
		t.Fatal("no vectors in the file")
	}
	for _, v := range file.Vectors {
		key, err := hex.DecodeString(v.Key)
		if err != nil {
			t.Fatal(err)
		}
		if m, c, f := partitioner.Murmur2(key), partitioner.CRC32(key), partitioner.FNV1a(key); m != v.Murmur2 || c != v.CRC32 || f != v.FNV1a {
			t.Errorf("%s: hashes %d %d %d", v.Key, m, c, f)
		}
		for count, byName := range v.Partition {
			n, err := strconv.ParseInt(count, 10, 32)
			if err != nil || len(byName) != len(names) {
				t.Fatalf("%s: partitions %q: %v", v.Key, count, err)
			}
			for name, want := range byName {
				check(t, name, key, int32(n), want)
			}
		}
	}
}

func TestAgreesWithFranzGoAndTheStandardLibrary(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	franz := kgo.StickyKeyPartitioner(nil).ForTopic("t")
	for range 2000 {
		key := make([]byte, rnd.IntN(40))
		for i := range key {
			key[i] = byte(rnd.Uint32())
		}
		n := 1 + rnd.Int32N(2000)
		check(t, partitioner.NameMurmur2, key, n, int32(franz.Partition(&kgo.Record{Key: key}, int(n))))
		h := fnv.New32a()
		_, _ = h.Write(key) // never fails
		if got := partitioner.FNV1a(key); got != h.Sum32() {
			t.Errorf("FNV-1a of %x: got %d, want %d", key, got, h.Sum32())
		}
		for _, name := range names {
			part, err := partitioner.For(name)
			if err != nil {
				t.Fatal(err)
			}
			if p := part(key, n); p < 0 || p >= n {
				t.Errorf("%s of %x over %d: %d", name, key, n, p)
			}
			if part(nil, n) != part([]byte{}, n) {
				t.Errorf("%s: nil and empty differ", name)
			}
		}
	}
}

func TestUnknownNames(t *testing.T) {
	for _, name := range []string{"", "any", "Murmur2", "random"} {
		if f, err := partitioner.For(name); f != nil || !errors.Is(err, partitioner.ErrUnknown) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestNothingIsAllocated(t *testing.T) {
	key := []byte("customers/000042")
	for _, name := range names {
		part, err := partitioner.For(name)
		if err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(100, func() { part(key, 12) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
