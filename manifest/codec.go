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

// MaxBytes bounds an encoded manifest. It has room for some 200,000 segments.
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
	epochs := int64(0)
	for _, e := range m.LeaderEpochs {
		if err := e.validate(epochs); err != nil {
			return nil, err
		}
		epochs = e.StartOffset + 1
	}
	for _, r := range m.Removed {
		if err := r.validate(); err != nil {
			return nil, err
		}
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
	read := decodeDocument
	if env.Version == oldVersion {
		read = decodeOldDocument
	}
	m, err := read(env.Manifest)
	if err != nil {
		return nil, fmt.Errorf("manifest document: %w", err)
	}
	if err := m.validateHead(); err != nil {
		return nil, err
	}
	if err := m.validateLists(); err != nil {
		return nil, err
	}
	return m, nil
}

// document decodes a Manifest. The outer fields shadow the embedded ones: offsets
// that are left out are told from zero, and lists are read one by one.
type document struct {
	plain
	StartOffset   *int64      `json:"start_offset,string"`
	NextOffset    *int64      `json:"next_offset,string"`
	DeleteHorizon *int64      `json:"delete_horizon,string"`
	LeaderEpochs  epochList   `json:"leader_epochs"`
	Segments      segmentList `json:"segments"`
	Removed       removedList `json:"removed"`
}

type plain Manifest

func decodeDocument(data []byte) (*Manifest, error) {
	var doc document
	if err := unmarshalStrict(data, &doc); err != nil {
		return nil, err
	}
	switch {
	case doc.StartOffset == nil || doc.NextOffset == nil || doc.DeleteHorizon == nil:
		return nil, errors.New("no offsets")
	case doc.LeaderEpochs == nil || doc.Segments == nil || doc.Removed == nil:
		return nil, errors.New("no list of epochs, segments or removed segments")
	}
	m := Manifest(doc.plain)
	m.StartOffset, m.NextOffset, m.DeleteHorizon = *doc.StartOffset, *doc.NextOffset, *doc.DeleteHorizon
	m.LeaderEpochs, m.Segments, m.Removed = doc.LeaderEpochs, doc.Segments, doc.Removed
	return &m, nil
}

// oldDocument is the document of version 1.
type oldDocument struct {
	Topic      string         `json:"topic"`
	TopicID    string         `json:"topic_id"`
	Partition  int32          `json:"partition"`
	Epoch      int64          `json:"epoch"`
	Writer     string         `json:"writer"`
	Generation int64          `json:"generation"`
	Session    string         `json:"session"`
	Commit     int64          `json:"commit"`
	Segments   oldSegmentList `json:"segments"`
}

type oldSegment struct {
	BaseOffset   int64  `json:"base_offset,string"`
	LastOffset   int64  `json:"last_offset,string"`
	UploadID     string `json:"upload_id"`
	Size         int64  `json:"size"`
	IndexSize    int64  `json:"index_size"`
	TableBytes   int64  `json:"table_bytes"`
	Records      int64  `json:"records"`
	MaxTimestamp int64  `json:"max_timestamp"`
	Epoch        int64  `json:"epoch"`
}

// upgraded fills in what version 1 does not say. How many of a segment's records
// are tombstones is not known, so all may be. Nor is the time of its upload known;
// the time stamps of its records are its producers', and do not stand in for it.
func (s *oldSegment) upgraded() Segment {
	return Segment{
		BaseOffset: s.BaseOffset, LastOffset: s.LastOffset, UploadID: s.UploadID,
		Size: s.Size, IndexSize: s.IndexSize, TableBytes: s.TableBytes,
		Records: s.Records, Tombstones: s.Records,
		MaxTimestamp: s.MaxTimestamp, Epoch: s.Epoch,
	}
}

func decodeOldDocument(data []byte) (*Manifest, error) {
	var doc oldDocument
	if err := unmarshalStrict(data, &doc); err != nil {
		return nil, err
	}
	if doc.Segments == nil {
		return nil, errors.New("no list of segments")
	}
	// Offsets and epochs follow from the segments, which are checked once more.
	return (&Manifest{
		Topic: doc.Topic, TopicID: doc.TopicID, Partition: doc.Partition, Epoch: doc.Epoch, Writer: doc.Writer,
		Generation: doc.Generation, Session: doc.Session, Commit: doc.Commit,
		LeaderEpochs: []EpochStart{}, Segments: []Segment{}, Removed: []Removed{},
	}).With(doc.Segments...)
}

// The lists check each entry as it comes, so that a document of many empty objects
// is refused at one of the first instead of being spread out in memory.
type (
	segmentList    []Segment
	oldSegmentList []Segment
	epochList      []EpochStart
	removedList    []Removed
)

func (l *segmentList) UnmarshalJSON(b []byte) (err error) {
	next := int64(0)
	*l, err = decodeList(b, func(s Segment) (Segment, error) {
		err := s.validate(next)
		next = s.LastOffset + 1
		return s, err
	})
	return err
}

func (l *oldSegmentList) UnmarshalJSON(b []byte) (err error) {
	next := int64(0)
	*l, err = decodeList(b, func(old oldSegment) (Segment, error) {
		s := old.upgraded()
		err := s.validate(next)
		next = s.LastOffset + 1
		return s, err
	})
	return err
}

func (l *epochList) UnmarshalJSON(b []byte) (err error) {
	next := int64(0)
	*l, err = decodeList(b, func(e EpochStart) (EpochStart, error) {
		err := e.validate(next)
		next = e.StartOffset + 1
		return e, err
	})
	return err
}

func (l *removedList) UnmarshalJSON(b []byte) (err error) {
	*l, err = decodeList(b, func(r Removed) (Removed, error) { return r, r.validate() })
	return err
}

// decodeList reads a list without unknown fields and has take judge each entry.
func decodeList[In, Out any](b []byte, take func(In) (Out, error)) ([]Out, error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if tok, err := dec.Token(); err != nil || tok != json.Delim('[') {
		return nil, errors.New("not a list")
	}
	out := []Out{}
	for dec.More() {
		var in In
		if err := dec.Decode(&in); err != nil {
			return nil, fmt.Errorf("entry %d: %w", len(out), err)
		}
		entry, err := take(in)
		if err != nil {
			return nil, err
		}
		out = append(out, entry)
	}
	return out, nil
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
