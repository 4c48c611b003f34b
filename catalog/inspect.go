package catalog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/record"
)

// What follows reads the documents of a data directory and of a bucket without
// changing anything, for whoever judges them from outside.

// Description is what a topic.json says.
type Description struct {
	Name, ID   string
	Partitions int32
	Revision   int64
	CreatedMS  int64 // Unix milliseconds
	DeletedMS  int64 // likewise; 0: the topic lives
	Indexed    bool  // the property redpanda.kv.index.enabled
}

// NewerThan orders topics of one name by their creation.
func (d *Description) NewerThan(other *Description) bool {
	a, b := topicData{CreatedMS: d.CreatedMS, ID: d.ID}, topicData{CreatedMS: other.CreatedMS, ID: other.ID}
	return a.newerThan(&b)
}

func describe(t *topicData) *Description {
	return &Description{
		Name: t.Name, ID: t.ID, Partitions: t.Partitions, Revision: t.Revision,
		CreatedMS: t.CreatedMS, DeletedMS: t.DeletedMS,
		Indexed: view{topicTable, t.Properties, true}.flag(propTopicIndex),
	}
}

// Keys of the documents in a bucket, and the largest size of a document in bytes.
const (
	ClusterKey       = clusterObject
	MaxDocumentBytes = maxDocumentBytes
)

// TopicKey is the key of a topic's description in the bucket.
func TopicKey(name, id string) string { return topicObject(name, id) }

// IsTopicFolder reports whether name and id can be those of a topic.
func IsTopicFolder(name, id string) bool {
	return checkTopicName(name) == nil && checkID("id", id) == nil
}

// DecodeTopic reads the topic.json of the topic with the given name and id.
// Damage is a record.CorruptError that names object.
func DecodeTopic(object string, b []byte, name, id string) (*Description, error) {
	var data topicData
	if err := decodeDocument(object, formatTopic, b, &data); err != nil {
		return nil, err
	}
	if data.Name != name || data.ID != id {
		return nil, record.Corrupt(object, 0, fmt.Errorf("holds topic %s with id %s", data.Name, data.ID))
	}
	return describe(&data), nil
}

// DecodeCluster reads a bucket's cluster.json and gives the cluster id.
func DecodeCluster(b []byte) (id string, err error) {
	var data clusterData
	err = decodeDocument(clusterObject, formatCluster, b, &data)
	return data.ClusterID, err
}

// LockDirectory takes an existing data directory, so that no node starts on it
// until the result is closed. A directory without a lock file has never had a
// node; it is not given one. Errors: ErrLocked, fs.ErrNotExist, the file system's.
func LockDirectory(fsys vfs.FS, dir string) (io.Closer, error) {
	d := disk{fsys, dir}
	info, err := fsys.Stat(dir)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s is not a directory", dir)
	}
	if _, err := fsys.Stat(d.path(lockFile)); errors.Is(err, fs.ErrNotExist) {
		return io.NopCloser(nil), nil
	}
	return d.lock()
}

// TopicDirectory is the folder of a topic in a data directory, or empty if there
// is none.
func TopicDirectory(fsys vfs.FS, dir, name, id string) string {
	d := disk{fsys, dir}
	if !d.hasTopicDir(name, id) {
		return ""
	}
	return d.topicDir(name, id)
}

// Directory is what the documents of a data directory say.
type Directory struct {
	NodeID    string // the writer id in manifests; empty if not known
	ClusterID string // empty: no bucket seen yet
	// ReadReplica says that a read replica made the directory: there is no log.
	ReadReplica bool
	Topics      []StoredTopic
	Deleted     []*Description // deletions not finished: the bucket may not be swept yet
	// Damage are documents that keep the node from starting, or a topic from
	// being opened; each names its file.
	Damage []error
	// Strays are files and folders, full paths, that the next start removes or
	// ignores.
	Strays []string
}

// StoredTopic is a topic on disk.
type StoredTopic struct {
	*Description
	Dir string // full path; partition n is in the folder n
}

// ReadDirectory reads a data directory that no node has open. The error is the
// file system's; damage is in the result.
func ReadDirectory(fsys vfs.FS, dir string) (*Directory, error) {
	in := &inspection{d: disk{fsys, dir}, out: &Directory{}}
	if err := in.node(); err != nil {
		return nil, err
	}
	deleted, err := in.deletions()
	if err != nil {
		return nil, err
	}
	return in.out, in.topics(deleted)
}

type inspection struct {
	d   disk
	out *Directory
}

// damage takes down what decoding says and passes on what reading says.
func (in *inspection) damage(path string, err error) error {
	var reading *fs.PathError
	if err == nil || errors.As(err, &reading) {
		return err
	}
	if !errors.Is(err, record.ErrCorrupt) {
		err = record.Corrupt(path, 0, err) // a version from the future
	}
	in.out.Damage = append(in.out.Damage, err)
	return nil
}

func (in *inspection) node() error {
	var node nodeData
	_, err := in.d.read(in.d.path(nodeFile), formatNode, &node)
	if err := in.damage(in.d.path(nodeFile), err); err != nil {
		return err
	}
	if err == nil {
		in.out.NodeID, in.out.ClusterID, in.out.ReadReplica = node.NodeID, node.ClusterID, node.ReadReplica
	}
	var config configData
	_, err = in.d.read(in.d.path(configFile), formatConfig, &config)
	if err := in.damage(in.d.path(configFile), err); err != nil {
		return err
	}
	names, err := in.d.list(in.d.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == nodeFile+".tmp" || name == configFile+".tmp" {
			in.stray(in.d.path(name))
		}
	}
	return nil
}

func (in *inspection) stray(path string) { in.out.Strays = append(in.out.Strays, path) }

func (in *inspection) deletions() (map[string]bool, error) {
	names, err := in.d.list(in.d.path(deletedDir))
	if err != nil {
		return nil, err
	}
	gone := make(map[string]bool)
	for _, name := range slices.Sorted(slices.Values(names)) {
		path := in.d.path(deletedDir, name)
		id, ok := strings.CutSuffix(name, ".json")
		if !ok {
			in.stray(path)
			continue
		}
		var t topicData
		found, err := in.d.read(path, formatTopic, &t)
		if err := in.damage(path, err); err != nil {
			return nil, err
		}
		if err == nil && found && t.ID == id {
			gone[id] = true
			in.out.Deleted = append(in.out.Deleted, describe(&t))
		}
	}
	return gone, nil
}

func (in *inspection) topics(deleted map[string]bool) error {
	names, err := in.d.list(in.d.path(topicsDir))
	if err != nil {
		return err
	}
	newest := make(map[string]StoredTopic)
	for _, name := range slices.Sorted(slices.Values(names)) {
		if checkTopicName(name) != nil {
			in.stray(in.d.path(topicsDir, name))
			continue
		}
		ids, err := in.d.list(in.d.path(topicsDir, name))
		if err != nil {
			return err
		}
		for _, id := range slices.Sorted(slices.Values(ids)) {
			t, err := in.topic(name, id, deleted)
			if err != nil {
				return err
			}
			switch have, ok := newest[name]; {
			case t == nil:
			case ok && have.NewerThan(t.Description):
				in.stray(t.Dir)
			default:
				if ok {
					in.stray(have.Dir)
				}
				newest[name] = *t
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(newest)) {
		in.out.Topics = append(in.out.Topics, newest[name])
	}
	return nil
}

// topic gives nil for a folder that is none.
func (in *inspection) topic(name, id string, deleted map[string]bool) (*StoredTopic, error) {
	dir := in.d.topicDir(name, id)
	if checkID("id", id) != nil || deleted[id] {
		in.stray(dir)
		return nil, nil
	}
	if _, err := in.d.fs.Stat(in.d.fs.PathJoin(dir, topicFile+".tmp")); err == nil {
		in.stray(in.d.fs.PathJoin(dir, topicFile+".tmp"))
	}
	path := in.d.fs.PathJoin(dir, topicFile)
	var data topicData
	found, err := in.d.read(path, formatTopic, &data)
	if err == nil && found && (data.Name != name || data.ID != id) {
		err = record.Corrupt(path, 0, fmt.Errorf("holds topic %s with id %s", data.Name, data.ID))
	}
	switch damaged := err != nil; {
	case damaged:
		return nil, in.damage(path, err)
	case !found:
		in.stray(dir)
		return nil, nil
	}
	return &StoredTopic{Description: describe(&data), Dir: dir}, nil
}
