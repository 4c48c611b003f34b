package objstoretest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"sort"
	"strings"
	"sync"
	"time"

	"keyhole/objstore"
)

// Memory is a bucket in memory, with conditions. The zero value is not usable;
// call NewMemory.
type Memory struct {
	mu struct {
		sync.Mutex
		objects map[string]memoryObject
		closed  bool
	}
}

type memoryObject struct {
	data    []byte // immutable
	etag    string
	modTime time.Time
}

// NewMemory makes an empty bucket.
func NewMemory() *Memory {
	m := &Memory{}
	m.mu.objects = make(map[string]memoryObject)
	return m
}

// begin is the check every call starts with.
func (m *Memory) begin(ctx context.Context, op, key string, invalid error) error {
	if invalid != nil {
		return invalid
	}
	if err := ctx.Err(); err != nil {
		return &objstore.OpError{Op: op, Key: key, Kind: err}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.closed {
		return &objstore.OpError{Op: op, Key: key, Kind: objstore.ErrClosed}
	}
	return nil
}

func (m *Memory) object(op, key string) (memoryObject, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o, ok := m.mu.objects[key]
	if !ok {
		return memoryObject{}, &objstore.OpError{Op: op, Key: key, Kind: objstore.ErrNotFound}
	}
	return o, nil
}

// ReadRange implements objstore.Bucket.
func (m *Memory) ReadRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	const op = "read"
	if err := m.begin(ctx, op, key, objstore.CheckRange(key, off, n)); err != nil {
		return nil, err
	}
	o, err := m.object(op, key)
	if err != nil {
		return nil, err
	}
	if off+n > int64(len(o.data)) {
		return nil, &objstore.OpError{Op: op, Key: key, Kind: objstore.ErrRange,
			Detail: fmt.Sprintf("%d bytes at %d asked for, object has %d", n, off, len(o.data))}
	}
	out := make([]byte, n)
	copy(out, o.data[off:])
	return out, nil
}

// Get implements objstore.Bucket.
func (m *Memory) Get(ctx context.Context, key string, maxBytes int64) ([]byte, string, error) {
	return m.get(ctx, key, "", maxBytes)
}

// GetIfChanged implements objstore.Bucket.
func (m *Memory) GetIfChanged(ctx context.Context, key, etag string, maxBytes int64) ([]byte, string, error) {
	if etag == "" {
		return nil, "", fmt.Errorf("%w: empty ETag", objstore.ErrInvalid)
	}
	return m.get(ctx, key, etag, maxBytes)
}

func (m *Memory) get(ctx context.Context, key, unless string, maxBytes int64) ([]byte, string, error) {
	const op = "get"
	if err := m.begin(ctx, op, key, objstore.ValidKey(key)); err != nil {
		return nil, "", err
	}
	o, err := m.object(op, key)
	if err != nil {
		return nil, "", err
	}
	if o.etag == unless {
		return nil, "", &objstore.OpError{Op: op, Key: key, Kind: objstore.ErrNotModified}
	}
	if int64(len(o.data)) > maxBytes {
		return nil, "", &objstore.OpError{Op: op, Key: key, Kind: objstore.ErrTooLarge}
	}
	return append([]byte{}, o.data...), o.etag, nil
}

// Put implements objstore.Bucket. The ETag is a hash of the content, as in S3.
func (m *Memory) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond objstore.Condition) (string, error) {
	const op = "put"
	if err := m.begin(ctx, op, key, objstore.CheckPut(key, size, cond)); err != nil {
		return "", err
	}
	if _, err := body.Seek(0, io.SeekStart); err != nil {
		return "", fmt.Errorf("%w: %w", objstore.ErrInvalid, err)
	}
	data, err := io.ReadAll(io.LimitReader(body, size+1))
	if err != nil {
		return "", fmt.Errorf("%w: %w", objstore.ErrInvalid, err)
	}
	if int64(len(data)) != size {
		return "", fmt.Errorf("%w: body is not of the %d bytes declared", objstore.ErrInvalid, size)
	}
	sum := sha256.Sum256(data)
	o := memoryObject{data: data, etag: `"` + hex.EncodeToString(sum[:16]) + `"`, modTime: time.Now()}

	m.mu.Lock()
	defer m.mu.Unlock()
	old, exists := m.mu.objects[key]
	if cond.IfNoneMatch && exists || cond.IfMatch != "" && (!exists || old.etag != cond.IfMatch) {
		return "", &objstore.OpError{Op: op, Key: key, Kind: objstore.ErrPrecondition}
	}
	m.mu.objects[key] = o
	return o.etag, nil
}

// Delete implements objstore.Bucket.
func (m *Memory) Delete(ctx context.Context, key string) error {
	if err := m.begin(ctx, "delete", key, objstore.ValidKey(key)); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.mu.objects, key)
	return nil
}

// List implements objstore.Bucket.
func (m *Memory) List(ctx context.Context, prefix string, fn func(objstore.Object) error) error {
	if err := m.begin(ctx, "list", prefix, nil); err != nil {
		return err
	}
	for _, o := range m.matching(prefix) {
		if err := fn(o); err != nil {
			return err
		}
	}
	return nil
}

// ListPrefixes implements objstore.Bucket.
func (m *Memory) ListPrefixes(ctx context.Context, prefix string, fn func(string) error) error {
	if err := m.begin(ctx, "list", prefix, objstore.CheckPrefix(prefix)); err != nil {
		return err
	}
	last := ""
	for _, o := range m.matching(prefix) {
		name, _, ok := strings.Cut(o.Key[len(prefix):], "/")
		if folder := prefix + name + "/"; ok && folder != last {
			last = folder
			if err := fn(folder); err != nil {
				return err
			}
		}
	}
	return nil
}

// matching is a sorted snapshot, so that callbacks run without the lock.
func (m *Memory) matching(prefix string) []objstore.Object {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []objstore.Object
	for key, o := range m.mu.objects {
		if strings.HasPrefix(key, prefix) {
			out = append(out, objstore.Object{Key: key, Size: int64(len(o.data)), ModTime: o.modTime})
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Key < out[j].Key })
	return out
}

// Close implements objstore.Bucket.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.closed = true
	return nil
}
