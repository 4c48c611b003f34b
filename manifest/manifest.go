package manifest

import (
	"errors"
	"fmt"
	"math"
	"sort"
)

// ErrInvalid marks a manifest or a segment whose fields contradict each other,
// for instance ranges that overlap.
var ErrInvalid = errors.New("manifest: invalid")

// Segment describes one segment in the bucket: a .log object with batches and
// an .index object with its chunk table and key run. Offsets are Kafka
// offsets; sizes are bytes.
type Segment struct {
	BaseOffset   int64  `json:"base_offset,string"` // first offset the segment answers for
	LastOffset   int64  `json:"last_offset,string"` // last one, inclusive
	UploadID     string `json:"upload_id"`          // makes the object names unique
	Size         int64  `json:"size"`               // of the .log object
	IndexSize    int64  `json:"index_size"`         // of the .index object
	TableBytes   int64  `json:"table_bytes"`        // of the chunk table at the front of the .index object
	Records      int64  `json:"records"`            // data records in the segment, tombstones included
	Tombstones   int64  `json:"tombstones"`         // those among them without a value
	MaxTimestamp int64  `json:"max_timestamp"`      // largest record timestamp, Unix milliseconds
	CreatedAt    int64  `json:"created_at"`         // when its newest part was uploaded first, by the writer's clock, Unix milliseconds; 0 is not known: it does not age
	Epoch        int64  `json:"epoch"`              // in which its last records were written
}

// EpochStart says that records from an offset on, up to the next entry's, were
// written in an epoch. Compaction does not touch the list, so the epoch of a
// record stays what it was, whatever segment holds it.
type EpochStart struct {
	Epoch       int64 `json:"epoch"`
	StartOffset int64 `json:"start_offset,string"` // Kafka offset
}

// Removed is a segment that no reader of this manifest needs any more. Readers of
// an older one may, so its objects stay for a while.
type Removed struct {
	BaseOffset int64  `json:"base_offset,string"`
	UploadID   string `json:"upload_id"`
	Size       int64  `json:"size"`       // of both objects, bytes
	RemovedAt  int64  `json:"removed_at"` // by the writer's clock, Unix milliseconds
}

// Manifest is the list of a partition's remote segments in offset order.
// Ranges never overlap; there may be gaps between them. It is immutable: no
// field may be changed once the manifest was handed out.
type Manifest struct {
	Topic     string `json:"topic"`
	TopicID   string `json:"topic_id"`
	Partition int32  `json:"partition"`

	// Epoch counts the times a writer took the partition over, Writer names
	// the one that wrote this manifest.
	Epoch  int64  `json:"epoch"`
	Writer string `json:"writer"`

	// Generation grows by one with each replacement. Session and Commit
	// together name the write that produced this manifest: the session is
	// drawn anew by every claim, the commit counts attempts within it. They
	// let a writer recognise its own write after the reply was lost.
	Generation int64  `json:"generation"`
	Session    string `json:"session"`
	Commit     int64  `json:"commit"`

	// StartOffset is where retention has the partition begin: nothing below is
	// retained in either tier. Offsets below NextOffset have been given to the
	// bucket; those that no segment answers for have nothing that is alive.
	StartOffset int64 `json:"start_offset,string"`
	NextOffset  int64 `json:"next_offset,string"`
	// DeleteHorizon is above every tombstone that compaction has removed for good.
	// An index whose position is below it may have missed a deletion.
	DeleteHorizon int64 `json:"delete_horizon,string"`

	LeaderEpochs []EpochStart `json:"leader_epochs"`
	Segments     []Segment    `json:"segments"`
	Removed      []Removed    `json:"removed"`
}

// Known reports whether this is a manifest that was read or written, as
// opposed to the stand-in for one that nobody has seen yet. Of an unknown
// manifest it must not be concluded that an offset is not in the bucket.
func (m *Manifest) Known() bool { return m.Generation > 0 }

// Find returns the index of the segment that answers for a Kafka offset. An
// offset in a gap, or outside of all segments, is not found.
func (m *Manifest) Find(offset int64) (i int, ok bool) {
	i = m.After(offset)
	return i, i < len(m.Segments) && m.Segments[i].BaseOffset <= offset
}

// After returns the index of the first segment whose last offset is at or
// after offset, len(Segments) when there is none.
func (m *Manifest) After(offset int64) int {
	return sort.Search(len(m.Segments), func(i int) bool { return m.Segments[i].LastOffset >= offset })
}

// Start is the first offset any segment answers for; 0 with no segment.
func (m *Manifest) Start() int64 {
	if len(m.Segments) == 0 {
		return 0
	}
	return m.Segments[0].BaseOffset
}

// Next is the offset up to which the bucket has the partition (exclusive): what is
// appended next goes there.
func (m *Manifest) Next() int64 {
	if n := len(m.Segments); n > 0 {
		return max(m.NextOffset, m.Segments[n-1].LastOffset+1)
	}
	return m.NextOffset
}

// EpochAt is the epoch in which the record at an offset below Next was written.
func (m *Manifest) EpochAt(offset int64) int64 {
	i := sort.Search(len(m.LeaderEpochs), func(i int) bool { return m.LeaderEpochs[i].StartOffset > offset })
	if i == 0 {
		return 0
	}
	return m.LeaderEpochs[i-1].Epoch
}

// validate checks one segment against the end of those before it.
func (s *Segment) validate(next int64) error {
	switch {
	case s.BaseOffset < next:
		return fmt.Errorf("%w: segment at %d begins below %d, the end of those before it", ErrInvalid, s.BaseOffset, next)
	case s.LastOffset < s.BaseOffset || s.LastOffset >= math.MaxInt64-1:
		return fmt.Errorf("%w: segment at %d ends at %d", ErrInvalid, s.BaseOffset, s.LastOffset)
	case !isName(s.UploadID, 64):
		return fmt.Errorf("%w: segment at %d has upload id %.80q", ErrInvalid, s.BaseOffset, s.UploadID)
	case s.Size <= 0 || s.TableBytes <= 0 || s.IndexSize < s.TableBytes:
		return fmt.Errorf("%w: segment at %d has sizes %d, %d, %d", ErrInvalid, s.BaseOffset, s.Size, s.IndexSize, s.TableBytes)
	case s.Records < 0 || s.Tombstones < 0 || s.Tombstones > s.Records:
		return fmt.Errorf("%w: segment at %d has %d records and %d tombstones", ErrInvalid, s.BaseOffset, s.Records, s.Tombstones)
	case s.CreatedAt < 0:
		return fmt.Errorf("%w: segment at %d was created at %d", ErrInvalid, s.BaseOffset, s.CreatedAt)
	case s.Epoch < 0 || s.Epoch > maxEpoch:
		return fmt.Errorf("%w: segment at %d has epoch %d", ErrInvalid, s.BaseOffset, s.Epoch)
	}
	return nil
}

// maxEpoch is the largest epoch: it must fit a batch's leader epoch.
const maxEpoch = math.MaxInt32

// validateHead checks everything but the lists.
func (m *Manifest) validateHead() error {
	switch {
	case !isName(m.Topic, 249):
		return fmt.Errorf("%w: topic %.300q", ErrInvalid, m.Topic)
	case !isName(m.TopicID, 64):
		return fmt.Errorf("%w: topic id %.80q", ErrInvalid, m.TopicID)
	case m.Partition < 0:
		return fmt.Errorf("%w: partition %d", ErrInvalid, m.Partition)
	case m.Epoch < 1 || m.Epoch > maxEpoch:
		return fmt.Errorf("%w: epoch %d", ErrInvalid, m.Epoch)
	case !isName(m.Writer, 128):
		return fmt.Errorf("%w: writer %.160q", ErrInvalid, m.Writer)
	case m.StartOffset < 0 || m.DeleteHorizon < 0 || m.NextOffset < max(m.StartOffset, m.DeleteHorizon) || m.NextOffset == math.MaxInt64:
		return fmt.Errorf("%w: offsets from %d to %d, tombstones removed below %d", ErrInvalid, m.StartOffset, m.NextOffset, m.DeleteHorizon)
	case !isName(m.Session, 64) || m.Commit < 1 || m.Generation < 1:
		return fmt.Errorf("%w: generation %d by commit %d of session %.80q", ErrInvalid, m.Generation, m.Commit, m.Session)
	}
	return nil
}

// validate checks one entry against the end of those before it.
func (e EpochStart) validate(next int64) error {
	if e.StartOffset < next || e.StartOffset == math.MaxInt64 || e.Epoch < 0 || e.Epoch > maxEpoch {
		return fmt.Errorf("%w: epoch %d from offset %d on, the one before from below %d", ErrInvalid, e.Epoch, e.StartOffset, next)
	}
	return nil
}

func (r Removed) validate() error {
	if r.BaseOffset < 0 || !isName(r.UploadID, 64) || r.Size < 0 || r.RemovedAt < 0 {
		return fmt.Errorf("%w: removed segment at %d with upload id %.80q, %d bytes, at %d", ErrInvalid,
			r.BaseOffset, r.UploadID, r.Size, r.RemovedAt)
	}
	return nil
}

// validateLists checks the lists against the head and each other. Their entries
// have been checked one by one.
func (m *Manifest) validateLists() error {
	if n := len(m.Segments); n > 0 {
		first, last := m.Segments[0].BaseOffset, m.Segments[n-1].LastOffset
		if first < m.StartOffset || last >= m.NextOffset {
			return fmt.Errorf("%w: segments at offsets %d to %d of a partition of offsets %d to %d", ErrInvalid,
				first, last, m.StartOffset, m.NextOffset)
		}
		if len(m.LeaderEpochs) == 0 || m.LeaderEpochs[0].StartOffset > first {
			return fmt.Errorf("%w: the epoch at offset %d is not known", ErrInvalid, first)
		}
	}
	if n := len(m.LeaderEpochs); n > 0 && m.LeaderEpochs[n-1].StartOffset >= m.NextOffset {
		return fmt.Errorf("%w: epoch from offset %d on, of %d", ErrInvalid, m.LeaderEpochs[n-1].StartOffset, m.NextOffset)
	}
	// Objects of a removed segment are deleted some day.
	if len(m.Removed) == 0 {
		return nil
	}
	type name struct {
		base int64
		id   string
	}
	removed := make(map[name]bool, len(m.Removed))
	for _, r := range m.Removed {
		if removed[name{r.BaseOffset, r.UploadID}] {
			return fmt.Errorf("%w: segment at %d removed twice", ErrInvalid, r.BaseOffset)
		}
		removed[name{r.BaseOffset, r.UploadID}] = true
	}
	for i := range m.Segments {
		if s := &m.Segments[i]; removed[name{s.BaseOffset, s.UploadID}] {
			return fmt.Errorf("%w: segment at %d is removed and not removed", ErrInvalid, s.BaseOffset)
		}
	}
	return nil
}

// isName reports whether s has 1 to limit bytes out of letters, digits, dot,
// underscore and dash: what Kafka allows in a topic name, and what needs no
// escaping in JSON, in an object key or in a log line.
func isName(s string, limit int) bool {
	if s == "" || len(s) > limit {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}
