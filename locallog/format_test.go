package locallog

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/fsync"
	"keyhole/record"
)

var sampleNotice = notice{
	kind: kindCheckpoint, log: 4711, time: 1_700_000_000_000, nextKafka: 4000, epoch: 3,
	localStart: 100, remoteNext: 3000, generation: 17, prevLog: 4711,
}

func TestNoticeFormat(t *testing.T) {
	b, err := sampleNotice.appendTo(nil)
	must(t, err)
	if len(b) != noticeSize {
		t.Fatalf("%d bytes, want %d", len(b), noticeSize)
	}
	// The record: length 75, attributes, deltas, key of 4 bytes, value of 64.
	want := "9601" + "00" + "00" + "00" + "08" + "00006b00" + "8001" +
		"0000000000000fa0" + "0000000000000003" + "0000000000000064" + "0000000000000bb8" +
		"0000000000000011" + "0000000000001267" + "0000000000000000" + "0000000000000000" + "00"
	if got := hex.EncodeToString(b[record.HeaderSize:]); got != want {
		t.Fatalf("record of the checkpoint:\n%s, want\n%s", got, want)
	}
	got, err := parseNotice(b)
	if err != nil || got != sampleNotice {
		t.Fatalf("%+v, %v", got, err)
	}
	h, err := record.Verify(b)
	must(t, err)
	if !isInternal(h, b) {
		t.Fatal("not recognised")
	}
	for cut := range b {
		if _, err := parseNotice(b[:cut]); err == nil {
			t.Fatalf("decoded when cut at %d", cut)
		}
	}
}

func TestParseNoticeRefuses(t *testing.T) {
	build := func(key, value []byte, control bool) []byte {
		b, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: -1, Control: control}, []record.Record{{Key: key, Value: value}})
		must(t, err)
		return b
	}
	value := make([]byte, noticeValueSize)
	negative := bytes.Clone(value)
	negative[16] = 0x80
	wideEpoch := bytes.Clone(value)
	wideEpoch[8+3] = 1
	key := []byte{0, 0, 0x6B, 0}
	for name, c := range map[string]struct {
		batch []byte
		want  error
	}{
		"data":        {build(key, value, false), errNotNotice},
		"transaction": {build([]byte{0, 0, 0, 1}, []byte{0, 0, 0, 0, 0, 0}, true), errNotNotice},
		"type":        {build([]byte{0, 0, 0x6B, 9}, value, true), errNotNotice},
		"no key":      {build(nil, value, true), errNotNotice},
		"value":       {build(key, value[:63], true), record.ErrCorrupt},
		"long key":    {build(append(key, 0), value, true), record.ErrCorrupt},
		"negative":    {build(key, negative, true), record.ErrCorrupt},
		"epoch":       {build(key, wideEpoch, true), record.ErrCorrupt},
	} {
		if _, err := parseNotice(c.batch); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestIndexFormat(t *testing.T) {
	h := indexHeader{
		baseLog: 10, nextLog: 400, baseKafka: 8, nextKafka: 390, prevLog: 10, logBytes: 9000,
		maxTimestamp: 5, created: 1, firstAppend: 2, sealedAt: 3,
	}
	tab := table{}.append(entry{log: 10, kafka: 8}).append(entry{log: 11, kafka: 8, pos: 138}).append(entry{log: 300, kafka: 297, pos: 4100})
	b := encodeIndex(h, tab)
	if len(b) != indexHeaderSize+3*entrySize || string(b[:8]) != "KHIX\x00\x00\x00\x01" {
		t.Fatalf("%d bytes: %x", len(b), b[:8])
	}
	if got := hex.EncodeToString(b[indexHeaderSize+2*entrySize:]); got != "000000000000012c"+"0000000000000129"+"0000000000001004" {
		t.Fatalf("last entry %s", got)
	}
	got, err := decodeIndexHeader(b, int64(len(b)))
	must(t, err)
	h.entries, h.tableCRC = got.entries, got.tableCRC
	if got != h || got.entries != 3 {
		t.Fatalf("header %+v, want %+v", got, h)
	}
	if _, err := decodeTable(got, b[indexHeaderSize:]); err != nil {
		t.Fatal(err)
	}
	for bit := range len(b) * 8 {
		bad := bytes.Clone(b)
		bad[bit/8] ^= 1 << (bit % 8)
		h, err := decodeIndexHeader(bad, int64(len(bad)))
		if err == nil {
			_, err = decodeTable(h, bad[indexHeaderSize:])
		}
		if !errors.Is(err, record.ErrCorrupt) {
			t.Fatalf("bit %d flipped: %v", bit, err)
		}
	}
	for cut := range b {
		if _, err := decodeIndexHeader(b[:cut], int64(cut)); !errors.Is(err, record.ErrCorrupt) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
	}
}

// Entries that have a right CRC may still be wrong; a search in them must not lead
// outside of the file.
func TestTableOrder(t *testing.T) {
	h := indexHeader{baseLog: 10, nextLog: 20, baseKafka: 8, nextKafka: 18, logBytes: 1000}
	for name, es := range map[string][]entry{
		"first position": {{log: 10, kafka: 8, pos: 1}},
		"first Kafka":    {{log: 10, kafka: 9}},
		"log back":       {{log: 10, kafka: 8}, {log: 10, kafka: 9, pos: 5}},
		"Kafka back":     {{log: 10, kafka: 8}, {log: 12, kafka: 10, pos: 5}, {log: 13, kafka: 9, pos: 6}},
		"position back":  {{log: 10, kafka: 8}, {log: 11, kafka: 9, pos: 5}, {log: 12, kafka: 10, pos: 5}},
		"log beyond":     {{log: 10, kafka: 8}, {log: 20, kafka: 9, pos: 5}},
		"Kafka beyond":   {{log: 10, kafka: 8}, {log: 19, kafka: 19, pos: 5}},
		"file beyond":    {{log: 10, kafka: 8}, {log: 19, kafka: 9, pos: 1000}},
		"damaged":        {{log: 10, kafka: 8, damaged: true}},
	} {
		var tab table
		for _, e := range es {
			tab = tab.append(e)
		}
		b := encodeIndex(h, tab)
		got, err := decodeIndexHeader(b, int64(len(b)))
		must(t, err)
		if _, err := decodeTable(got, b[indexHeaderSize:]); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTableSearch(t *testing.T) {
	tab := table{}.append(entry{log: 10, kafka: 8}).append(entry{log: 11, kafka: 8, pos: 138}).append(entry{log: 300, kafka: 297, pos: 4100})
	for off, want := range map[int64]int{7: -1, 8: 1, 296: 1, 297: 2, 1 << 60: 2} {
		if got := tab.byKafka(off); got != want {
			t.Errorf("Kafka offset %d: entry %d, want %d", off, got, want)
		}
	}
	for off, want := range map[int64]int{9: -1, 10: 0, 11: 1, 299: 1, 300: 2} {
		if got := tab.byLog(off); got != want {
			t.Errorf("log offset %d: entry %d, want %d", off, got, want)
		}
	}
	if e := table(nil).byKafka(0); e != -1 {
		t.Errorf("empty table: %d", e)
	}
}

func TestSegmentNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"00000000000000004711-3": true, "00000000000000000000-0": true, "09223372036854775807-2147483647": true,
		"0000000000000004711-3": false, "00000000000000004711-03": false, "00000000000000004711": false,
		"00000000000000004711--1": true, "99999999999999999999-1": false, "-0000000000000004711-3": false,
		"0000000000000000471x-3": false, "00000000000000004711-3-3": false, "": false,
	} {
		base, epoch, got := parseSegmentName(name)
		if got != ok || ok && segmentName(base, epoch) != name {
			t.Errorf("%q: %d, %d, %v", name, base, epoch, got)
		}
	}
}

func FuzzNotice(f *testing.F) {
	b, err := sampleNotice.appendTo(nil)
	must(f, err)
	f.Add(b)
	f.Add(b[:noticeSize-1])
	f.Add(batchOf(f, "data"))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := parseNotice(b)
		if err != nil {
			return
		}
		again, err := n.appendTo(nil)
		must(t, err)
		// Fields that do not take part, like the leader epoch, may differ.
		m, err := parseNotice(again)
		if err != nil || m != n {
			t.Fatalf("%+v became %+v, %v", n, m, err)
		}
	})
}

func FuzzIndex(f *testing.F) {
	h := indexHeader{baseLog: 10, nextLog: 400, baseKafka: 8, nextKafka: 390, logBytes: 9000}
	good := encodeIndex(h, table{}.append(entry{log: 10, kafka: 8}).append(entry{log: 11, kafka: 8, pos: 138}))
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add([]byte(indexMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeIndexHeader(b, int64(len(b)))
		if err != nil {
			return
		}
		tab, err := decodeTable(h, b[indexHeaderSize:])
		if err != nil {
			return
		}
		if again := encodeIndex(h, tab); !bytes.Equal(again, b) {
			t.Fatalf("re-encoded to\n%x, was\n%x", again, b)
		}
		for _, off := range []int64{h.baseKafka, h.nextKafka - 1, h.nextKafka} {
			if i := tab.byKafka(off); off >= h.baseKafka && (i < 0 || tab.at(i).pos >= tab.end(i, h.logBytes)) {
				t.Fatalf("offset %d leads to entry %d", off, i)
			}
		}
	})
}

// Whatever the bytes of the segment files are, opening does not panic, and a log
// that opens keeps working: what is appended then is there after a restart, at the
// same offset, and what can be read is sound.
func FuzzRecovery(f *testing.F) {
	fs, names := threeSegments(f)
	a, b := file(f, fs, names[0]+logSuffix), file(f, fs, names[2]+logSuffix)
	stop, err := notice{kind: kindStop, log: 15, prevLog: 15, nextKafka: 9, segment: 10, segmentBytes: int64(len(b))}.appendTo(nil)
	must(f, err)
	f.Add(a, b, []byte(nil), int64(0))
	f.Add(a, b, stop, int64(0))
	f.Add(a, b[:len(b)-200], stop, int64(0))
	f.Add(a[:len(a)-5], b[:len(b)-5], []byte("x"), int64(14))
	f.Add([]byte(nil), b, []byte(nil), int64(3))
	f.Add(a, []byte(nil), []byte(nil), int64(30))
	f.Add(a[:noticeSize], append(bytes.Clone(b), b...), stop, int64(1))
	f.Fuzz(func(t *testing.T, first, last, stop []byte, proven int64) {
		fs := vfs.NewCrashableMem()
		d := directory{fs: fs}
		must(t, fs.MkdirAll(testDir, 0o755))
		must(t, fsync.Dir(fs, "data/topic"))
		must(t, fsync.Dir(fs, "data"))
		must(t, fsync.Dir(fs, ""))
		d.path = testDir
		setFile(t, fs, names[0]+logSuffix, first)
		setFile(t, fs, names[2]+logSuffix, last)
		setFile(t, fs, stopFile, stop)
		o := options(fs)
		o.ProvenNextLog = proven & 0xffff
		l, err := Open(context.Background(), o)
		if err != nil {
			if !errors.Is(err, record.ErrCorrupt) {
				t.Fatalf("open: %v", err)
			}
			return
		}
		defer l.Close()
		st := l.State()
		readable := map[int64]string{}
		for off := st.LocalStart; off < min(st.HighWatermark, st.LocalStart+100); off++ {
			if v, err := valueAt(l, off); err == nil {
				readable[off] = v
			}
		}
		bases, err := l.Append(context.Background(), [][]byte{batchOf(t, "new")})
		must(t, err)
		if bases[0] != st.HighWatermark {
			t.Fatalf("appended at %d, high watermark was %d", bases[0], st.HighWatermark)
		}
		o.FS = crash(fs)
		again, err := Open(context.Background(), o)
		must(t, err)
		defer again.Close()
		wantValue(t, again, bases[0], "new")
		for off, v := range readable {
			wantValue(t, again, off, v)
		}
	})
}
