// Package e2e tests the built program from outside: processes, sockets, files
// and a real S3 server, nothing linked in. It holds tests only.
//
//	test ── HTTP, CLI, signals ──► keyhole ──► proxy (counts, misbehaves) ──► versitygw
//	                                  │                                          │
//	                                  ▼                                          ▼
//	                              data directory                        a folder with objects
//
// The tests with a store run once for each backend: both S3 clients, and a
// folder. Environment:
//
//	KEYHOLE_VERSITYGW  the versitygw program; without one the S3 backends are skipped
//	KEYHOLE_TESTDATA   folder with kafka-file-history.ndjson.gz
//	KEYHOLE_E2E_RACE   not empty: the program is built with the race detector
//
// and, for longer runs, how often something is done:
//
//	KEYHOLE_KILL_ROUNDS    kills of TestKill9
//	KEYHOLE_LINEAR_LIVES   processes that one history of TestLinearizable goes over
//	KEYHOLE_WRITER_ROUNDS  writers that TestPausedWriter stops at any place
package e2e
