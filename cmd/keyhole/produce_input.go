package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
)

// maxLine bounds a line of input: the largest record that a node can be set to
// accept, in base64, and its fields.
const maxLine = 128 << 20

// input is a source of lines, decompressed if need be.
type input struct {
	name   string
	size   int64 // bytes of the file, -1: unknown
	reader *bufio.Reader
	read   *countingReader
	file   *os.File // nil for standard input
}

// countingReader tells onRead how many bytes go through.
type countingReader struct {
	r      io.Reader
	onRead func(n int64)
}

func (c *countingReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	if n > 0 && c.onRead != nil {
		c.onRead(int64(n))
	}
	return n, err
}

// newInput recognises gzip by its first bytes, which no JSON begins with, and
// not by a name, which standard input does not have.
func newInput(name string, r io.Reader, size int64) (*input, error) {
	in := &input{name: name, size: size, read: &countingReader{r: r}}
	in.reader = bufio.NewReaderSize(in.read, 1<<20)
	magic, err := in.reader.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		zr, err := gzip.NewReader(in.reader)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		in.reader = bufio.NewReaderSize(zr, 1<<20)
	}
	return in, nil
}

func (in *input) close() {
	if in.file != nil {
		_ = in.file.Close() // only read from
	}
}

// lines calls fn for each line that is not blank, with its number, counted
// from 1. The line is valid during the call.
func lines(r *bufio.Reader, fn func(n int64, line []byte) error) error {
	var long []byte
	for n := int64(1); ; n++ {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			long = append(long[:0], line...)
			for errors.Is(err, bufio.ErrBufferFull) {
				if line, err = r.ReadSlice('\n'); len(long)+len(line) > maxLine {
					return &lineError{n, fmt.Errorf("longer than %d bytes", maxLine)}
				}
				long = append(long, line...)
			}
			line = long
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return &lineError{n, err}
		}
		if len(bytes.TrimSpace(line)) > 0 {
			if ferr := fn(n, line); ferr != nil {
				return ferr
			}
		}
		if err != nil {
			return nil
		}
	}
}

// lineError is what is wrong with a line of input.
type lineError struct {
	line int64
	err  error
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.err) }
func (e *lineError) Unwrap() error { return e.err }
