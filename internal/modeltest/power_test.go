package modeltest

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"keyhole/objstore"
)

// power is a switch over the disk and the bucket of one run of a node. It goes off
// when it is told to, or at the k-th step from now: a change of the disk, or one
// side of a change of the bucket. From then on everything that would change
// anything fails, and what a power cut leaves of the disk is kept.
type power struct {
	disk *vfs.MemFS
	mu   struct {
		sync.Mutex
		armed bool
		steps int // until it goes off
		rng   *rand.Rand
		after *vfs.MemFS // nil: it is on
	}
}

var errPowerCut = errors.New("power cut")

// arm lets the power go off after so many steps.
func (p *power) arm(steps int, rng *rand.Rand) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.armed, p.mu.steps, p.mu.rng = true, steps, rng
}

// disarm reports whether the power has gone off; if it has not, it stays on.
func (p *power) disarm() (cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.armed = false
	return p.mu.after != nil
}

func (p *power) off(rng *rand.Rand) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offLocked(rng)
}

func (p *power) offLocked(rng *rand.Rand) {
	if p.mu.after == nil {
		p.mu.after = p.disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
	}
}

// left is the disk after the cut.
func (p *power) left() *vfs.MemFS {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.after
}

func (p *power) step() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.after == nil && p.mu.armed {
		if p.mu.steps--; p.mu.steps < 0 {
			p.offLocked(p.mu.rng)
		}
	}
	if p.mu.after != nil {
		return errPowerCut
	}
	return nil
}

// fs is the disk behind the switch.
func (p *power) fs() vfs.FS {
	return powerFS{p, errorfs.Wrap(p.disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsRead || op.Kind == errorfs.OpFileClose {
			return nil
		}
		return p.step()
	}))}
}

// powerFS says of a file that is not there that it cannot be removed, which
// errorfs does not.
type powerFS struct {
	power *power
	vfs.FS
}

func (f powerFS) Remove(name string) error {
	if err := f.power.step(); err != nil {
		return err
	}
	return f.power.disk.Remove(name)
}

// process is what one run of a node has of the bucket, behind the switch.
type process struct {
	objstore.Bucket
	power *power
}

func (p *process) step(op, key string) error {
	if err := p.power.step(); err != nil {
		return &objstore.OpError{Op: op, Key: key, Kind: objstore.ErrUnavailable, Err: err}
	}
	return nil
}

func (p *process) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond objstore.Condition) (string, error) {
	if err := p.step("put", key); err != nil {
		return "", err
	}
	etag, err := p.Bucket.Put(ctx, key, body, size, cond)
	if lost := p.step("put", key); lost != nil {
		return "", lost
	}
	return etag, err
}

func (p *process) Delete(ctx context.Context, key string) error {
	if err := p.step("delete", key); err != nil {
		return err
	}
	return errors.Join(p.Bucket.Delete(ctx, key), p.step("delete", key))
}
