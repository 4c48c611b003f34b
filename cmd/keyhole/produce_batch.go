package main

import (
	"encoding/base64"
	"strconv"

	"keyhole/recordjson"
)

// A batch is sent when it has so many records or bytes, or earlier when its
// lane has nothing in flight.
const (
	batchRecords = 1000
	batchBytes   = 1 << 20 // of keys, values and headers; base64 makes a third more
)

// batch is the records of one request, already encoded.
type batch struct {
	json  []byte  // the records, one JSON object behind the other
	ends  []int   // end of each record in json
	lines []int64 // line of input of each record
	sizes []int64 // bytes of key, value and headers of each record
	bytes int64   // their sum
}

func (b *batch) reset() {
	b.json, b.ends, b.lines, b.sizes, b.bytes = b.json[:0], b.ends[:0], b.lines[:0], b.sizes[:0], 0
}

func (b *batch) len() int   { return len(b.ends) }
func (b *batch) full() bool { return b.len() >= batchRecords || b.bytes >= batchBytes }

// add encodes a record; r is not needed afterwards.
func (b *batch) add(line int64, r *recordjson.ProduceRecord) {
	size := int64(len(r.Key) + len(r.Value))
	b.json = append(b.json, `{"key":`...)
	b.json = appendBase64(b.json, r.Key)
	b.json = append(b.json, `,"value":`...)
	b.json = appendBase64(b.json, r.Value)
	if r.Partition >= 0 {
		b.json = strconv.AppendInt(append(b.json, `,"partition":`...), int64(r.Partition), 10)
	}
	if r.Timestamp >= 0 {
		b.json = strconv.AppendInt(append(b.json, `,"timestamp":`...), r.Timestamp, 10)
	}
	if len(r.Headers) > 0 {
		b.json = recordjson.AppendHeaders(append(b.json, `,"headers":`...), r.Headers)
		for _, h := range r.Headers {
			size += int64(len(h.Name) + len(h.Value))
		}
	}
	b.json = append(b.json, '}')
	b.ends = append(b.ends, len(b.json))
	b.lines = append(b.lines, line)
	b.sizes = append(b.sizes, size)
	b.bytes += size
}

func appendBase64(dst, b []byte) []byte {
	if b == nil {
		return append(dst, "null"...)
	}
	dst = append(dst, '"')
	dst = base64.StdEncoding.AppendEncode(dst, b)
	return append(dst, '"')
}

func (b *batch) record(i int) []byte {
	from := 0
	if i > 0 {
		from = b.ends[i-1]
	}
	return b.json[from:b.ends[i]]
}

// body is the request for the records of the given indices.
func (b *batch) body(dst []byte, records []int) []byte {
	dst = append(dst[:0], `{"records":[`...)
	for i, r := range records {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, b.record(r)...)
	}
	return append(dst, `]}`...)
}
