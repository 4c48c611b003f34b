package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kgo"
)

// compressors holds franz-go's compressor for each codec. They pool their
// encoders and may be used in parallel; they are made on first use because an
// idle zstd encoder is not small. Nothing in here is state that a caller could
// notice.
var compressors = [...]func() kgo.Compressor{
	Gzip:   newCompressor(kgo.GzipCompression()),
	Snappy: newCompressor(kgo.SnappyCompression()),
	LZ4:    newCompressor(kgo.Lz4Compression()),
	Zstd:   newCompressor(kgo.ZstdCompression()),
}

func newCompressor(c kgo.CompressionCodec) func() kgo.Compressor {
	return sync.OnceValue(func() kgo.Compressor {
		comp, err := kgo.DefaultCompressor(c)
		if err != nil {
			return nil // the codec is one of ours, so this does not happen; batches would stay plain
		}
		return comp
	})
}

var scratch = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// compressTail compresses plain and, if that is smaller, writes the result
// over its front and returns its length. Otherwise plain is untouched.
func compressTail(c Codec, plain []byte) (n int, ok bool) {
	comp := compressors[c]()
	if comp == nil || len(plain) == 0 {
		return 0, false
	}
	buf := scratch.Get().(*bytes.Buffer)
	defer scratch.Put(buf)
	buf.Reset()
	out, used := comp.Compress(buf, plain)
	if used != kgo.CompressionCodecType(c) || len(out) >= len(plain) {
		return 0, false
	}
	return copy(plain, out), true
}

// decompressor turns compressed records into plain ones in a buffer that it
// keeps. What it hands out is never longer than the limit of a call.
//
// franz-go's exported decompressor allows 2 GiB a batch, and that bound cannot
// be set from outside a client. It is used for snappy, both framings of which
// declare their sizes up front, so that the limit can be held before it runs.
// The other three codecs may declare nothing or lie; for them the libraries
// that franz-go builds on are driven here, into a buffer of fixed capacity:
// when it proves too small it is dropped, a four times larger one is made, and
// decoding starts over. That costs at most a third more time, once per growth,
// and never holds two buffers at a time.
type decompressor struct {
	buf    []byte
	src    bytes.Reader
	gzip   *gzip.Reader
	lz4    *lz4.Reader
	zstd   *zstd.Decoder
	snappy kgo.Decompressor
}

// errFull is internal: the buffer was too small for the output.
var errFull = errors.New("output buffer is full")

const (
	minBuffer = 4 << 10

	// zstdBlock is the most that one zstd block decodes to. The buffer has room
	// for one beyond the limit, because the decoder does not say whether a block
	// failed for want of room or for damage; with a whole block of room left it
	// can only have been damage. (Beyond that, the decoder may copy what it has
	// into a buffer a quarter larger before it notices.)
	zstdBlock = 128 << 10
)

// decompress returns the plain form of src, at most limit bytes. The result is
// valid until the next call.
func (d *decompressor) decompress(c Codec, src []byte, limit int) ([]byte, error) {
	limit = min(max(limit, 0), math.MaxInt32)
	if c == Snappy {
		n, err := snappySize(src)
		if err != nil {
			return nil, err
		}
		if n > uint64(limit) {
			return nil, ErrTooLarge
		}
		d.grow(int(n))
		return d.unsnappy(src)
	}
	slack := 0
	if c == Zstd {
		slack = zstdBlock
	}
	// A guess that is right for most batches and in proportion to what came in.
	size := min(max(8*len(src), minBuffer, cap(d.buf)-slack), limit)
	for {
		d.grow(size + slack)
		out, err := d.decodeInto(d.buf[:0:size+slack], c, src)
		if err == nil && len(out) > limit {
			return nil, ErrTooLarge
		}
		if !errors.Is(err, errFull) {
			return out, err
		}
		if size == limit {
			return nil, ErrTooLarge
		}
		size = min(4*size, limit)
	}
}

// grow makes the capacity of the buffer at least n. Its content is lost.
func (d *decompressor) grow(n int) {
	if n > cap(d.buf) {
		d.buf = nil // before the new one is made, so that the collector may take it
		d.buf = make([]byte, 0, n)
	}
}

// decodeInto decodes src into the capacity of dst, which is empty. It returns
// errFull if that is not enough.
func (d *decompressor) decodeInto(dst []byte, c Codec, src []byte) ([]byte, error) {
	switch c {
	case Gzip:
		d.src.Reset(src)
		if d.gzip == nil {
			d.gzip = new(gzip.Reader)
		}
		if err := d.gzip.Reset(&d.src); err != nil {
			return nil, err
		}
		return fill(dst, d.gzip)
	case LZ4:
		d.src.Reset(src)
		if d.lz4 == nil {
			d.lz4 = lz4.NewReader(nil)
		}
		d.lz4.Reset(&d.src)
		return fill(dst, d.lz4)
	case Zstd:
		return d.unzstd(dst, src)
	default:
		return nil, ErrUnknownCodec
	}
}

// fill reads r to its end into the capacity of dst. Only io.EOF is an end:
// io.ReadFull would not tell it from a stream that is cut off.
func fill(dst []byte, r io.Reader) ([]byte, error) {
	var probe [1]byte
	for idle := 0; idle < 100; idle++ {
		to := dst[len(dst):cap(dst)]
		if len(to) == 0 {
			to = probe[:] // full to the brim, which is fine if nothing follows
		}
		n, err := r.Read(to)
		if n > 0 {
			if len(dst) == cap(dst) {
				return nil, errFull
			}
			dst = dst[:len(dst)+n]
			idle = 0
		}
		if err == io.EOF {
			return dst, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, io.ErrNoProgress
}

func (d *decompressor) unzstd(dst, src []byte) ([]byte, error) {
	if d.zstd == nil {
		// DecodeAll allocates no window, whatever a frame declares: the output
		// itself is the history.
		z, err := zstd.NewReader(nil,
			zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderLowmem(true),
			zstd.WithDecodeAllCapLimit(true))
		if err != nil {
			return nil, err
		}
		d.zstd = z
	}
	out, err := d.zstd.DecodeAll(src, dst)
	if err != nil && (errors.Is(err, zstd.ErrDecoderSizeExceeded) || cap(dst)-len(out) < zstdBlock) {
		return nil, errFull
	}
	return out, err
}

// reuse lends one buffer to franz-go's decompressor.
type reuse struct{ buf *[]byte }

func (r reuse) GetDecompressBytes([]byte, kgo.CompressionCodecType) []byte { return *r.buf }
func (r reuse) PutDecompressBytes([]byte)                                  {}

func (d *decompressor) unsnappy(src []byte) ([]byte, error) {
	if d.snappy == nil {
		d.snappy = kgo.DefaultDecompressor(reuse{&d.buf})
	}
	return d.snappy.Decompress(src, kgo.CodecSnappy)
}

// xerialHeader is the length of the magic and the two version numbers in front
// of the blocks that Java's snappy stream writes.
const xerialHeader = 16

var xerialMagic = []byte("\x82SNAPPY\x00")

// snappySize is the size that src declares to decompress to, in either
// framing: one raw block, or xerial's sequence of length and block.
func snappySize(src []byte) (uint64, error) {
	if len(src) <= xerialHeader || !bytes.HasPrefix(src, xerialMagic) {
		n, err := s2.DecodedLen(src)
		return uint64(max(n, 0)), err
	}
	var total uint64
	for src = src[xerialHeader:]; len(src) > 0; {
		if len(src) < 4 {
			return 0, io.ErrUnexpectedEOF
		}
		n := uint64(binary.BigEndian.Uint32(src))
		if n > uint64(len(src)-4) {
			return 0, io.ErrUnexpectedEOF
		}
		size, err := s2.DecodedLen(src[4 : 4+n])
		if err != nil {
			return 0, err
		}
		total += uint64(size)
		src = src[4+n:]
	}
	return total, nil
}
