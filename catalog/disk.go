package catalog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/fsync"
	"keyhole/manifest"
	"keyhole/record"
)

// Names below the data directory.
const (
	lockFile   = "LOCK"
	nodeFile   = "node.json"
	configFile = "config.json"
	topicFile  = "topic.json"
	topicsDir  = "topics"
	deletedDir = "deleted"
)

// disk is the data directory. Its writes are serialised by the catalog's mu.
type disk struct {
	fs  vfs.FS
	dir string
}

// ErrLocked says that another process uses the data directory.
var ErrLocked = errors.New("data directory is in use by another keyhole process")

// lock makes the data directory and takes it for this process. The operating
// system gives the lock back when the process dies, however it dies.
func (d disk) lock() (io.Closer, error) {
	if err := d.make(); err != nil {
		return nil, fmt.Errorf("make data directory %s: %w", d.dir, err)
	}
	l, err := d.fs.Lock(d.path(lockFile))
	var path *fs.PathError
	var number syscall.Errno
	switch {
	case err == nil:
		return l, nil
	case errors.As(err, &path), errors.As(err, &number) && number != syscall.EAGAIN && number != syscall.EACCES:
		// The file cannot be made, or the file system has no locks.
		return nil, fmt.Errorf("lock data directory %s: %w", d.dir, err)
	}
	return nil, fmt.Errorf("%w: %s", ErrLocked, d.dir)
}

// make makes the data directory and its parents and makes their names durable.
func (d disk) make() error {
	var parents []string // of directories that are missing
	for dir := d.dir; ; {
		_, err := d.fs.Stat(dir)
		parent := d.fs.PathDir(dir)
		if !errors.Is(err, fs.ErrNotExist) || parent == dir {
			break
		}
		parents = append(parents, parent)
		dir = parent
	}
	if err := d.fs.MkdirAll(d.dir, 0o755); err != nil {
		return err
	}
	return d.syncDirs(parents...)
}

func (d disk) path(elem ...string) string {
	return d.fs.PathJoin(append([]string{d.dir}, elem...)...)
}

func (d disk) topicDir(name, id string) string { return d.path(topicsDir, name, id) }

// write replaces a document. The directory must exist.
func (d disk) write(path, format string, data any) error {
	b, err := encodeDocument(format, data)
	if err != nil {
		return err
	}
	return manifest.WriteFile(d.fs, path, b)
}

// read gives found=false if the file does not exist; whatever else keeps it
// from being read is an error that names it.
func (d disk) read(path, format string, data interface{ validate() error }) (found bool, err error) {
	b, err := manifest.ReadFile(d.fs, path, maxDocumentBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %s: %w", path, err)
	}
	return true, decodeDocument(path, format, b, data)
}

// writeTopic makes a topic durable: first its file, then the names that lead to
// it. A crash in between leaves a directory that no topic.json makes a topic.
func (d disk) writeTopic(t *topicData) error {
	dir := d.topicDir(t.Name, t.ID)
	if err := d.fs.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make topic directory: %w", err)
	}
	if err := d.write(d.fs.PathJoin(dir, topicFile), formatTopic, t); err != nil {
		return fmt.Errorf("write topic: %w", err)
	}
	return d.syncDirs(d.path(topicsDir, t.Name), d.path(topicsDir), d.dir)
}

func (d disk) syncDirs(dirs ...string) error {
	for _, dir := range dirs {
		if err := fsync.Dir(d.fs, dir); err != nil {
			return err
		}
	}
	return nil
}

// writeDeleted makes a deletion durable. From here on the topic's own files
// count for nothing.
func (d disk) writeDeleted(t *topicData) error {
	if err := d.fs.MkdirAll(d.path(deletedDir), 0o755); err != nil {
		return fmt.Errorf("make directory of deletions: %w", err)
	}
	if err := d.write(d.path(deletedDir, t.ID+".json"), formatTopic, t); err != nil {
		return fmt.Errorf("write deletion: %w", err)
	}
	return d.syncDirs(d.dir)
}

// forgetDeleted ends a deletion that nothing remains to be done for.
func (d disk) forgetDeleted(id string) error {
	err := d.fs.Remove(d.path(deletedDir, id+".json"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // another node's deletion
	case err != nil:
		return fmt.Errorf("remove deletion: %w", err)
	}
	return d.syncDirs(d.path(deletedDir))
}

// removeTopic removes the files of a topic and makes that durable. The
// directory of the name goes too unless another topic of that name is in it.
func (d disk) removeTopic(name, id string) error {
	if err := d.fs.RemoveAll(d.topicDir(name, id)); err != nil {
		return fmt.Errorf("remove topic files: %w", err)
	}
	parent := d.path(topicsDir, name)
	names, err := d.list(parent)
	if err != nil {
		return err
	}
	if len(names) > 0 {
		return d.syncDirs(parent)
	}
	if err := d.fs.Remove(parent); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove topic directory: %w", err)
	}
	if _, err := d.fs.Stat(d.path(topicsDir)); err != nil {
		return nil // there was never a topic here
	}
	return d.syncDirs(d.path(topicsDir))
}

// hasTopicDir reports whether this disk holds anything of a topic.
func (d disk) hasTopicDir(name, id string) bool {
	_, err := d.fs.Stat(d.topicDir(name, id))
	return err == nil
}

// list gives the names in a directory; a missing one is empty.
func (d disk) list(dir string) ([]string, error) {
	names, err := d.fs.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	return names, nil
}

// topicFolders gives name and id of every topic directory.
func (d disk) topicFolders() (found []localTopic, err error) {
	names, err := d.list(d.path(topicsDir))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if checkTopicName(name) != nil {
			continue
		}
		ids, err := d.list(d.path(topicsDir, name))
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			if checkID("id", id) == nil {
				found = append(found, localTopic{name: name, id: id})
			}
		}
	}
	return found, nil
}

// localTopic is what a topic directory holds: a topic, or the reason why it
// cannot be told.
type localTopic struct {
	name, id string
	data     *topicData
	damage   error
}

// topics reads all topic directories except those of deleted ones. A directory
// without topic.json is a creation that a crash cut short, or waits for the
// bucket to name it; it is no topic.
func (d disk) topics(deleted map[string]*topicData) ([]localTopic, error) {
	found, err := d.topicFolders()
	if err != nil {
		return nil, err
	}
	var out []localTopic
	for _, f := range found {
		if deleted[f.id] != nil {
			continue
		}
		t, err := d.readTopic(f.name, f.id)
		if err != nil {
			return nil, err
		}
		if t != nil {
			out = append(out, *t)
		}
	}
	return out, nil
}

// readTopic gives nil where there is no topic.json.
func (d disk) readTopic(name, id string) (*localTopic, error) {
	path := d.fs.PathJoin(d.topicDir(name, id), topicFile)
	var data topicData
	found, err := d.read(path, formatTopic, &data)
	switch {
	case errors.Is(err, record.ErrCorrupt):
		return &localTopic{name: name, id: id, damage: err}, nil
	case err != nil:
		return nil, err
	case !found:
		return nil, d.removeUnborn(name, id)
	case data.Name != name || data.ID != id:
		return &localTopic{name: name, id: id, damage: record.Corrupt(path, 0, fmt.Errorf("holds topic %s with id %s", data.Name, data.ID))}, nil
	}
	return &localTopic{name: name, id: id, data: &data}, nil
}

// removeUnborn removes what a creation left that a crash cut short. A directory
// with partitions in it is left alone: the bucket may know the topic.
func (d disk) removeUnborn(name, id string) error {
	names, err := d.list(d.topicDir(name, id))
	if err != nil {
		return err
	}
	for _, n := range names {
		if n != topicFile+".tmp" {
			return nil
		}
	}
	return d.removeTopic(name, id)
}

// deletions reads the deletions that are not finished.
func (d disk) deletions() (map[string]*topicData, error) {
	names, err := d.list(d.path(deletedDir))
	if err != nil {
		return nil, err
	}
	out := make(map[string]*topicData)
	for _, name := range names {
		id, ok := strings.CutSuffix(name, ".json")
		if !ok {
			continue // the temporary file of a write that a crash cut short
		}
		var t topicData
		if found, err := d.read(d.path(deletedDir, name), formatTopic, &t); err != nil {
			return nil, err
		} else if found && t.ID == id {
			out[id] = &t
		}
	}
	return out, nil
}
