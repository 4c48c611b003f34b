// Package partitioner computes the partition of a key the way the usual Kafka
// clients do, so that a lookup asks where a producer wrote.
//
// It promises the same answer as those clients for every key and every number
// of partitions, without allocating. It imports nothing of keyhole.
//
//	name     clients                            hash of the key        partition of n
//	murmur2  Java client, franz-go (default)    murmur2, 32 bit        (hash & 0x7fffffff) % n
//	crc32    librdkafka and what builds on it   CRC-32, IEEE           hash % n
//	fnv1a    Sarama                             FNV-1a, 32 bit         |int32(hash) % n|
package partitioner

import (
	"errors"
	"fmt"
	"hash/crc32"
)

// The names of the partitioners.
const (
	NameMurmur2 = "murmur2"
	NameCRC32   = "crc32"
	NameFNV1a   = "fnv1a"
)

// ErrUnknown says that no partitioner has that name.
var ErrUnknown = errors.New("unknown partitioner")

// Func returns the partition of key among n partitions, from 0 to n-1. A nil
// key counts as an empty one. n must be positive.
type Func = func(key []byte, n int32) int32

// For returns the partitioner of that name, or [ErrUnknown].
func For(name string) (Func, error) {
	switch name {
	case NameMurmur2:
		return func(key []byte, n int32) int32 { return int32(Murmur2(key)&0x7fffffff) % n }, nil
	case NameCRC32:
		return func(key []byte, n int32) int32 { return int32(CRC32(key) % uint32(n)) }, nil
	case NameFNV1a:
		return func(key []byte, n int32) int32 {
			p := int32(FNV1a(key)) % n
			return max(p, -p)
		}, nil
	}
	return nil, fmt.Errorf("%w %q", ErrUnknown, name)
}

// Murmur2 is the 32-bit MurmurHash2 of Austin Appleby with the seed that
// Kafka's Java client fixed.
func Murmur2(key []byte) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
		r    = 24
	)
	h := uint32(seed) ^ uint32(len(key))
	for ; len(key) >= 4; key = key[4:] {
		k := uint32(key[0]) | uint32(key[1])<<8 | uint32(key[2])<<16 | uint32(key[3])<<24
		k *= m
		k ^= k >> r
		k *= m
		h = h*m ^ k
	}
	if len(key) > 0 {
		for i, c := range key {
			h ^= uint32(c) << (8 * i)
		}
		h *= m
	}
	h ^= h >> 13
	h *= m
	return h ^ h>>15
}

// CRC32 is the CRC-32 of Ethernet and gzip.
func CRC32(key []byte) uint32 { return crc32.ChecksumIEEE(key) }

// FNV1a is the 32-bit FNV-1a hash. hash/fnv has it too, but only behind an
// interface that allocates.
func FNV1a(key []byte) uint32 {
	h := uint32(2166136261)
	for _, c := range key {
		h = (h ^ uint32(c)) * 16777619
	}
	return h
}
