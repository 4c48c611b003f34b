package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

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
	p.strangers(names)
	at, err := p.openIndex()
	if err != nil {
		return err
	}
	if p.index != nil {
		if p.replay, err = newReplay(p.c.o.ScratchFS, p.c.o.ScratchDir, p.c.shared); err != nil {
			return fmt.Errorf("scratch index: %w", err)
		}
	}
	if p.replica() {
		return nil
	}
	return p.verifyLog(ctx, at)
}

// strangers reports what a running gateway does not have in the directory, and
// finds out which of its indexes a read replica goes by.
func (p *part) strangers(names []string) {
	slices.Sort(names)
	two := p.replica() && slices.Contains(names, nextIndexDir)
	if two && !slices.Contains(names, indexDir) {
		p.indexName, two = nextIndexDir, false
	}
	for _, name := range names {
		switch {
		case name == remoteDir, name == indexDir, name == p.indexName:
		case (name == logDir || name == cleanedFile) && !p.replica():
		case name == nextIndexDir && two:
			p.c.report(Note, Local, p.path(name), 0, "second index, of a rebuild that was broken off or had just come through; the next start removes it")
		case name == outdatedLog && !p.replica():
			p.c.report(Note, Local, p.path(name), 0, "local log that was set aside because the bucket had gone past it; the next start removes it")
		case strings.HasSuffix(name, ".tmp"):
			p.c.report(Note, Local, p.path(name), 0, "temporary file of a write that was broken off")
		default:
			p.c.report(Note, Local, p.path(name), 0, "not a file of the partition")
		}
	}
}

// openIndex opens the index for reading, if there is one to be compared.
func (p *part) openIndex() (index.Position, error) {
	dir := p.path(p.indexName)
	if !p.indexed {
		if _, err := p.c.fs.Stat(dir); err == nil {
			p.c.report(Note, Local, dir, 0, "index of a topic that has none; the next start removes it")
		}
		return index.Position{}, nil
	}
	source := "the logs"
	if p.replica() {
		source = "the bucket"
	}
	ix, err := index.Open(dir, index.Options{FS: p.c.fs, Shared: p.c.shared, ReadOnly: true})
	switch {
	case errors.Is(err, record.ErrCorrupt):
		p.c.report(Note, Local, dir, 0, "the index does not open; the next start builds it anew from %s: %v", source, err)
		return index.Position{}, nil
	case notExist(err):
		p.c.report(Note, Local, dir, 0, "no index; the next start builds it from %s", source)
		return index.Position{}, nil
	case err != nil:
		return index.Position{}, err
	}
	p.index = ix
	return ix.Applied(), nil
}

// verifyLog reads the local log.
func (p *part) verifyLog(ctx context.Context, applied index.Position) error {
	dir := p.path(logDir)
	var r record.Reader
	var lost []locallog.Range // whose checksum holds, but not their records
	provenLog, provenKafka := applied.Proven()
	v, err := locallog.Verify(ctx, locallog.VerifyOptions{
		FS: p.c.fs, Dir: dir, ProvenNextLog: provenLog, ProvenNextKafka: provenKafka,
		Report: func(f locallog.Finding) {
			severity := Note
			if f.Damage {
				severity = Damage
			}
			p.c.report(severity, Local, p.path(logDir, f.File), f.Position, "%v", f.Err)
		},
		Batch: func(file string, pos int64, a locallog.Appended) error {
			err := p.batch(&r, file, a)
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
func (p *part) batch(r *record.Reader, file string, a locallog.Appended) error {
	if err := r.Reset(a.Batch, maxUncompressed); err != nil {
		return err
	}
	h := r.Header()
	for first := true; !h.IsControl() && r.Next(); first = false {
		rec := r.Record()
		offset := a.KafkaBase + rec.Offset - h.BaseOffset
		if first {
			p.epoch(file, offset)
		}
		p.c.sum.Records++
		if rec.Key == nil || p.replay == nil {
			continue
		}
		if err := p.replay.set(rec.Key, offset, rec.Value == nil); err != nil {
			return fmt.Errorf("scratch index: %w", err)
		}
	}
	return r.Err()
}
