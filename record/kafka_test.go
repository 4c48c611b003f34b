package record_test

import (
	"encoding/hex"
	"reflect"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"keyhole/record"
)

// decodeKmsg decodes batch with franz-go alone.
func decodeKmsg(t *testing.T, batch []byte) (kmsg.RecordBatch, []record.Record) {
	t.Helper()
	var kb kmsg.RecordBatch
	if err := kb.ReadFrom(batch); err != nil {
		t.Fatalf("kmsg: %v", err)
	}
	data, err := kgo.DefaultDecompressor().Decompress(kb.Records, kgo.CompressionCodecType(kb.Attributes&7))
	if err != nil {
		t.Fatalf("kgo: %v", err)
	}
	var recs []record.Record
	for range kb.NumRecords {
		var kr kmsg.Record
		if err := kr.ReadFrom(data); err != nil {
			t.Fatalf("kmsg record: %v", err)
		}
		r := record.Record{
			Offset: kb.FirstOffset + int64(kr.OffsetDelta), Timestamp: kb.FirstTimestamp + kr.TimestampDelta64,
			Key: kr.Key, Value: kr.Value,
		}
		for _, h := range kr.Headers {
			r.Headers = append(r.Headers, record.Header{Name: h.Key, Value: h.Value})
		}
		recs = append(recs, r)
		data = data[len(kr.AppendTo(nil)):]
	}
	if len(data) != 0 {
		t.Fatalf("%d bytes behind the last record", len(data))
	}
	return kb, recs
}

// encodeKmsg encodes recs with franz-go alone.
func encodeKmsg(t *testing.T, base int64, c record.Codec, recs []record.Record) []byte {
	t.Helper()
	var data []byte
	maxTime := recs[0].Timestamp
	for _, r := range recs {
		kr := kmsg.Record{
			TimestampDelta64: r.Timestamp - recs[0].Timestamp, OffsetDelta: int32(r.Offset - base), Key: r.Key, Value: r.Value,
		}
		for _, h := range r.Headers {
			kr.Headers = append(kr.Headers, kmsg.Header{Key: h.Name, Value: h.Value})
		}
		kr.Length = int32(len(kr.AppendTo(nil)) - 1) // a length of 0 takes one byte itself
		data = kr.AppendTo(data)
		maxTime = max(maxTime, r.Timestamp)
	}
	kb := kmsg.RecordBatch{
		FirstOffset: base, PartitionLeaderEpoch: 7, Magic: 2, Attributes: int16(c),
		LastOffsetDelta: int32(recs[len(recs)-1].Offset - base), FirstTimestamp: recs[0].Timestamp, MaxTimestamp: maxTime,
		ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: int32(len(recs)), Records: compress(t, c, data),
	}
	return seal(kb.AppendTo(nil))
}

func TestAgreesWithFranzGo(t *testing.T) {
	rnd := newRand(t)
	for i := range 100 {
		base := rnd.Int64N(1 << 40)
		recs := randomRecords(rnd, base)
		c := allCodecs[i%len(allCodecs)]

		theirs := encodeKmsg(t, base, c, recs)
		if got := readAll(t, theirs); !reflect.DeepEqual(got, recs) {
			t.Fatalf("%v: decoding franz-go's batch: got %v, want %v", c, got, recs)
		}
		ours, err := record.AppendBatch(nil, record.BatchOptions{BaseOffset: base, LastOffset: -1, LeaderEpoch: 7, Codec: c}, recs)
		if err != nil {
			t.Fatal(err)
		}
		kb, got := decodeKmsg(t, ours)
		if !reflect.DeepEqual(got, recs) {
			t.Fatalf("%v: franz-go decodes %v, want %v", c, got, recs)
		}
		// With the same codec in effect both encoders write the same bytes.
		if record.Codec(kb.Attributes) == c && string(ours) != string(theirs) {
			t.Fatalf("%v: batches differ:\n%x\n%x", c, ours, theirs)
		}
	}
}

// goldenBatch was taken down once and agreed with franz-go; it holds this
// package to the bytes that are already in people's buckets.
const goldenBatch = "" +
	"000000000000000a" + "00000085" + "00000003" + "02" + "f3fe5b8d" + // base offset, length, epoch, magic, CRC
	"0000" + "00000005" + "0000018bcfe56800" + "0000018bcfe56802" + // attributes, last delta, base and max time
	"ffffffffffffffff" + "ffff" + "ffffffff" + "00000004" + // no producer; four records
	"22" + "00" + "00" + "00" + "046b31" + "1276616c7565206f6e65" + "00" +
	"0e" + "00" + "cf0f" + "02" + "00" + "00" + "00" + // time 1000 ms back; empty key, empty value
	"10" + "00" + "02" + "04" + "046b31" + "01" + "00" + // null value
	"60" + "00" + "04" + "0a" + "01" + "0c6e6f206b6579" + "0a" + // null key; five headers:
	"0a7472616365" + "06616263" + "0a656d707479" + "00" + "086e756c6c" + "01" + "0a7472616365" + "06646566" + "00" + "0200"

func TestGoldenBytes(t *testing.T) {
	batch, err := record.AppendBatch([]byte("front"), record.BatchOptions{BaseOffset: 10, LastOffset: 15, LeaderEpoch: 3}, sample())
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(batch[len("front"):]); got != goldenBatch {
		t.Fatalf("got  %s\nwant %s", got, goldenBatch)
	}
	if string(batch[:5]) != "front" {
		t.Fatalf("bytes in front of the batch changed to %q", batch[:5])
	}
}

// TestExampleOfTheFormatPage keeps docs/format/record-batch.md true.
func TestExampleOfTheFormatPage(t *testing.T) {
	recs := []record.Record{{Key: []byte("k1"), Value: []byte("hi"), Headers: []record.Header{{Name: "h"}}}}
	if got := hex.EncodeToString(section(t, recs)); got != "1a000000046b310468690202"+"6801" {
		t.Errorf("got %s", got)
	}
}
