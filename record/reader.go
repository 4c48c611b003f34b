package record

// minRecord is the size of the smallest record: the length and six fields of
// one byte each. It bounds a record count before anyone trusts it.
const minRecord = 7

// Reader iterates over the records of one batch after the other and keeps its
// decompression buffer between them. The zero value is ready for use; one
// goroutine at a time may use it.
//
//	for r.Next() {
//		v := r.Record()
//		…
//	}
//	if err := r.Err(); err != nil { … }
type Reader struct {
	h      BatchHeader
	data   []byte // the records, uncompressed: part of the batch, or of dec's buffer
	pos    int    // of the next record in data
	left   int32  // records not read yet
	next   int64  // lowest offset delta that the next record may have
	packed bool   // data is dec's buffer, so its positions are not those of the batch
	err    error
	view   View
	dec    decompressor
}

// View is one record inside a batch. Key and Value are windows into the batch
// or into the Reader's buffer: they stay valid until the Reader is reset, as
// long as the batch itself does, and must not be written to. nil and empty
// mean what they mean in a [Record].
type View struct {
	Offset    int64
	Timestamp int64 // Unix milliseconds
	Key       []byte
	Value     []byte

	headers    []byte
	numHeaders int
}

// Reset verifies batch as [Verify] does, makes its records readable and places
// the Reader before the first one. If the records are compressed they are
// decompressed into the Reader's buffer, which never grows beyond
// maxUncompressed bytes, whatever sizes the batch declares; more is
// [ErrTooLarge], as damage. All other damage is [ErrCorrupt] too.
//
// batch must stay unchanged as long as its records are in use. After an error
// the Reader has no records and Err returns the same error.
func (r *Reader) Reset(batch []byte, maxUncompressed int) error {
	h, err := Verify(batch)
	r.h, r.data, r.pos, r.left, r.next, r.packed, r.err = h, nil, 0, 0, 0, false, err
	r.view = View{}
	if err != nil {
		return err
	}
	data := batch[HeaderSize:]
	if c := h.Codec(); c != None {
		r.packed = true
		if data, err = r.dec.decompress(c, data, maxUncompressed); err != nil {
			r.err = corruptf(HeaderSize, "%v records: %w", c, err)
			return r.err
		}
	}
	if int64(h.NumRecords)*minRecord > int64(len(data)) {
		r.err = corruptf(posNumRecords, "%d records in %d bytes", h.NumRecords, len(data))
		return r.err
	}
	r.data, r.left = data, h.NumRecords
	return nil
}

// Header is the header of the batch last given to Reset.
func (r *Reader) Header() BatchHeader { return r.h }

// Next moves to the next record and reports whether there is one. It returns
// false at the end of the batch and at the first record that is damaged; Err
// tells the two apart, so it must be asked.
func (r *Reader) Next() bool {
	if r.err != nil {
		return false
	}
	if r.left == 0 {
		if r.pos != len(r.data) {
			r.fail(r.pos, "%d bytes behind the last record", len(r.data)-r.pos)
		}
		return false
	}
	r.left--
	return r.decode()
}

// Err is the damage that ended the iteration, or nil.
func (r *Reader) Err() error { return r.err }

// Record is the current record, to be called after Next returned true. The
// View itself is overwritten by the next call of Next.
func (r *Reader) Record() *View { return &r.view }

func (r *Reader) fail(pos int, format string, args ...any) {
	if r.packed {
		pos = 0 // positions in the decompressed records mean nothing outside
	}
	r.err = corruptf(HeaderSize+pos, format, args...)
	r.view = View{}
}

// decode reads the record at r.pos into r.view.
func (r *Reader) decode() bool {
	start := r.pos
	size, at := varint(r.data, start)
	if at < 0 || size < 0 || size > int64(len(r.data)-at) {
		r.fail(start, "record runs past the end of its batch")
		return false
	}
	b := r.data[at : at+int(size)]
	r.pos = at + int(size)

	var tsDelta, offsetDelta, numHeaders int64
	v := View{}
	at = 1 // behind the attributes, of which none are defined
	tsDelta, at = varint(b, at)
	offsetDelta, at = varint(b, at)
	v.Key, at = nullable(b, at)
	v.Value, at = nullable(b, at)
	numHeaders, at = varint(b, at)
	if at < 0 {
		r.fail(start, "record fields run past the record's end")
		return false
	}
	// A header takes at least two bytes.
	if numHeaders < 0 || numHeaders > int64(len(b)-at)/2 {
		r.fail(start, "record declares %d headers in %d bytes", numHeaders, len(b)-at)
		return false
	}
	v.headers, v.numHeaders = b[at:], int(numHeaders)
	if !validHeaders(v.headers, v.numHeaders) {
		r.fail(start, "record headers do not end where the record does")
		return false
	}
	if offsetDelta < r.next || offsetDelta > int64(r.h.LastOffsetDelta) {
		r.fail(start, "record offset delta %d, want %d to %d", offsetDelta, r.next, r.h.LastOffsetDelta)
		return false
	}
	r.next = offsetDelta + 1
	v.Offset = r.h.BaseOffset + offsetDelta
	v.Timestamp = r.h.BaseTimestamp + tsDelta // may wrap, as the encoder's difference may
	if r.h.LogAppendTime() {
		v.Timestamp = r.h.MaxTimestamp
	}
	r.view = v
	return true
}

// nullable decodes a length and that many bytes at position at, or null for
// the length -1. A position of -1, given or returned, is a failure.
func nullable(b []byte, at int) ([]byte, int) {
	n, at := varint(b, at)
	if at < 0 || n < -1 || n > int64(len(b)-at) {
		return nil, -1
	}
	if n == -1 {
		return nil, at
	}
	end := at + int(n)
	return b[at:end:end], end
}

// validHeaders reports whether b is exactly n headers.
func validHeaders(b []byte, n int) bool {
	at := 0
	for range n {
		name, next := nullable(b, at)
		if next < 0 || name == nil { // a name cannot be null
			return false
		}
		if _, at = nullable(b, next); at < 0 {
			return false
		}
	}
	return at == len(b)
}

// Headers decodes the headers of the record in their order, or returns nil if
// there are none. Names are copied; values are windows like Key and Value.
// Headers of a View that a Reader handed out were validated on the way, so the
// error, always damage, is not expected for them.
func (v *View) Headers() ([]Header, error) {
	if v.numHeaders == 0 {
		return nil, nil
	}
	hs := make([]Header, v.numHeaders)
	at := 0
	for i := range hs {
		name, next := nullable(v.headers, at)
		value, end := nullable(v.headers, next)
		if end < 0 {
			return nil, corruptf(HeaderSize, "header %d of record %d is cut off", i, v.Offset)
		}
		hs[i] = Header{Name: string(name), Value: value}
		at = end
	}
	return hs, nil
}
