package objstore

import (
	"fmt"
	"net/url"
	"path"
	"strconv"
	"strings"
)

// Client names the library that talks to an S3 store.
type Client string

// The clients. Both must pass the same contract; the choice exists because
// stores that misbehave with one often behave with the other.
const (
	ClientAWS   Client = "aws"
	ClientMinIO Client = "minio"
)

// Location is a parsed object store URL. Exactly one of Dir and Bucket is set.
type Location struct {
	Dir string // absolute path of a folder, from file:///dir

	Bucket    string
	Prefix    string // without slashes at its ends; may be empty
	Endpoint  string // scheme://host[:port], empty for AWS itself
	Region    string // empty: from the environment or shared files, else us-east-1
	PathStyle bool   // bucket in the path instead of the host name
	Client    Client
}

// ParseURL reads an object store URL:
//
//	s3://bucket/prefix?endpoint=URL&region=R&path_style=true|false&client=aws|minio
//	file:///dir
//
// Path style is the default with an endpoint, host style without. A URL that
// carries credentials is refused; no error repeats any part of the URL that
// could hold one. Errors are ErrInvalid.
func ParseURL(raw string) (Location, error) {
	u, err := url.Parse(raw)
	if err != nil { // its text repeats the whole URL
		return Location{}, urlError("object store URL cannot be parsed")
	}
	if u.User != nil {
		return Location{}, urlError("object store URL holds credentials; they belong in the environment, shared files or a role")
	}
	if u.Fragment != "" || u.RawFragment != "" || strings.HasSuffix(raw, "#") {
		return Location{}, urlError("object store URL has a fragment")
	}
	switch u.Scheme {
	case "file":
		return parseFile(u)
	case "s3":
		return parseS3(u)
	}
	return Location{}, urlError("object store URL must begin with s3:// or file://")
}

func urlError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

func parseFile(u *url.URL) (Location, error) {
	if u.Opaque != "" || u.Host != "" || !strings.HasPrefix(u.Path, "/") || strings.ContainsRune(u.Path, 0) {
		return Location{}, urlError("folder URL must have the form file:///dir with an absolute path")
	}
	if u.RawQuery != "" || u.ForceQuery {
		return Location{}, urlError("folder URL takes no parameters")
	}
	return Location{Dir: path.Clean(u.Path)}, nil
}

func parseS3(u *url.URL) (Location, error) {
	if u.Opaque != "" || !validBucket(u.Host) {
		return Location{}, urlError("bucket name in the object store URL must have 3 to 63 letters, digits, dots, dashes or underscores")
	}
	l := Location{Bucket: u.Host, Prefix: strings.Trim(u.Path, "/"), Client: ClientAWS}
	if l.Prefix != "" && ValidKey(l.Prefix) != nil {
		return Location{}, urlError("prefix in the object store URL is not a valid key")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return Location{}, urlError("parameters of the object store URL cannot be parsed")
	}
	for name, values := range query {
		if len(values) != 1 {
			return Location{}, urlError("a parameter of the object store URL is given more than once")
		}
		if err := l.setParameter(name, values[0]); err != nil {
			return Location{}, err
		}
	}
	if l.Endpoint != "" && !query.Has("path_style") {
		l.PathStyle = true
	}
	return l, nil
}

func (l *Location) setParameter(name, value string) error {
	switch name {
	case "endpoint":
		e, err := url.Parse(value)
		if err != nil || e.Scheme != "http" && e.Scheme != "https" || e.Hostname() == "" || e.User != nil ||
			strings.Trim(e.Path, "/") != "" || e.RawQuery != "" || e.Fragment != "" || e.Opaque != "" {
			return urlError("endpoint must have the form http://host:port or https://host:port")
		}
		l.Endpoint = e.Scheme + "://" + e.Host
	case "region":
		if !validRegion(value) {
			return urlError("region must consist of letters, digits and dashes")
		}
		l.Region = value
	case "path_style":
		on, err := strconv.ParseBool(value)
		if err != nil {
			return urlError("path_style must be true or false")
		}
		l.PathStyle = on
	case "client":
		l.Client = Client(value)
		if l.Client != ClientAWS && l.Client != ClientMinIO {
			return urlError("client must be aws or minio")
		}
	default:
		return urlError("unknown parameter in the object store URL; known are endpoint, region, path_style and client")
	}
	return nil
}

// String is a URL that ParseURL reads back to the same Location. It holds no
// secret and may be logged.
func (l Location) String() string {
	if l.Dir != "" {
		return (&url.URL{Scheme: "file", Path: l.Dir}).String()
	}
	query := url.Values{"client": {string(l.Client)}, "path_style": {strconv.FormatBool(l.PathStyle)}}
	if l.Endpoint != "" {
		query.Set("endpoint", l.Endpoint)
	}
	if l.Region != "" {
		query.Set("region", l.Region)
	}
	u := url.URL{Scheme: "s3", Host: l.Bucket, Path: "/" + l.Prefix, RawQuery: query.Encode()}
	return u.String()
}

func validBucket(s string) bool {
	return len(s) >= 3 && len(s) <= 63 && !strings.Contains(s, "..") && onlyOf(s, "._-") && onlyOf(s[:1]+s[len(s)-1:], "")
}

func validRegion(s string) bool {
	return s != "" && len(s) <= 64 && onlyOf(s, "-")
}

// onlyOf reports whether s is made of ASCII letters, digits and the extra bytes.
func onlyOf(s, extra string) bool {
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(extra, r) {
			return false
		}
	}
	return true
}
