// Package gateway is the HTTP edge of keyhole: it parses a request, asks the
// catalog and a partition, and turns the outcome into a status. It decides
// nothing about data.
//
// It promises:
//
//   - A key is taken from the request target as bytes, decoded exactly once, and
//     no path under /kv/ is ever cleaned or redirected.
//   - Every outcome has one status, decided before the first byte of the answer
//     is sent, by one function ([classify]).
//   - What comes from outside is bounded before memory is spent on it, never
//     becomes a metric label, and enters a response header only in encoded form.
//   - A slow client is cut, a slow but steady one is not, and a stop first turns
//     readiness off, then serves on, then lets what is in flight finish.
//
// The way of a request:
//
//	listener ─► slowConn (write deadline by progress)
//	   └ net/http ─► Server.dispatch ─► gorilla/mux ─► endpoint (panics, counts, access log)
//	        data:   /kv/{topic}/{key}   lookup.go, any.go, write.go
//	                /topics/{topic}…    produce.go
//	        admin:  /v1/…, /metrics     admin*.go
//	   outcome ─► errors.go ─► status, reason, JSON body
//
// docs/http.md describes the routes for their users.
package gateway
