package s3minio

import (
	"context"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// provider gives minio-go the credentials of the chain that the other driver
// uses as well. The chain caches and refreshes; this remembers only when the
// last answer ends, which is what the library asks for before each request.
type provider struct {
	chain aws.CredentialsProvider
	mu    struct {
		sync.Mutex
		expires time.Time
	}
}

func newCredentials(chain aws.CredentialsProvider) *credentials.Credentials {
	return credentials.New(&provider{chain: chain})
}

// RetrieveWithCredContext implements credentials.Provider.
func (p *provider) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	ctx := context.Background()
	if cc != nil && cc.Context != nil {
		ctx = cc.Context
	}
	c, err := p.chain.Retrieve(ctx)
	if err != nil {
		return credentials.Value{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !c.CanExpire {
		c.Expires = time.Now().Add(time.Minute)
	}
	p.mu.expires = c.Expires
	return credentials.Value{
		AccessKeyID:     c.AccessKeyID,
		SecretAccessKey: c.SecretAccessKey,
		SessionToken:    c.SessionToken,
		Expiration:      c.Expires,
		SignerType:      credentials.SignatureV4,
	}, nil
}

// Retrieve implements credentials.Provider.
func (p *provider) Retrieve() (credentials.Value, error) { return p.RetrieveWithCredContext(nil) }

// IsExpired implements credentials.Provider.
func (p *provider) IsExpired() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !time.Now().Before(p.mu.expires)
}
