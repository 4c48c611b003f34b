package s3conn

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// source is a credential source under the test's control.
type source struct {
	c     aws.Credentials
	err   error
	calls int
}

func (s *source) Retrieve(context.Context) (aws.Credentials, error) {
	s.calls++
	return s.c, s.err
}

// case 4-20: what has no end, or a late one, is asked for again all the same;
// what ends early keeps its end; a failing source does not take away what is
// still valid.
func TestReloading(t *testing.T) {
	s := &source{c: aws.Credentials{AccessKeyID: "A", SecretAccessKey: "s"}}
	p := &reloading{chain: s, loaded: time.Now()}
	c, err := p.Retrieve(t.Context())
	if err != nil || !c.CanExpire || time.Until(c.Expires) > reloadAfter {
		t.Errorf("without an end: %v until %v, %v", c.CanExpire, c.Expires, err)
	}
	soon := time.Now().Add(time.Minute)
	s.c.CanExpire, s.c.Expires = true, soon
	if c, err = p.Retrieve(t.Context()); err != nil || !c.Expires.Equal(soon) {
		t.Errorf("with an early end: %v, %v", c.Expires, err)
	}
	s.err = errors.New("source is away")
	if c, err = p.Retrieve(t.Context()); err != nil || c.AccessKeyID != "A" {
		t.Errorf("source away, credentials valid: %v", err)
	}
	p.last.Expires = time.Now().Add(-time.Second)
	_, err = p.Retrieve(t.Context())
	var typed *CredentialsError
	if !errors.As(err, &typed) || !errors.Is(err, s.err) {
		t.Errorf("source away, credentials over: %v", err)
	}
}

// case 4-20, the variant with a file: after reloadAfter the file is read again.
func TestReloadingFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "credentials")
	write := func(id string) {
		if err := os.WriteFile(file, []byte("[default]\naws_access_key_id="+id+"\naws_secret_access_key=s\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_PROFILE": "", "AWS_CONFIG_FILE": os.DevNull,
		"AWS_SHARED_CREDENTIALS_FILE": file, "AWS_EC2_METADATA_DISABLED": "true",
	} {
		t.Setenv(name, value)
	}
	write("FIRST")
	cfg, err := loadConfig(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := &reloading{chain: cfg.Credentials, loaded: time.Now()}
	id := func() string {
		c, err := p.Retrieve(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return c.AccessKeyID
	}
	if got := id(); got != "FIRST" {
		t.Errorf("first: %s", got)
	}
	write("SECOND")
	p.loaded = time.Now().Add(-reloadAfter)
	if got := id(); got != "SECOND" {
		t.Errorf("after the file was rewritten: %s", got)
	}
}
