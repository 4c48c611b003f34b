package locallog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/record"
)

// VerifyOptions say which log Verify reads and whom it tells what.
type VerifyOptions struct {
	FS  vfs.FS
	Dir string
	// ProvenNextLog and ProvenNextKafka are those of Options.
	ProvenNextLog, ProvenNextKafka int64
	Report                         func(Finding)
	// Batch is called with each data batch whose CRC holds, from the local start
	// on, in the order of offsets; nil: nobody wants them. Its argument is valid
	// during the call. Its error ends Verify and is returned.
	Batch func(file string, pos int64, a Appended) error
	// Read is told how many bytes of .log files were dealt with; nil: nobody is.
	Read func(bytes int64)
}

// Finding is something in a log's directory that is not as it was written.
type Finding struct {
	File     string // name in the directory
	Position int64  // byte
	// Damage says that offsets cannot be read, or that the log cannot be opened.
	// Without it, the next Open cuts, removes or derives anew what was found.
	Damage bool
	Err    error
}

// Verified is what Verify found the log to be.
type Verified struct {
	State
	Files int
	// Broken says that Open would refuse the log; then State is not known.
	Broken bool
	// Unreadable are the Kafka offsets that answer record.ErrCorrupt.
	Unreadable []Range
}

// Range is a run of Kafka offsets; Next is exclusive.
type Range struct{ From, Next int64 }

// Verify reads the whole log in o.Dir and judges it as Open would, but checks
// every CRC and every sparse index, and changes nothing. The log must not be
// open. Memory is bounded by the sparse indexes of two segments. A directory
// that is not there is a log without files. The error is the file system's, ctx's
// or that of o.Batch.
func Verify(ctx context.Context, o VerifyOptions) (*Verified, error) {
	v := &verifier{
		ctx: ctx,
		o:   &o,
		r: recovery{
			d: &directory{fs: o.FS, path: o.Dir, logger: slog.New(slog.DiscardHandler)},
			o: &Options{ProvenNextLog: o.ProvenNextLog, ProvenNextKafka: o.ProvenNextKafka},
		},
		out: &Verified{},
	}
	if err := v.run(); err != nil {
		return nil, fmt.Errorf("verify log %s: %w", o.Dir, err)
	}
	return v.out, nil
}

// verifier borrows from recovery what only reads.
type verifier struct {
	ctx context.Context
	o   *VerifyOptions
	r   recovery
	out *Verified
}

func (v *verifier) report(file string, pos int64, damage bool, format string, args ...any) {
	v.o.Report(Finding{File: file, Position: pos, Damage: damage, Err: fmt.Errorf(format, args...)})
}

func (v *verifier) run() error {
	if err := v.list(); err != nil {
		return err
	}
	if err := v.notices(); err != nil {
		return err
	}
	files := v.r.files
	v.out.Files = len(files)
	for _, f := range files {
		if err := v.link(f); err != nil {
			return err
		}
	}
	if n := len(files); n > 0 && v.r.stop != nil && v.r.stop.segment < files[n-1].baseLog {
		v.r.stop = nil // of an earlier state of the log
	}
	if len(files) == 0 {
		v.empty()
		return nil
	}
	f := files[len(files)-1]
	if ok, err := v.linkLast(f); err != nil || !ok {
		v.out.Broken = !ok
		return err
	}
	last, err := v.scanLast(f)
	if err != nil {
		return err
	}
	if err := v.state(f, last); err != nil {
		return err
	}
	return v.chain(last)
}

// list finds the log's files, and names what is none of them.
func (v *verifier) list() error {
	names, err := v.o.FS.List(v.o.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		base, isLog := strings.CutSuffix(name, logSuffix)
		base, isIndex := strings.CutSuffix(base, indexSuffix)
		baseLog, epoch, ok := parseSegmentName(base)
		switch {
		case name == stopFile, name == truncateFile:
		case strings.HasSuffix(name, tempSuffix):
			v.report(name, 0, false, "temporary file of a write that was broken off")
		case !ok || isLog == isIndex:
			v.report(name, 0, false, "not a file of the log")
		case isIndex:
			if !slices.Contains(names, base+logSuffix) {
				v.report(name, 0, false, "sparse index of a segment that is gone")
			}
		default:
			info, err := v.o.FS.Stat(v.r.d.join(name))
			if err != nil {
				return err
			}
			f := &logFile{name: base, baseLog: baseLog, epoch: epoch, size: info.Size()}
			if n := len(v.r.files); n > 0 && v.r.files[n-1].baseLog == baseLog {
				v.report(name, 0, true, "begins at the same log offset as %s", v.r.files[n-1].name+logSuffix)
				v.out.Broken = true
			}
			v.r.files = append(v.r.files, f)
		}
	}
	return nil
}

// notices reads the files that stand beside the segments.
func (v *verifier) notices() error {
	var exists bool
	var err error
	if v.r.stop, exists, err = v.r.noticeFile(stopFile, kindStop); err != nil {
		return err
	}
	if exists && v.r.stop == nil {
		v.report(stopFile, 0, false, "does not hold and will be ignored")
	}
	if v.r.truncate, exists, err = v.r.noticeFile(truncateFile, kindTruncate); err != nil {
		return err
	}
	switch {
	case v.r.truncate != nil:
		v.report(truncateFile, 0, false, "a truncation to offset %d was broken off; the next start carries it on", v.r.truncate.nextKafka)
	case exists:
		v.report(truncateFile, 0, false, "does not hold and will be ignored")
	}
	return nil
}

// link reads how a file fits into the chain. The checkpoint counts; the index
// stands in where that does not hold.
func (v *verifier) link(f *logFile) error {
	b, err := v.r.d.read(f.name+logSuffix, noticeSize)
	if err != nil {
		return err
	}
	n, err := parseNotice(b)
	if err == nil && n.kind == kindCheckpoint && n.log == f.baseLog && n.prevLog <= n.log {
		f.linked, f.baseKafka, f.prevLog, f.created = true, n.nextKafka, n.prevLog, n.time
		return nil
	}
	if b, err = v.r.d.read(f.name+indexSuffix, indexHeaderSize); err != nil || b == nil {
		return err
	}
	_ = v.r.useIndex(f, b) // one that cannot be used says nothing
	return nil
}

// empty is a directory without segments.
func (v *verifier) empty() {
	stop := v.r.stop
	if stop == nil {
		return
	}
	v.r.mergeState()
	v.out.State = v.r.state
	v.out.LocalStart, v.out.HighWatermark, v.out.NextLog = stop.localStart, stop.nextKafka, stop.log
	if stop.localStart < stop.nextKafka {
		v.lost(stopFile, 0, stop.localStart, stop.nextKafka, "all segments are missing")
	}
}

// linkLast is link for a last segment whose checkpoint is bad: the one before it
// says where it begins.
func (v *verifier) linkLast(f *logFile) (ok bool, err error) {
	if v.out.Broken {
		return false, nil
	}
	if f.linked {
		return true, nil
	}
	if n := len(v.r.files); n > 1 && v.r.files[n-2].linked {
		prev := v.r.files[n-2]
		res, err := v.scan(prev, 0, anchor{})
		if err != nil {
			return false, err
		}
		if len(res.holes) == 0 && res.nextLog == f.baseLog {
			f.linked, f.baseKafka, f.prevLog = true, res.nextKafka, res.nextLog
			return true, nil
		}
	}
	v.report(f.name+logSuffix, 0, true, "first checkpoint is bad, and nothing says at which offset the segment begins")
	return false, nil
}

// scan reads one file with all its CRCs.
func (v *verifier) scan(f *logFile, limit int64, a anchor) (*scanned, error) {
	if err := v.ctx.Err(); err != nil {
		return nil, err
	}
	in, err := v.o.FS.Open(v.r.d.join(f.name + logSuffix))
	if err != nil {
		return nil, err
	}
	defer in.Close()
	sc := &scanner{f: in, size: f.size, limit: limit, verify: true}
	res, err := sc.segment(f.baseLog, f.baseKafka, a)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.name+logSuffix, err)
	}
	return res, nil
}

// scanLast decides about the tail as recovery does.
func (v *verifier) scanLast(f *logFile) (*scanned, error) {
	if err := v.ctx.Err(); err != nil {
		return nil, err
	}
	in, err := v.o.FS.Open(v.r.d.join(f.name + logSuffix))
	if err != nil {
		return nil, err
	}
	defer in.Close()
	res, err := v.r.tail(&scanner{f: in, size: f.size}, f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.name+logSuffix, err)
	}
	return res, nil
}

// state is where the log stands by its last segment and the files beside it.
func (v *verifier) state(f *logFile, last *scanned) (err error) {
	n := last.last
	if n.kind == 0 {
		if n, err = v.r.olderState(); err != nil {
			return err
		}
	}
	v.r.state = State{
		LocalStart: n.localStart, HighWatermark: last.nextKafka, NextLog: last.nextLog,
		RemoteNext: n.remoteNext, ManifestGeneration: n.generation, Epoch: f.epoch,
	}
	v.r.mergeState()
	v.out.State = v.r.state
	return nil
}

// chain verifies all segments in order. The last one was scanned before.
func (v *verifier) chain(last *scanned) error {
	log, kafka := int64(-1), v.out.LocalStart
	sound := false // the segment before is
	for i, f := range v.r.files {
		var next *logFile
		if i+1 < len(v.r.files) {
			next = v.r.files[i+1]
		}
		name := f.name + logSuffix
		if next != nil && next.linked && next.baseKafka <= v.out.LocalStart {
			if !f.linked || f.baseKafka < next.baseKafka {
				v.report(name, 0, false, "lies below the local start %d; the next start removes it", v.out.LocalStart)
			}
			v.read(f.size)
			continue
		}
		if !f.linked && sound && log == f.baseLog {
			f.linked, f.baseKafka, f.prevLog = true, kafka, log
		}
		if !f.linked {
			sound = false
			// The join with the next segment reports the offsets.
			v.report(name, 0, true, "checkpoint and sparse index are bad, nothing says at which offset the segment begins")
			v.read(f.size)
			continue
		}
		switch {
		case log > f.prevLog:
			v.report(name, 0, true, "log offset %d, but the segment before it ends at %d", f.baseLog, log)
			v.out.Broken = true
		case kafka < f.baseKafka:
			v.lost(name, 0, kafka, f.baseKafka, "no segment before this one holds them")
		}
		res := last
		if next != nil {
			var err error
			if res, err = v.sealed(f, next); err != nil {
				return err
			}
		}
		if err := v.segment(f, res, next == nil); err != nil {
			return err
		}
		log, kafka, sound = res.nextLog, res.nextKafka, len(res.holes) == 0
	}
	return nil
}

// sealed reads a segment that another one follows.
func (v *verifier) sealed(f, next *logFile) (*scanned, error) {
	var a anchor
	limit := int64(0)
	if next.linked {
		a, limit = anchor{log: next.prevLog, kafka: next.baseKafka}, next.prevLog
	}
	res, err := v.scan(f, limit, a)
	if err != nil {
		return nil, err
	}
	if limit > 0 {
		res.fill(a.log, a.kafka)
	}
	return res, nil
}

// segment reports what a scan found and hands the sound batches on.
func (v *verifier) segment(f *logFile, res *scanned, isLast bool) error {
	name := f.name + logSuffix
	for i := range res.t.len() {
		e := res.t.at(i)
		if !e.damaged {
			continue
		}
		until := res.nextKafka
		if i+1 < res.t.len() {
			until = res.t.at(i + 1).kafka
		}
		switch {
		case e.kafka < until && e.pos >= f.size:
			v.lost(name, e.pos, e.kafka, until, "the file ends here, it was cut off or the segment behind it is missing")
		case e.kafka < until:
			v.lost(name, e.pos, e.kafka, until, "no batch here whose checksum holds")
		default:
			v.report(name, e.pos, false, "an internal batch does not hold; no record is lost")
		}
	}
	switch {
	case res.end >= f.size:
	case isLast && len(res.holes) == 0:
		v.report(name, res.end, false, "torn tail of %d bytes, never acknowledged; the next start cuts it", f.size-res.end)
	case !isLast && len(res.holes) == 0:
		v.report(name, res.end, false, "%d bytes behind the end of the segment", f.size-res.end)
	}
	if !isLast && len(res.holes) == 0 {
		if err := v.index(f, res); err != nil {
			return err
		}
	}
	err := v.batches(f, res)
	v.read(f.size)
	return err
}

// lost reports Kafka offsets that cannot be read.
func (v *verifier) lost(file string, pos, from, next int64, why string) {
	v.report(file, pos, true, "offsets %d to %d cannot be read: %s", from, next-1, why)
	v.out.Unreadable = append(v.out.Unreadable, Range{from, next})
}

// index compares a sparse index with what the segment gives.
func (v *verifier) index(f *logFile, res *scanned) error {
	name := f.name + indexSuffix
	want := encodeIndex(indexHeader{}, res.t)[indexHeaderSize:]
	b, err := v.r.d.read(name, int64(indexHeaderSize+2*len(want)+entrySize))
	switch {
	case err != nil:
		return err
	case b == nil:
		v.report(name, 0, false, "sparse index is missing; it will be rebuilt")
		return nil
	}
	h, err := decodeIndexHeader(b, int64(len(b)))
	var t table
	if err == nil {
		t, err = decodeTable(h, b[indexHeaderSize:])
	}
	switch {
	case err != nil:
		v.report(name, 0, false, "sparse index does not hold; it will be rebuilt: %w", err)
	case h.baseLog != f.baseLog || h.nextLog != res.nextLog || h.baseKafka != f.baseKafka || h.nextKafka != res.nextKafka || h.logBytes != f.size:
		v.report(name, 0, false, "sparse index describes another state of the segment; it will be rebuilt")
	case !bytes.Equal(t, want):
		v.report(name, indexHeaderSize, true, "sparse index holds, but does not lead to the batches of the segment; remove it, it will be rebuilt")
	}
	return nil
}

// batches hands on the data batches of the stretches that hold.
func (v *verifier) batches(f *logFile, res *scanned) (err error) {
	if v.o.Batch == nil {
		return nil
	}
	s := f.segment(v.r.d)
	defer s.release()
	s.whole.Store(res.end)
	defer func() { s.caught(recover(), &err) }()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for from := 0; from < res.t.len(); {
		if res.t.at(from).damaged {
			from++
			continue
		}
		to, end := from, res.end
		for to < res.t.len() && !res.t.at(to).damaged {
			to++
		}
		if to < res.t.len() {
			end = res.t.at(to).pos
		}
		e := extent{segment: s, size: end, t: res.t[from*entrySize : to*entrySize], nextLog: res.nextLog, nextKafka: res.nextKafka}
		err := e.each(0, func(pos int64, h record.BatchHeader, batch []byte, base int64) error {
			if err := v.ctx.Err(); err != nil {
				return err
			}
			return v.o.Batch(f.name+logSuffix, pos, Appended{Batch: batch, LogBase: h.BaseOffset, KafkaBase: base})
		})
		if err != nil {
			return err
		}
		from = to
	}
	return nil
}

func (v *verifier) read(n int64) {
	if v.o.Read != nil {
		v.o.Read(n)
	}
}
