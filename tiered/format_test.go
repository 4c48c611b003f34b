package tiered

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func sampleTable() ([]byte, tableInfo, []chunk) {
	info := tableInfo{base: 5, last: 40, size: 300, records: 9}
	chunks := []chunk{
		{base: 5, last: 9, pos: 0, size: 100, crc: 0xdeadbeef},
		{base: 12, last: 12, pos: 100, size: 61, crc: 1},
		{base: 13, last: 39, pos: 161, size: 139, crc: 0},
	}
	return encodeTable(info, chunks), info, chunks
}

func TestTableGoldenBytes(t *testing.T) {
	raw, info, chunks := sampleTable()
	want := strings.Join([]string{
		"4b484958", "01000000", // magic, version
		"0000000000000005", "0000000000000028", "000000000000012c", "0000000000000009", "00000003",
		"0000000000000005", "0000000000000009", "0000000000000000", "00000064", "deadbeef",
		"000000000000000c", "000000000000000c", "0000000000000064", "0000003d", "00000001",
		"000000000000000d", "0000000000000027", "00000000000000a1", "0000008b", "00000000",
	}, "")
	if got := hex.EncodeToString(raw[:len(raw)-4]); got != want {
		t.Errorf("encoded %s, want %s", got, want)
	}
	tab, gotInfo, err := decodeTable(raw)
	if err != nil || gotInfo != info || tab.len() != len(chunks) {
		t.Fatalf("decoded %+v with %d chunks, %v", gotInfo, tab.len(), err)
	}
	for i, c := range chunks {
		if tab.chunk(i) != c {
			t.Errorf("chunk %d: %+v, want %+v", i, tab.chunk(i), c)
		}
	}
	for offset, want := range map[int64]int{4: -1, 5: 0, 9: 0, 10: -1, 11: -1, 12: 1, 13: 2, 39: 2, 40: -1, math.MaxInt64: -1} {
		i, ok := tab.find(offset)
		if ok != (want >= 0) || ok && i != want {
			t.Errorf("find(%d) = %d, %t, want %d", offset, i, ok, want)
		}
	}
}

// reseal gives a changed table a true checksum.
func reseal(raw []byte) []byte {
	body := raw[:len(raw)-tableTail]
	return binary.BigEndian.AppendUint32(bytes.Clone(body), crc32.Checksum(body, castagnoli))
}

func TestTableRefuses(t *testing.T) {
	raw, _, _ := sampleTable()
	for i := range raw {
		if _, _, err := decodeTable(raw[:i]); err == nil {
			t.Fatalf("cut at %d passed", i)
		}
		for bit := range 8 {
			bad := bytes.Clone(raw)
			bad[i] ^= 1 << bit
			if _, _, err := decodeTable(bad); err == nil {
				t.Fatalf("byte %d bit %d passed", i, bit)
			}
		}
	}
	info := tableInfo{base: 5, last: 40, size: 200, records: 9}
	a, b := chunk{base: 5, last: 9, pos: 0, size: 100}, chunk{base: 10, last: 40, pos: 100, size: 100}
	if _, _, err := decodeTable(encodeTable(info, []chunk{a, b})); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(info *tableInfo, a, b *chunk){
		"below the base":    func(_ *tableInfo, a, _ *chunk) { a.base = 4 },
		"beyond the last":   func(_ *tableInfo, _, b *chunk) { b.last = 41 },
		"overlap":           func(_ *tableInfo, _, b *chunk) { b.base = 9 },
		"inverted":          func(_ *tableInfo, a, _ *chunk) { a.last = 4 },
		"gap in bytes":      func(_ *tableInfo, a, _ *chunk) { a.size = 99 },
		"chunk too small":   func(_ *tableInfo, a, b *chunk) { a.size, b.pos, b.size = 60, 60, 140 },
		"not at the start":  func(_ *tableInfo, a, b *chunk) { a.pos = 1 },
		"size":              func(i *tableInfo, _, _ *chunk) { i.size = 201 },
		"negative base":     func(i *tableInfo, _, _ *chunk) { i.base = -1 },
		"negative records":  func(i *tableInfo, _, _ *chunk) { i.records = -1 },
		"position overflow": func(_ *tableInfo, _, b *chunk) { b.pos = math.MinInt64 },
	} {
		info, a, b := info, a, b
		spoil(&info, &a, &b)
		if _, _, err := decodeTable(encodeTable(info, []chunk{a, b})); err == nil {
			t.Errorf("%s passed", name)
		}
	}
	for name, bad := range map[string]func([]byte){
		"magic":       func(raw []byte) { raw[0]++ },
		"version":     func(raw []byte) { raw[4]++ },
		"reserved":    func(raw []byte) { raw[7]++ },
		"chunk count": func(raw []byte) { raw[40] = 0x80 },
	} {
		changed := bytes.Clone(raw)
		bad(changed)
		if _, _, err := decodeTable(reseal(changed)); err == nil {
			t.Errorf("%s passed", name)
		}
	}
	if _, _, err := decodeTable(encodeTable(tableInfo{}, nil)); err == nil {
		t.Error("a table without chunks passed")
	}
}

// slicer hands out a slice piece by piece, as a stream does.
func slicer(b []byte) func(n int64) ([]byte, error) {
	return func(n int64) ([]byte, error) {
		if n < 0 || n > int64(len(b)) {
			return nil, runDamage("cut")
		}
		out := b[:n]
		b = b[n:]
		return out, nil
	}
}

func decodeRun(raw []byte, base, last int64) (keySet, []string, error) {
	out, order := make(keySet), []string(nil)
	err := readRun(slicer(raw), int64(len(raw)), base, last, func(key []byte, s keyState) error {
		out[string(key)] = &s
		order = append(order, string(key))
		return nil
	})
	return out, order, err
}

func sameKeys(a, b keySet) bool {
	return maps.EqualFunc(a, b, func(x, y *keyState) bool { return *x == *y })
}

func encodeRun(t testing.TB, base int64, keys keySet) []byte {
	t.Helper()
	raw := appendRun(nil, base, keys, testEncoder(t))
	return raw
}

func TestKeyRunRoundTrip(t *testing.T) {
	rng := newRand(t)
	const base, last = 20227160311775237, 20227160311775237 + 1<<40
	random := func(n, maxLen, alphabet int) keySet {
		keys := make(keySet)
		for range n {
			k := make([]byte, rng.IntN(maxLen+1))
			for i := range k {
				k[i] = byte(rng.IntN(alphabet))
			}
			keys[string(k)] = &keyState{offset: base + rng.Int64N(last-base+1), tombstone: rng.IntN(4) == 0}
		}
		return keys
	}
	extremes := keySet{"": {offset: base}, "\x00": {offset: last, tombstone: true}, "a": {offset: base}, "aa": {offset: last}}
	long := random(3, 10, 4)
	long[strings.Repeat("x", 200_000)] = &keyState{offset: base + 1}
	long[strings.Repeat("x", 200_001)] = &keyState{offset: base + 2, tombstone: true}
	for name, keys := range map[string]keySet{
		"none": {}, "extremes": extremes, "one": {"k": {offset: base + 7}}, "long": long,
		"short keys": random(5000, 3, 256), "binary": random(5000, 40, 256), "alike": random(5000, 30, 2),
	} {
		raw := encodeRun(t, base, keys)
		got, order, err := decodeRun(raw, base, last)
		if err != nil || !sameKeys(got, keys) || !slices.IsSorted(order) || len(order) != len(keys) {
			t.Errorf("%s: %d of %d keys, %v", name, len(order), len(keys), err)
		}
		if again := encodeRun(t, base, keys); !bytes.Equal(again, raw) {
			t.Errorf("%s: encoding is not repeatable", name)
		}
	}
}

// blocks splits a run into the sizes before compression that its blocks declare.
func blockSizes(raw []byte) (sizes []int) {
	for len(raw) > runTrailer {
		sizes = append(sizes, int(binary.BigEndian.Uint32(raw[4:])))
		raw = raw[runBlockHead+binary.BigEndian.Uint32(raw):]
	}
	return sizes
}

func TestKeyRunBlocksAreBounded(t *testing.T) {
	keys := make(keySet)
	rng := newRand(t)
	for range 20_000 {
		k := make([]byte, 20+rng.IntN(100))
		for i := range k {
			k[i] = byte(rng.Uint32())
		}
		keys[string(k)] = &keyState{offset: rng.Int64N(1 << 40)}
	}
	sizes := blockSizes(encodeRun(t, 0, keys))
	if len(sizes) < 20 || slices.Max(sizes) > runBlockMax || slices.Min(sizes[:len(sizes)-1]) < runBlockMax/2 {
		t.Errorf("%d blocks of %d to %d bytes", len(sizes), slices.Min(sizes), slices.Max(sizes))
	}
}

// The run is there to be much smaller than the keys.
func TestKeyRunIsSmallerThanTheKeys(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const n = 50_000
	for _, tc := range []struct {
		name    string
		key     func(i int) string
		atMost  float64 // bytes of the run per byte of key
		shuffle bool
	}{
		{"sequential, in order", func(i int) string { return fmt.Sprintf("customer-%08d", i) }, 0.05, false},
		{"sequential, random offsets", func(i int) string { return fmt.Sprintf("customer-%08d", i) }, 0.25, true},
		{"paths", func(i int) string {
			return fmt.Sprintf("src/main/java/org/example/module%d/Class%d.java", i%40, i)
		}, 0.15, true},
	} {
		offsets := rng.Perm(n)
		keys, total := make(keySet), 0
		for i := range n {
			offset := int64(i)
			if tc.shuffle {
				offset = int64(offsets[i])
			}
			k := tc.key(i)
			total += len(k)
			keys[k] = &keyState{offset: offset}
		}
		raw := encodeRun(t, 0, keys)
		t.Logf("%s: %.2f bytes per key of %.1f", tc.name, float64(len(raw))/n, float64(total)/n)
		if ratio := float64(len(raw)) / float64(total); ratio > tc.atMost {
			t.Errorf("%s: %.3f bytes per byte of key, want at most %.3f", tc.name, ratio, tc.atMost)
		}
	}
}

func TestKeyRunRefusesEveryFlippedBitAndEveryCut(t *testing.T) {
	keys := make(keySet)
	for i := range 40 {
		keys[fmt.Sprintf("key-%03d", i*7)] = &keyState{offset: int64(100 + i*3%41), tombstone: i%5 == 0}
	}
	raw := encodeRun(t, 100, keys)
	for i := range raw {
		if _, _, err := decodeRun(raw[:i], 100, 200); !errors.Is(err, errRun) {
			t.Fatalf("cut at %d: %v", i, err)
		}
		for bit := range 8 {
			bad := bytes.Clone(raw)
			bad[i] ^= 1 << bit
			if _, _, err := decodeRun(bad, 100, 200); !errors.Is(err, errRun) {
				t.Fatalf("byte %d bit %d: %v", i, bit, err)
			}
		}
	}
	if _, _, err := decodeRun(raw, 100, 139); !errors.Is(err, errRun) { // offsets reach 140
		t.Errorf("offset beyond the segment: %v", err)
	}
}

// storedRun builds a run of one uncompressed block out of raw columns, with
// true checksums, so that what is behind the checksums is put to the test.
func storedRun(block []byte, n uint32) []byte {
	be := binary.BigEndian
	out := be.AppendUint32(nil, uint32(len(block)))
	out = be.AppendUint32(out, uint32(len(block)))
	out = be.AppendUint32(out, n)
	out = be.AppendUint32(out, crc32.Update(crc32.Checksum(out, castagnoli), castagnoli, block))
	out = append(out, block...)
	out = be.AppendUint64(out, uint64(n))
	out = be.AppendUint32(out, 1)
	out = be.AppendUint32(out, crc32.Checksum(out, castagnoli))
	return append(out, runMagic...)
}

func columns(shared, lengths, offsets, tombstones []byte, suffixes string) []byte {
	out := []byte{byte(len(shared)), byte(len(lengths)), byte(len(offsets))}
	return append(slices.Concat(out, shared, lengths, offsets, tombstones), suffixes...)
}

func TestKeyRunRefusesWhatChecksumsCannotSee(t *testing.T) {
	good := columns([]byte{0, 1}, []byte{1, 1}, []byte{2, 2}, []byte{0}, "ab")
	if got, _, err := decodeRun(storedRun(good, 2), 0, 10); err != nil || len(got) != 2 || got["ab"].offset != 2 {
		t.Fatalf("%v, %v", got, err)
	}
	for name, raw := range map[string][]byte{
		"keys do not ascend":        storedRun(columns([]byte{0, 0}, []byte{1, 1}, []byte{2, 2}, []byte{0}, "ba"), 2),
		"key twice":                 storedRun(columns([]byte{0, 1}, []byte{1, 0}, []byte{2, 2}, []byte{0}, "a"), 2),
		"shares more than there is": storedRun(columns([]byte{1, 0}, []byte{1, 1}, []byte{2, 2}, []byte{0}, "ab"), 2),
		"suffix too long":           storedRun(columns([]byte{0, 1}, []byte{1, 9}, []byte{2, 2}, []byte{0}, "ab"), 2),
		"suffix left over":          storedRun(columns([]byte{0, 1}, []byte{1, 1}, []byte{2, 2}, []byte{0}, "abc"), 2),
		"offset below":              storedRun(columns([]byte{0, 1}, []byte{1, 1}, []byte{1, 2}, []byte{0}, "ab"), 2),
		"offset above":              storedRun(columns([]byte{0, 1}, []byte{1, 1}, []byte{2, 40}, []byte{0}, "ab"), 2),
		"fewer entries":             storedRun(good, 1),
		"more entries":              storedRun(good, 3),
		"no entries":                storedRun(good, 0),
		"huge entry count":          storedRun(good, math.MaxUint32),
		"no columns":                storedRun([]byte{0}, 1),
		"column too long":           storedRun([]byte{0xff, 0xff, 0xff, 0xff, 0x0f, 1, 1}, 1),
		"endless varint":            storedRun(bytes.Repeat([]byte{0xff}, 30), 1),
	} {
		if _, _, err := decodeRun(raw, 0, 10); !errors.Is(err, errRun) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzTable(f *testing.F) {
	raw, _, _ := sampleTable()
	f.Add(raw)
	f.Add([]byte{})
	f.Add(encodeTable(tableInfo{base: 1, last: 1, size: 61, records: 1}, []chunk{{base: 1, last: 1, size: 61}}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) >= tableTail {
			raw = reseal(raw)
		}
		tab, info, err := decodeTable(raw)
		if err != nil {
			return
		}
		chunks := make([]chunk, tab.len())
		for i := range chunks {
			chunks[i] = tab.chunk(i)
			if j, ok := tab.find(chunks[i].base); !ok || j != i {
				t.Fatalf("chunk %d not found at its base", i)
			}
		}
		if again := encodeTable(info, chunks); !bytes.Equal(again, raw) {
			t.Fatalf("encoded again %x, was %x", again, raw)
		}
	})
}

func FuzzKeyRun(f *testing.F) {
	f.Add(columns([]byte{0, 1}, []byte{1, 1}, []byte{2, 2}, []byte{0}, "ab"), uint32(2), true)
	f.Add(columns([]byte{0}, []byte{0}, []byte{0}, []byte{1}, ""), uint32(1), true)
	keys := keySet{"a": {offset: 1}, "ab": {offset: 5, tombstone: true}, "b": {offset: 3}}
	f.Add(encodeRun(f, 0, keys), uint32(0), false)
	f.Add(encodeRun(f, 0, keySet{}), uint32(0), false)
	f.Fuzz(func(t *testing.T, raw []byte, n uint32, wrap bool) {
		if wrap {
			raw = storedRun(raw, n)
		}
		left := raw
		consumed := 0
		next := func(n int64) ([]byte, error) {
			b, err := slicer(left)(n)
			if err == nil {
				left = left[n:]
				consumed += int(n)
			}
			return b, err
		}
		got := make(keySet)
		err := readRun(next, int64(len(raw)), 0, 1<<40, func(key []byte, s keyState) error {
			got[string(key)] = &s
			return nil
		})
		if err != nil {
			if !errors.Is(err, errRun) {
				t.Fatalf("error of another class: %v", err)
			}
			return
		}
		if consumed != len(raw) {
			t.Fatalf("consumed %d of %d bytes", consumed, len(raw))
		}
		again, _, err := decodeRun(encodeRun(t, 0, got), 0, 1<<40)
		if err != nil || !sameKeys(again, got) {
			t.Fatalf("after another round %d keys of %d, %v", len(again), len(got), err)
		}
	})
}
