package gateway

import (
	"errors"
	"testing"
)

// What encoding/json lets pass must not turn a dry run into something else.
func TestBodiesAreTakenAtTheirWord(t *testing.T) {
	type request struct {
		DryRun bool           `json:"dry_run"`
		Upsert map[string]any `json:"upsert"`
	}
	for body, ok := range map[string]bool{
		`{}`:                               true,
		`{"dry_run":true}`:                 true,
		`{"upsert":{"a":1,"A":2}}`:         true, // names of properties are checked elsewhere
		`{"dry_run":true,"dry_run":false}`: false,
		`{"Dry_Run":true}`:                 false,
		`{"dryrun":true}`:                  false,
		`null`:                             false,
		`[]`:                               false,
		`{"dry_run":true}{}`:               false,
		`{"dry_run":true`:                  false,
	} {
		var r request
		err := decodeJSON([]byte(body), &r)
		if (err == nil) != ok {
			t.Errorf("%s: %v", body, err)
		}
		var bad *requestError
		if err != nil && !errors.As(err, &bad) {
			t.Errorf("%s: %v is no answer to a client", body, err)
		}
	}
}
