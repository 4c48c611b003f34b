package recordjson_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"keyhole/record"
	"keyhole/recordjson"
)

func produce(t *testing.T, media, body string) []recordjson.ProduceRecord {
	t.Helper()
	recs, err := recordjson.DecodeProduce([]byte(body), media)
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return recs
}

// one decodes a body with a single record.
func one(t *testing.T, media, rec string) recordjson.ProduceRecord {
	t.Helper()
	return produce(t, media, `{"records":[`+rec+`]}`)[0]
}

func TestJSONBody(t *testing.T) {
	recs := produce(t, recordjson.MediaJSON+"; charset=utf-8", ` {"key_schema":null, "records" : [
		{"key":"a","value": {"id":9223372036854775807, "x":1.0, "x":1.0e0 } ,"partition":3,"timestamp":1700000000000,
		 "headers":[{"name":"h","value":"YWJj"},{"name":"h","value":null},{"name":"e","value":""},{"name":"absent"}]},
		{"key":{ "id" : 1.50, "u":"é" },"value":[1, 2],"headers":null,"partition":null,"timestamp":null}
	] } `)
	want := []recordjson.ProduceRecord{{
		Key: []byte("a"), Value: []byte(`{"id":9223372036854775807, "x":1.0, "x":1.0e0 }`), Partition: 3, Timestamp: 1700000000000,
		Headers: []record.Header{{Name: "h", Value: []byte("abc")}, {Name: "h"}, {Name: "e", Value: []byte{}}, {Name: "absent"}},
	}, {
		Key: []byte(`{"id":1.50,"u":"é"}`), Value: []byte(`[1, 2]`), Partition: -1, Timestamp: -1,
	}}
	if !reflect.DeepEqual(recs, want) {
		t.Errorf("got  %+v\nwant %+v", recs, want)
	}
}

func TestValuesStandAsTheyCame(t *testing.T) { // case 1-26
	for _, v := range []string{
		`9223372036854775807`, `1.0`, `1e400`, `-0`, `0.1000000000000000055511151231257827`, `true`, `""`, `"a\u0041\/\ud800"`,
		"{ \"b\" : 1,\n\t\"a\":\r\n[ ] , \"a\":null}", `[[],{},"]","}","\"","\\"]`, `"漢😀"`, strings.Repeat("[", 5000) + strings.Repeat("]", 5000),
	} {
		r := one(t, recordjson.MediaJSON, `{"value": `+v+` ,"key":"k"}`)
		if r.Err != nil || string(r.Value) != v || string(r.Key) != "k" {
			t.Errorf("%.60s: got %.60q (key %q), %v", v, r.Value, r.Key, r.Err)
		}
	}
}

func TestNullAbsentAndEmpty(t *testing.T) { // cases 1-25, 2-05, 2-06
	for _, media := range []string{recordjson.MediaJSON, recordjson.MediaBinary, "line"} {
		for _, c := range []struct {
			rec              string
			keyNil, valueNil bool
		}{
			{`{"key":"","value":""}`, false, false},
			{`{"key":null,"value":null}`, true, true},
			{`{}`, true, true},
			{`{"key":""}`, false, true},
			{`{"value":""}`, true, false},
		} {
			var r recordjson.ProduceRecord
			if media == "line" {
				var err error
				if r, err = recordjson.DecodeLine([]byte(c.rec)); err != nil {
					t.Fatal(err)
				}
			} else {
				r = one(t, media, c.rec)
			}
			if r.Err != nil || (r.Key == nil) != c.keyNil || (r.Value == nil) != c.valueNil || len(r.Key) != 0 {
				t.Errorf("%s %s: got %#v", media, c.rec, r)
			}
		}
	}
	if r := one(t, recordjson.MediaJSON, `{"key":"null","value":"null"}`); string(r.Key) != "null" || string(r.Value) != `"null"` {
		t.Errorf(`"null" in quotes: got %q, %q`, r.Key, r.Value)
	}
}

func TestJSONKeys(t *testing.T) {
	for in, want := range map[string]string{
		`"a"`: "a", `"a\u0062\n\t\r\b\f\"\\\/"`: "ab\n\t\r\b\f\"\\/", `"\ud83d\ude00é"`: "😀é", `"\u0000"`: "\x00", `"\\u0041"`: `\u0041`,
		`1.50`: "1.50", `true`: "true", `[ 1 , 2 ]`: "[1,2]", `{ "a" : "<b c>" }`: `{"a":"<b c>"}`, `12345678901234567890`: "12345678901234567890",
	} {
		if r := one(t, recordjson.MediaJSON, `{"key":`+in+`,"value":1}`); r.Err != nil || string(r.Key) != want {
			t.Errorf("%s: got %q, %v, want %q", in, r.Key, r.Err, want)
		}
	}
}

func TestBinaryBody(t *testing.T) {
	recs := produce(t, recordjson.MediaBinary, `{"records":[{"key":"AAH/","value":"","headers":[]},{"key":"\u0041AH\/","value":null}]}`)
	want := []recordjson.ProduceRecord{
		{Key: []byte{0, 1, 255}, Value: []byte{}, Partition: -1, Timestamp: -1},
		{Key: []byte{0, 1, 255}, Partition: -1, Timestamp: -1},
	}
	if !reflect.DeepEqual(recs, want) {
		t.Errorf("got %+v, want %+v", recs, want)
	}
}

func TestOneBadRecordLeavesTheOthersGood(t *testing.T) { // case 1-23
	good := `{"key":"aw==","value":"dg=="}`
	for _, bad := range []string{
		`{"key":"not base64!"}`, `{"value":5}`, `{"key":{}}`, `{"key":"aw"}`, `7`, `null`, `[]`, `"text"`,
		`{"vaule":"dg=="}`, `{"Key":"aw=="}`, `{"key":"aw==","key":"aw=="}`, `{"value":null,"value":null}`, `{"\ud800":1}`,
		`{"partition":-1}`, `{"partition":2147483648}`, `{"partition":"0"}`, `{"partition":1.0}`, `{"partition":[]}`,
		`{"timestamp":-1}`, `{"timestamp":1e3}`, `{"timestamp":"1700000000000"}`, `{"timestamp":9223372036854775808}`,
		`{"headers":{}}`, `{"headers":"x"}`, `{"headers":[1]}`, `{"headers":[{}]}`, `{"headers":[{"name":null}]}`, `{"headers":[{"value":""}]}`,
		`{"headers":[{"name":"a","value":1}]}`, `{"headers":[{"name":"a","name":"b"}]}`, `{"headers":[{"name":"a","key":""}]}`,
		`{"headers":[{"name":"a","value":"x"}]}`, `{"headers":[{"name":"\udc00"}]}`, `{"headers":[],"headers":[]}`,
	} {
		recs := produce(t, recordjson.MediaBinary, `{"records":[`+good+`,`+bad+`,`+good+`]}`)
		if len(recs) != 3 || recs[0].Err != nil || recs[2].Err != nil || string(recs[2].Key) != "k" || string(recs[2].Value) != "v" {
			t.Errorf("%s: neighbours got %v", bad, recs)
			continue
		}
		if r := recs[1]; !errors.Is(r.Err, recordjson.ErrRecord) || r.Key != nil || r.Value != nil || r.Headers != nil {
			t.Errorf("%s: got %v", bad, r)
		}
	}
	for _, bad := range []string{`{"key":"\ud800"}`, `{"key":"\ud800x"}`, `{"key":"\ud800\u0041"}`, `{"key":"\udc00\ud800"}`, `{"key":"\ud800\n"}`} {
		if r := one(t, recordjson.MediaJSON, bad); !errors.Is(r.Err, recordjson.ErrRecord) {
			t.Errorf("%s: got %v", bad, r)
		}
	}
}

func TestBadBodies(t *testing.T) { // case 1-28
	for body, names := range map[string]string{
		"":                                      "empty",
		" \n":                                   "empty",
		"null":                                  `"records"`,
		"[]":                                    `"records"`,
		"5":                                     `"records"`,
		"{}":                                    `"records" is missing`,
		`{"Records":[{}]}`:                      `"records" is missing`,
		`{"records":[]}`:                        `"records" is empty`,
		`{"records":null}`:                      `"records" is not a list`,
		`{"records":{}}`:                        `"records" is not a list`,
		`{"records":[{}],"records":[{}]}`:       `"records" appears twice`,
		`{"records":[{}]`:                       "",
		`{"records":[{}]}}`:                     "",
		`{"records":[{}]} {}`:                   "",
		`{"records":[{},]}`:                     "",
		`{"records":[{"key":"a` + "\n" + `"}]}`: "",
		`{"records":[{"key":NaN}]}`:             "",
		"{\"records\":[{\"key\":\"\xff\"}]}":    "UTF-8",
		`{"\ud800":1,"records":[{}]}`:           "surrogate",
		`{"records":[` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `]}`: "depth",
		`{"records":` + strings.Repeat("[", 1<<20):                                      "depth",
	} {
		recs, err := recordjson.DecodeProduce([]byte(body), recordjson.MediaJSON)
		if !errors.Is(err, recordjson.ErrSyntax) || errors.Is(err, recordjson.ErrRecord) || recs != nil || !strings.Contains(err.Error(), names) {
			t.Errorf("%.60q: got %v, %v; want an error that names %s", body, recs, err, names)
		}
	}
	for _, media := range []string{"", "application/json", "application/vnd.kafka.avro.v2+json", "*/*", ";"} {
		if _, err := recordjson.DecodeProduce([]byte(`{"records":[{}]}`), media); !errors.Is(err, recordjson.ErrMediaType) {
			t.Errorf("%q: %v", media, err)
		}
	}
}

func TestSizesAreBounded(t *testing.T) {
	list := func(item string, n int) string { return strings.Repeat(item+",", n-1) + item }
	body := []byte(`{"records":[` + list("{}", recordjson.MaxRecords) + `]}`)
	if recs, err := recordjson.DecodeProduce(body, recordjson.MediaJSON); err != nil || len(recs) != recordjson.MaxRecords {
		t.Errorf("%d records: %d, %v", recordjson.MaxRecords, len(recs), err)
	}
	million := []byte(`{"records":[` + list("{}", 1_000_000) + `]}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := recordjson.DecodeProduce(million, recordjson.MediaJSON)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, recordjson.ErrSyntax) || n > 1<<20 {
		t.Errorf("a million records: %v, after allocating %d bytes", err, n)
	}

	r := one(t, recordjson.MediaJSON, `{"headers":[`+list(`{"name":""}`, recordjson.MaxHeaders)+`]}`)
	if r.Err != nil || len(r.Headers) != recordjson.MaxHeaders {
		t.Errorf("%d headers: %v", len(r.Headers), r.Err)
	}
	if r = one(t, recordjson.MediaJSON, `{"headers":[`+list(`{"name":""}`, recordjson.MaxHeaders+1)+`]}`); !errors.Is(r.Err, recordjson.ErrRecord) {
		t.Errorf("too many headers: %v", r.Err)
	}
	if r = one(t, recordjson.MediaJSON, `{`+list(`"key":"a"`, 100_000)+`}`); !errors.Is(r.Err, recordjson.ErrRecord) {
		t.Errorf("repeated field: %v", r.Err)
	}
}

func TestLine(t *testing.T) {
	for in, want := range map[string]string{
		`"text\n"`: "text\n", `{"base64":"AAEC"}`: "\x00\x01\x02", `{"base64":""}`: "", `{ "type" : "binary" , "data":"AAEC" }`: "\x00\x01\x02",
		`{"data":"AA\u0043","type":"string"}`: "AAC", `1.0`: "1.0", `true`: "true", `[ 1, 2 ]`: "[ 1, 2 ]", `{"a": 1}`: `{"a": 1}`, `{}`: "{}",
		`{"base64":5}`: `{"base64":5}`, `{"base64":"AAEC","more":1}`: `{"base64":"AAEC","more":1}`, `{"type":"other","data":"x"}`: `{"type":"other","data":"x"}`,
		`{"type":"string","data":5}`: `{"type":"string","data":5}`, `{"type":"string"}`: `{"type":"string"}`, `{"\ud800":1}`: `{"\ud800":1}`,
	} {
		line := `{"key":` + in + `,"value": ` + in + ` ,"headers":[{"name":"h","value":` + in + `},{"name":"n","value":null}],"partition":2,"timestamp":5}`
		r, err := recordjson.DecodeLine([]byte(line))
		want := recordjson.ProduceRecord{
			Key: []byte(want), Value: []byte(want), Partition: 2, Timestamp: 5,
			Headers: []record.Header{{Name: "h", Value: []byte(want)}, {Name: "n"}},
		}
		if err != nil || !reflect.DeepEqual(r, want) {
			t.Errorf("%s: got %+v, %v", line, r, err)
		}
	}
	for in, want := range map[string]error{
		"": recordjson.ErrSyntax, "{": recordjson.ErrSyntax, `{"key":"a"} {"key":"b"}`: recordjson.ErrSyntax, `[]`: recordjson.ErrRecord, `null`: recordjson.ErrRecord,
		`{"key":{"base64":"?"}}`: recordjson.ErrRecord, `{"value":{"type":"binary","data":"?"}}`: recordjson.ErrRecord,
		`{"key":"\ud800"}`: recordjson.ErrRecord, `{"value":{"type":"string","data":"\ud800"}}`: recordjson.ErrRecord, `{"offset":"1"}`: recordjson.ErrRecord,
	} {
		if _, err := recordjson.DecodeLine([]byte(in)); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", in, err, want)
		}
	}
}

func TestBytesOfTheRecordFormReadBackAsALine(t *testing.T) {
	for _, b := range [][]byte{nil, {}, []byte("text\n\"é"), {0xff, 0}, []byte(`{"base64":"AAEC"}`)} {
		line := fmt.Appendf(nil, `{"key":%s,"value":%s}`, recordjson.AppendBytes(nil, b), recordjson.AppendBytes(nil, b))
		if r, err := recordjson.DecodeLine(line); err != nil || !reflect.DeepEqual([][]byte{r.Key, r.Value}, [][]byte{b, b}) {
			t.Errorf("%q: got %+v, %v", b, r, err)
		}
	}
}

func TestBadHeaderForms(t *testing.T) {
	for in, want := range map[string]error{
		"": recordjson.ErrSyntax, "!": recordjson.ErrSyntax, "bnVsbA==": recordjson.ErrSyntax /* null */, "e30=": recordjson.ErrSyntax, /* {} */
		"W3t9XQ": recordjson.ErrRecord /* [{}] */, "W10+": recordjson.ErrSyntax,
	} {
		if hs, err := recordjson.DecodeHeaders(in); !errors.Is(err, want) {
			t.Errorf("%q: got %v, %v, want %v", in, hs, err, want)
		}
	}
	if hs, err := recordjson.DecodeHeaders("W10"); err != nil || len(hs) != 0 {
		t.Errorf("[]: got %v, %v", hs, err)
	}
}

// FuzzDecode checks the pieces that the decoders cut against encoding/json.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"records":[{"key":"a","value":{"x": [1.0, "\"]}"]},"headers":[{"name":"h","value":"YQ=="}]},{"key":null}]}`))
	f.Add([]byte(`{"key":"a\u0041\ud83d\ude00","value":{"base64":"AA=="},"timestamp":1,"partition":2,"headers":[{"name":"h","value":"x"}]}`))
	f.Add([]byte(" {\"records\" :[ {} , {\"value\":[ ] } ] }\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, media := range []string{recordjson.MediaBinary, recordjson.MediaJSON} {
			recs, err := recordjson.DecodeProduce(b, media)
			if err != nil {
				if !errors.Is(err, recordjson.ErrSyntax) {
					t.Fatalf("unmarked error %v", err)
				}
				continue
			}
			var want struct {
				Records []json.RawMessage `json:"records"`
			}
			if err := json.Unmarshal(b, &want); err != nil || len(want.Records) != len(recs) {
				t.Skip("encoding/json matches names in any case and merges repeated ones")
			}
			for i, r := range recs {
				if r.Err == nil && media == recordjson.MediaJSON {
					sameValue(t, want.Records[i], r)
				}
			}
		}
		r, err := recordjson.DecodeLine(b)
		if err != nil && !errors.Is(err, recordjson.ErrSyntax) && !errors.Is(err, recordjson.ErrRecord) {
			t.Fatalf("unmarked error %v", err)
		}
		if err == nil && (r.Timestamp < -1 || r.Partition < -1) {
			t.Fatalf("%s: got %v", b, r)
		}
	})
}

func sameValue(t *testing.T, raw []byte, r recordjson.ProduceRecord) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		t.Fatalf("%s: accepted, but %v", raw, err)
	}
	want := []byte(fields["value"])
	if string(want) == "null" {
		want = nil
	}
	if string(r.Value) != string(want) || (r.Value == nil) != (want == nil) {
		t.Fatalf("%s: value %q, want %q", raw, r.Value, want)
	}
	var key string
	if k := fields["key"]; len(k) > 0 && k[0] == '"' {
		if err := json.Unmarshal(k, &key); err != nil || key != string(r.Key) {
			t.Fatalf("%s: key %q, want %q (%v)", raw, r.Key, key, err)
		}
	}
}
