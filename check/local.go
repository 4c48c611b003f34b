package check

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"keyhole/index"
	"keyhole/locallog"
	"keyhole/record"
)

// maxUncompressed bounds one decompressed batch, as lookups do.
const maxUncompressed = 80 << 20

// local checks what is on disk of a partition, and takes the keys of its log.
func (p *part) local(ctx context.Context) error {
	names, err := p.c.fs.List(p.dir)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		if name != logDir && name != remoteDir && name != indexDir {
			p.c.report(Note, Local, p.path(name), 0, "not a file of the partition")
		}
	}
	at, err := p.openIndex()
	if err != nil {
		return err
	}
	if p.index != nil {
		if p.replay, err = newReplay(p.c.o.ScratchFS, p.c.o.ScratchDir, p.c.shared); err != nil {
			return fmt.Errorf("scratch index: %w", err)
		}
	}
	return p.verifyLog(ctx, at)
}

// openIndex opens the index for reading, if there is one to be compared.
func (p *part) openIndex() (index.Position, error) {
	dir := p.path(indexDir)
	if !p.indexed {
		if _, err := p.c.fs.Stat(dir); err == nil {
			p.c.report(Note, Local, dir, 0, "index of a topic that has none; the next start removes it")
		}
		return index.Position{}, nil
	}
	ix, err := index.Open(dir, index.Options{FS: p.c.fs, Shared: p.c.shared, ReadOnly: true})
	switch {
	case errors.Is(err, record.ErrCorrupt):
		p.c.report(Note, Local, dir, 0, "the index does not open; the next start builds it anew from the logs: %v", err)
		return index.Position{}, nil
	case notExist(err):
		p.c.report(Note, Local, dir, 0, "no index; the next start builds it from the logs")
		return index.Position{}, nil
	case err != nil:
		return index.Position{}, err
	}
	p.index = ix
	return ix.Applied(), nil
}

// verifyLog reads the local log.
func (p *part) verifyLog(ctx context.Context, proven index.Position) error {
	dir := p.path(logDir)
	var r record.Reader
	var lost []locallog.Range // whose checksum holds, but not their records
	v, err := locallog.Verify(ctx, locallog.VerifyOptions{
		FS: p.c.fs, Dir: dir, ProvenNextLog: proven.NextLog, ProvenNextKafka: proven.NextKafka,
		Report: func(f locallog.Finding) {
			severity := Note
			if f.Damage {
				severity = Damage
			}
			p.c.report(severity, Local, p.path(logDir, f.File), f.Position, "%v", f.Err)
		},
		Batch: func(file string, pos int64, a locallog.Appended) error {
			err := p.batch(&r, a)
			if errors.Is(err, record.ErrCorrupt) {
				last := a.KafkaBase + int64(r.Header().LastOffsetDelta)
				lost = append(lost, locallog.Range{From: a.KafkaBase, Next: last + 1})
				return p.c.corrupt(Local, p.path(logDir, file), record.Corrupt(p.path(logDir, file), pos, err))
			}
			return err
		},
		Read: p.c.step,
	})
	if err != nil {
		return err
	}
	v.Unreadable = append(v.Unreadable, lost...)
	p.log = v
	p.c.sum.LocalSegments += v.Files
	return nil
}

// batch reads the records of one batch.
func (p *part) batch(r *record.Reader, a locallog.Appended) error {
	if err := r.Reset(a.Batch, maxUncompressed); err != nil {
		return err
	}
	h := r.Header()
	for !h.IsControl() && r.Next() {
		rec := r.Record()
		p.c.sum.Records++
		if rec.Key == nil || p.replay == nil {
			continue
		}
		if err := p.replay.set(rec.Key, a.KafkaBase+rec.Offset-h.BaseOffset, rec.Value == nil); err != nil {
			return fmt.Errorf("scratch index: %w", err)
		}
	}
	return r.Err()
}
