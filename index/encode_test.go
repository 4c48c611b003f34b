package index

import (
	"bytes"
	"math"
	"testing"
)

func FuzzPosition(f *testing.F) {
	for _, p := range []Position{{}, {1, 0, 0}, {127, 128, 126}, {math.MaxInt64, math.MaxInt64, 0}} {
		f.Add(appendPosition(nil, p))
	}
	f.Add([]byte{})
	f.Add([]byte{2, 0, 0})
	f.Add([]byte{1, 0x80, 0, 0})
	f.Add([]byte{1, 0, 0, 0})
	f.Add(append([]byte{1}, bytes.Repeat([]byte{0xff}, 20)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decodePosition(b)
		if err != nil {
			return
		}
		if p.NextLog < 0 || p.NextKafka < 0 || p.SyncedLog < 0 {
			t.Fatalf("%x gives %+v", b, p)
		}
		if again := appendPosition(nil, p); !bytes.Equal(again, b) {
			t.Fatalf("%x gives %+v, which is %x", b, p, again)
		}
		for n := range b {
			if _, err := decodePosition(b[:n]); err == nil {
				t.Fatalf("%x cut at %d is accepted", b, n)
			}
		}
	})
}

func FuzzOffset(f *testing.F) {
	for _, b := range [][]byte{{}, {0}, {127}, {0x80, 1}, {0x80, 0}, {1, 1}, bytes.Repeat([]byte{0xff}, 10)} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		offset, err := decodeOffset(b)
		if err != nil {
			return
		}
		if offset < 0 || offsetSize(offset) != len(b) {
			t.Fatalf("%x gives %d, whose size is %d", b, offset, offsetSize(offset))
		}
	})
}
