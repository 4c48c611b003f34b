package objstore_test

import (
	"errors"
	"strings"
	"testing"

	"keyhole/objstore"
)

func TestParseURL(t *testing.T) {
	for raw, want := range map[string]objstore.Location{
		"file:///var/lib/kv":  {Dir: "/var/lib/kv"},
		"file:///a/../b//c/":  {Dir: "/b/c"},
		"file:///with%20room": {Dir: "/with room"},
		"s3://bucket":         {Bucket: "bucket", Client: "aws"},
		"s3://bucket/":        {Bucket: "bucket", Client: "aws"},
		"s3://bucket/a/b/":    {Bucket: "bucket", Prefix: "a/b", Client: "aws"},
		"s3://bucket/p?endpoint=http://127.0.0.1:9000&region=eu-west-1&client=minio": {
			Bucket: "bucket", Prefix: "p", Endpoint: "http://127.0.0.1:9000", Region: "eu-west-1", PathStyle: true, Client: "minio"},
		"s3://bucket?endpoint=https%3A%2F%2Fs3.example.com%2F&path_style=false": {
			Bucket: "bucket", Endpoint: "https://s3.example.com", Client: "aws"},
	} {
		got, err := objstore.ParseURL(raw)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", raw, got, err, want)
		}
	}
}

// case 8-21: no refused URL comes back in the error.
func TestParseURLRefuses(t *testing.T) {
	const secret = "hunter2secret"
	for _, raw := range []string{
		"", "bucket", "/dir", "http://host/bucket", "s3:bucket", "s3:///prefix", "s3://ab", "s3://a b c",
		"s3://bucket:9000/p", "s3://bucket/a/../b", "s3://bucket/a//b", "s3://bucket#x", "s3://bucket/p#",
		"file://host/dir", "file:dir", "file:///dir?x=1", "file:///dir%00",
		"s3://bucket?endpoint=localhost:9000", "s3://bucket?endpoint=ftp://x", "s3://bucket?endpoint=http://h/path", "s3://bucket?endpoint=",
		"s3://bucket?region=", "s3://bucket?region=a%0ab", "s3://bucket?path_style=maybe", "s3://bucket?client=gcs",
		"s3://bucket?region=a&region=b",
		"s3://key:" + secret + "@bucket/p",
		"s3://" + secret + "@bucket/p",
		"s3://bucket?secret_key=" + secret,
		"s3://bucket?" + secret + "=1",
		"s3://bucket?endpoint=http://u:" + secret + "@host",
		"s3://key:" + secret + "@bucket/%zz",
		"s3://bucket?region=" + secret + "%zz",
		"s3://bucket/p#" + secret,
		secret + "://bucket",
	} {
		_, err := objstore.ParseURL(raw)
		if !errors.Is(err, objstore.ErrInvalid) {
			t.Errorf("%q: error is %v", raw, err)
			continue
		}
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%q: error repeats the secret: %v", raw, err)
		}
	}
}

// FuzzParseURL: no panic, and what is accepted is printed so that it reads back
// as the same place.
func FuzzParseURL(f *testing.F) {
	for _, seed := range []string{
		"file:///dir", "file:///a%2Fb", "s3://bucket/prefix?endpoint=http://h:1&region=r&path_style=true&client=minio",
		"s3://bucket/%C3%A9", "s3://u:p@bucket", "s3://bucket/?endpoint=https://[::1]:9000", "s3://bucket/a b?client=aws#",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		l, err := objstore.ParseURL(raw)
		if err != nil {
			if !errors.Is(err, objstore.ErrInvalid) {
				t.Fatalf("error of another class: %v", err)
			}
			return
		}
		if (l.Dir == "") == (l.Bucket == "") {
			t.Fatalf("neither or both kinds: %+v", l)
		}
		again, err := objstore.ParseURL(l.String())
		if err != nil || again != l {
			t.Fatalf("%q → %+v → %q → %+v, %v", raw, l, l, again, err)
		}
	})
}
