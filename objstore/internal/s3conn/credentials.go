package s3conn

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go/logging"
)

// reloadAfter is how long credentials from shared files or the environment are
// used before the chain is asked again, so that a rewritten file is noticed.
// Role credentials carry their own, often shorter, life.
const reloadAfter = 5 * time.Minute

// renewAhead is how long before their end role credentials are renewed, so that
// no request reaches the store with ones that have just expired.
const renewAhead = 10 * time.Second

// Identity is the result of the usual chain of sources: environment variables,
// shared credential and config files with AWS_PROFILE, web identity, container
// and instance roles. Both drivers use it, so both find the same credentials.
type Identity struct {
	Region      string // from environment or shared config, "" if unset
	Credentials aws.CredentialsProvider
}

// LoadIdentity reads environment and shared files; roles are asked on first
// use. The error never holds a secret.
func LoadIdentity(ctx context.Context) (Identity, error) {
	cfg, err := loadConfig(ctx)
	if err != nil {
		return Identity{}, &CredentialsError{err}
	}
	return Identity{
		Region:      cfg.Region,
		Credentials: aws.NewCredentialsCache(&reloading{chain: cfg.Credentials, loaded: time.Now()}),
	}, nil
}

func loadConfig(ctx context.Context) (aws.Config, error) {
	return config.LoadDefaultConfig(ctx,
		config.WithCredentialsCacheOptions(func(o *aws.CredentialsCacheOptions) {
			o.ExpiryWindow = renewAhead
		}),
		// The default writes to standard error past every logger. What fails comes
		// back as an error.
		config.WithLogger(logging.Nop{}))
}

// reloading asks the chain afresh every reloadAfter. While that fails it keeps
// on with what it has for as long as that is valid by its own expiry.
type reloading struct {
	mu     sync.Mutex
	chain  aws.CredentialsProvider
	loaded time.Time
	last   aws.Credentials // as the chain gave them, with their own expiry
}

// Retrieve implements aws.CredentialsProvider.
func (p *reloading) Retrieve(ctx context.Context) (aws.Credentials, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	var errReload error
	if now.Sub(p.loaded) >= reloadAfter {
		if cfg, err := loadConfig(ctx); err != nil {
			errReload = err
		} else {
			p.chain, p.loaded = cfg.Credentials, now
		}
	}
	c, err := p.chain.Retrieve(ctx)
	if err != nil {
		if !p.last.HasKeys() || p.last.Expired() {
			return aws.Credentials{}, &CredentialsError{errors.Join(err, errReload)}
		}
		c = p.last
	}
	p.last = c
	if limit := now.Add(reloadAfter); !c.CanExpire || c.Expires.After(limit) {
		c.CanExpire, c.Expires = true, limit
	}
	return c, nil
}
