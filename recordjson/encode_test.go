package recordjson_test

import (
	"encoding/base64"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"keyhole/record"
	"keyhole/recordjson"
)

func TestRecordForm(t *testing.T) {
	r := record.Record{
		Offset: 20227160311775237, Timestamp: 1700000000000, Key: []byte("k1"), Value: []byte{0, 1, 2},
		Headers: []record.Header{{Name: "trace", Value: []byte("abc")}, {Name: "empty", Value: []byte{}}, {Name: "null"}, {Name: "trace"}},
	}
	want := `{"topic":"orders","partition":0,"offset":"20227160311775237","timestamp":1700000000000,` +
		`"key":{"type":"string","data":"k1"},"value":{"type":"binary","data":"AAEC"},` +
		`"headers":[{"name":"trace","value":"YWJj"},{"name":"empty","value":""},{"name":"null","value":null},{"name":"trace","value":null}]}`
	if got := recordjson.AppendRecord([]byte("x"), "orders", 0, &r); string(got) != "x"+want {
		t.Errorf("got  %s\nwant x%s", got, want)
	}
	r = record.Record{Offset: 3, Timestamp: -1, Value: []byte{}}
	want = `{"topic":"a\"\\b","partition":12,"offset":"3","timestamp":-1,"key":null,"value":{"type":"string","data":""},"headers":[]}`
	if got := recordjson.AppendRecord(nil, `a"\b`, 12, &r); string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestStringOrBinary(t *testing.T) {
	for in, want := range map[string]string{
		"":                       `{"type":"string","data":""}`,
		"plain":                  `{"type":"string","data":"plain"}`,
		"tab\tand\nline":         `{"type":"string","data":"tab\tand\nline"}`,
		`"quoted\"`:              `{"type":"string","data":"\"quoted\\\""}`,
		"<&>\u2028é漢😀\ufffd":     `{"type":"string","data":"<&>` + "\u2028é漢😀\ufffd" + `"}`,
		"\u00a0":                 `{"type":"string","data":"` + "\u00a0" + `"}`,
		"cr\r":                   `{"type":"binary","data":"Y3IN"}`,
		"\x00":                   `{"type":"binary","data":"AA=="}`,
		"\x1f":                   `{"type":"binary","data":"Hw=="}`,
		"\x7f":                   `{"type":"binary","data":"fw=="}`,
		"\u0080":                 `{"type":"binary","data":"woA="}`,
		"\u009f":                 `{"type":"binary","data":"wp8="}`,
		"\xff":                   `{"type":"binary","data":"/w=="}`,
		"cut \xe6\xbc":           `{"type":"binary","data":"Y3V0IOa8"}`,
		"surrogate \xed\xa0\x80": `{"type":"binary","data":"c3Vycm9nYXRlIO2ggA=="}`,
	} {
		if got := recordjson.AppendBytes(nil, []byte(in)); string(got) != want {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
	}
	if got := recordjson.AppendBytes(nil, nil); string(got) != "null" {
		t.Errorf("nil: got %s", got)
	}
}

func TestHeadersCannotBreakOut(t *testing.T) { // case 1-22
	hs := []record.Header{
		{Name: "a", Value: []byte("a\r\nX-Evil: 1")}, {Name: "with space\r\nX-Evil: 2", Value: []byte{0}},
		{Name: "Content-Length", Value: []byte("0")}, {Name: "", Value: nil}, {Name: "a", Value: []byte{}},
	}
	s := recordjson.EncodeHeaders(hs)
	if strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=") != "" {
		t.Fatalf("form %q has other bytes than base64url", s)
	}
	for _, form := range []string{s, strings.TrimRight(s, "=")} {
		if got, err := recordjson.DecodeHeaders(form); err != nil || !reflect.DeepEqual(got, hs) {
			t.Errorf("got %v, %v", got, err)
		}
	}
	// A name that is not UTF-8 cannot be shown, but the list stays valid JSON.
	list := recordjson.AppendHeaders(nil, []record.Header{{Name: "a\xffb\x01"}})
	if string(list) != `[{"name":"a\ufffdb\u0001","value":null}]` {
		t.Errorf("got %s", list)
	}
}

func TestEncodingAllocatesNothing(t *testing.T) {
	r := record.Record{
		Offset: 1 << 60, Timestamp: 1, Key: []byte(`"key" é`), Value: []byte{0, 0xff},
		Headers: []record.Header{{Name: "name\n", Value: []byte("v")}},
	}
	dst := make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(100, func() { dst = recordjson.AppendRecord(dst[:0], "topic", 3, &r) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzEncode holds the outgoing form to being valid JSON that carries exactly
// the bytes that went in.
func FuzzEncode(f *testing.F) {
	f.Add("topic", []byte("key"), []byte("value"), "name", []byte("header"))
	f.Add(`"`, []byte{0xff}, []byte("a\r\n\\"), "\xff\x00", []byte{})
	f.Fuzz(func(t *testing.T, topic string, key, value []byte, name string, hv []byte) {
		r := record.Record{Offset: 7, Key: key, Value: value, Headers: []record.Header{{Name: name, Value: hv}}}
		out := recordjson.AppendRecord(nil, topic, 1, &r)
		var got struct {
			Topic      string
			Offset     string
			Key, Value struct{ Type, Data string }
			Headers    []struct {
				Name  string
				Value *[]byte
			}
		}
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		for _, p := range []struct {
			in        []byte
			kind, out string
		}{{key, got.Key.Type, got.Key.Data}, {value, got.Value.Type, got.Value.Data}} {
			data := []byte(p.out)
			if p.kind == "binary" {
				var err error
				if data, err = base64.StdEncoding.DecodeString(p.out); err != nil {
					t.Fatal(err)
				}
			}
			if string(data) != string(p.in) {
				t.Fatalf("%q became %q in %s", p.in, data, out)
			}
		}
		if got.Topic != topic && utf8.ValidString(topic) || got.Offset != "7" {
			t.Fatalf("%s", out)
		}
		if hv != nil && string(*got.Headers[0].Value) != string(hv) {
			t.Fatalf("header %q in %s", hv, out)
		}
		if utf8.ValidString(name) {
			hs, err := recordjson.DecodeHeaders(recordjson.EncodeHeaders(r.Headers))
			if err != nil || !reflect.DeepEqual(hs, r.Headers) {
				t.Fatalf("headers %v became %v, %v", r.Headers, hs, err)
			}
		}
	})
}
