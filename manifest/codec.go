package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"

	"keyhole/record"
)

// MaxBytes bounds an encoded manifest. It has room for some 250,000 segments.
const MaxBytes = 64 << 20

const (
	// formatVersion is the version that is written.
	formatVersion = 2
	// oldVersion has neither offsets nor epochs of its own: they follow from its
	// segments, because nothing was ever removed under it.
	oldVersion = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// envelope is the outer document. The checksum covers the bytes of the inner
// one exactly as they stand in the file.
type envelope struct {
	Version  int             `json:"version"`
	CRC32C   string          `json:"crc32c"`
	Manifest json.RawMessage `json:"manifest"`
}

// Encode returns the bytes to store. It fails with ErrInvalid for a manifest
// that Decode would refuse.
func Encode(m *Manifest) ([]byte, error) {
	doc := *m
	doc.NextOffset = m.Next()
	if err := doc.validateHead(); err != nil {
		return nil, err
	}
	next := int64(0)
	for i := range m.Segments {
		if err := m.Segments[i].validate(next); err != nil {
			return nil, err
		}
		next = m.Segments[i].LastOffset + 1
	}
	if err := doc.validateLists(); err != nil {
		return nil, err
	}
	doc.Segments = notNil(doc.Segments)
	doc.LeaderEpochs = notNil(doc.LeaderEpochs)
	doc.Removed = notNil(doc.Removed)
	inner, err := json.Marshal(&doc)
	if err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	out := fmt.Appendf(make([]byte, 0, len(inner)+64), `{"version":%d,"crc32c":"%08x","manifest":`,
		formatVersion, crc32.Checksum(inner, castagnoli))
	out = append(append(out, inner...), '}', '\n')
	if len(out) > MaxBytes {
		return nil, fmt.Errorf("%w: %d bytes encoded, at most %d", ErrInvalid, len(out), MaxBytes)
	}
	return out, nil
}

func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// Decode reads what Encode wrote. Anything else is a record.CorruptError that
// names object. It keeps no reference to data.
func Decode(object string, data []byte) (*Manifest, error) {
	m, err := decode(data)
	if err != nil {
		return nil, record.Corrupt(object, 0, err)
	}
	return m, nil
}

func decode(data []byte) (*Manifest, error) {
	if len(data) == 0 {
		return nil, errors.New("manifest is empty")
	}
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("manifest has %d bytes, at most %d", len(data), MaxBytes)
	}
	var env envelope
	if err := unmarshalStrict(data, &env); err != nil {
		return nil, fmt.Errorf("manifest envelope: %w", err)
	}
	if env.Version != formatVersion && env.Version != oldVersion {
		return nil, fmt.Errorf("manifest has version %d, this program knows %d and %d", env.Version, oldVersion, formatVersion)
	}
	want, err := strconv.ParseUint(env.CRC32C, 16, 32)
	if err != nil || len(env.CRC32C) != 8 {
		return nil, fmt.Errorf("manifest checksum %.20q is not 8 hex digits", env.CRC32C)
	}
	if got := crc32.Checksum(env.Manifest, castagnoli); got != uint32(want) {
		return nil, fmt.Errorf("manifest has CRC-32C %08x, says %08x", got, want)
	}
	var doc document
	if err := unmarshalStrict(env.Manifest, &doc); err != nil {
		return nil, fmt.Errorf("manifest document: %w", err)
	}
	if doc.Segments == nil {
		return nil, errors.New("manifest has no list of segments")
	}
	m := Manifest(doc.plain)
	m.Segments = doc.Segments
	if env.Version == oldVersion {
		if m, err = m.upgraded(); err != nil {
			return nil, err
		}
	}
	if err := m.validateHead(); err != nil {
		return nil, err
	}
	return &m, m.validateLists()
}

// upgraded fills in what version 1 does not say. How many of a segment's records
// are tombstones is not known, so all may be; and its newest record stands in for
// the time of its upload.
func (m Manifest) upgraded() (Manifest, error) {
	bare := m
	bare.Segments = nil
	for _, s := range m.Segments {
		s.Tombstones, s.CreatedAt = s.Records, max(0, s.MaxTimestamp)
		with, err := bare.With(s)
		if err != nil {
			return m, err
		}
		bare = *with
	}
	return bare, nil
}

// document decodes a Manifest with its segments read one by one. The outer
// field shadows the embedded one.
type document struct {
	plain
	Segments segmentList `json:"segments"`
}

type plain Manifest

// segmentList checks each segment as it comes, so that a document of many
// empty objects is refused at the first instead of being spread out in memory.
type segmentList []Segment

func (l *segmentList) UnmarshalJSON(b []byte) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if tok, err := dec.Token(); err != nil || tok != json.Delim('[') {
		return errors.New("segments are not a list")
	}
	out, next := []Segment{}, int64(0)
	for dec.More() {
		var s Segment
		if err := dec.Decode(&s); err != nil {
			return fmt.Errorf("segment %d: %w", len(out), err)
		}
		if err := s.validate(next); err != nil {
			return err
		}
		next = s.LastOffset + 1
		out = append(out, s)
	}
	*l = out
	return nil
}

// unmarshalStrict decodes exactly one JSON value without unknown fields.
func unmarshalStrict(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("bytes after the end")
	}
	return nil
}
