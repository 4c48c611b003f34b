package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"regexp"
	"slices"

	"keyhole/record"
)

// Names and sizes of the documents of this package. They are small; a longer
// one is refused before it is read whole.
const (
	formatNode    = "keyhole.node"
	formatConfig  = "keyhole.config"
	formatCluster = "keyhole.cluster"
	formatTopic   = "keyhole.topic"

	documentVersion  = 1
	maxDocumentBytes = 1 << 20
)

// document is the frame of every file and object of this package. The checksum
// is taken over the bytes of data as they stand in the file, so that a flipped
// bit in a property is damage and not another value.
type document struct {
	Format  string          `json:"format"`
	Version int             `json:"version"`
	CRC     string          `json:"crc32c"` // 8 hex digits
	Data    json.RawMessage `json:"data"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(data []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(data, castagnoli))
}

// encodeDocument frames data, which must be one of the types of this file.
func encodeDocument(format string, data any) ([]byte, error) {
	d, err := json.Marshal(data)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", format, err)
	}
	b, err := json.Marshal(document{Format: format, Version: documentVersion, CRC: checksum(d), Data: d})
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", format, err)
	}
	if len(b) >= maxDocumentBytes {
		return nil, fmt.Errorf("encode %s: %d bytes, at most %d are possible", format, len(b), maxDocumentBytes)
	}
	return append(b, '\n'), nil
}

// decodeDocument checks the frame of b and decodes its data. Damage is a
// record.CorruptError that names object; a version from the future is not
// damage and gives a plain error.
func decodeDocument(object, format string, b []byte, data interface{ validate() error }) error {
	var doc document
	if err := strictJSON(b, &doc); err != nil {
		return record.Corrupt(object, 0, err)
	}
	if doc.Format != format {
		return record.Corrupt(object, 0, fmt.Errorf("format is %q, not %q", doc.Format, format))
	}
	if sum := checksum(doc.Data); sum != doc.CRC {
		return record.Corrupt(object, 0, fmt.Errorf("checksum is %s, the data has %s", doc.CRC, sum))
	}
	if doc.Version != documentVersion {
		return fmt.Errorf("%s has version %d of format %s; this program knows version %d", object, doc.Version, format, documentVersion)
	}
	if err := strictJSON(doc.Data, data); err != nil {
		return record.Corrupt(object, 0, err)
	}
	if err := data.validate(); err != nil {
		return record.Corrupt(object, 0, err)
	}
	return nil
}

// strictJSON decodes exactly one JSON value without unknown fields.
func strictJSON(b []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON value")
	}
	return nil
}

var idPattern = regexp.MustCompile(`^[0-9a-f]{32}$`)

func checkID(what, id string) error {
	if !idPattern.MatchString(id) {
		return fmt.Errorf("%s %q is not 32 hex digits", what, id)
	}
	return nil
}

// nodeData is node.json: who this data directory is.
type nodeData struct {
	// NodeID is the writer id in manifests, made with the directory.
	NodeID string `json:"node_id"`
	// ReadReplica says that the directory is a read replica's and holds no log.
	ReadReplica bool `json:"read_replica,omitempty"`
	// ClusterID is the id of the bucket that the directory belongs to; empty
	// until one has been seen.
	ClusterID string `json:"cluster_id,omitempty"`
	// Conditional is what the last probe of the store found out; nil: none yet.
	Conditional *bool `json:"conditional_writes,omitempty"`
}

func (n *nodeData) validate() error {
	if n.ClusterID != "" {
		if err := checkID("cluster_id", n.ClusterID); err != nil {
			return err
		}
	}
	return checkID("node_id", n.NodeID)
}

// clusterData is cluster.json in the bucket.
type clusterData struct {
	ClusterID string `json:"cluster_id"`
	CreatedMS int64  `json:"created_ms"`
}

func (c *clusterData) validate() error { return checkID("cluster_id", c.ClusterID) }

// configData is config.json: what has been set for the cluster.
type configData struct {
	Version    int64             `json:"config_version"`
	Properties overrides         `json:"properties"`
	Features   map[string]string `json:"features"`
}

func (c *configData) validate() error {
	if c.Version < 0 {
		return fmt.Errorf("config_version %d is negative", c.Version)
	}
	for name, state := range c.Features {
		if !slices.Contains(featureNames, name) {
			return fmt.Errorf("unknown feature %q", name)
		}
		if state != StateActive && state != StateDisabled {
			return fmt.Errorf("feature %s has the unknown state %q", name, state)
		}
	}
	return clusterTable.check(c.Properties)
}

// topicData is topic.json, on disk and in the bucket: enough to reopen the
// topic on an empty disk. It is never modified; a change makes a new one.
type topicData struct {
	Name       string    `json:"name"`
	ID         string    `json:"id"`
	Partitions int32     `json:"partitions"`
	CreatedMS  int64     `json:"created_ms"`
	Revision   int64     `json:"revision"` // counts changes, from 1
	Properties overrides `json:"properties"`
	// DeletedMS is when the topic was deleted; 0: it was not. In the bucket
	// the mark keeps an empty disk from adopting the topic until its objects
	// have been swept.
	DeletedMS int64 `json:"deleted_ms,omitempty"`
}

// maxPartitions bounds the partitions of a topic.
const maxPartitions = 10_000

func (t *topicData) validate() error {
	if err := checkTopicName(t.Name); err != nil {
		return fmt.Errorf("name %w", err)
	}
	if err := checkID("id", t.ID); err != nil {
		return err
	}
	if t.Partitions < 1 || t.Partitions > maxPartitions {
		return fmt.Errorf("%d partitions, possible are 1 to %d", t.Partitions, maxPartitions)
	}
	if t.Revision < 1 || t.CreatedMS < 0 || t.DeletedMS < 0 {
		return errors.New("revision or time out of range")
	}
	return topicTable.check(t.Properties)
}

// with returns the next revision of t with other properties.
func (t *topicData) with(properties overrides) *topicData {
	next := *t
	next.Revision++
	next.Properties = maps.Clone(properties)
	return &next
}

// newerThan orders topics of one name by their creation.
func (t *topicData) newerThan(other *topicData) bool {
	if t.CreatedMS != other.CreatedMS {
		return t.CreatedMS > other.CreatedMS
	}
	return t.ID > other.ID
}
