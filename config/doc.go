// Package config fills the flags of a command from the environment and from a
// YAML file.
//
// # Promise
//
//   - A flag given on the command line wins over the environment, which wins
//     over the file, which wins over the flag's default.
//   - The flags are the only list of settings: the environment variable of
//     --admin-listen is KEYHOLE_ADMIN_LISTEN, its key in the file admin_listen.
//   - A mistake in the file is an error that names the key and the line, never
//     a setting that is silently left at its default. Errors about the file
//     never repeat a value, because a misplaced secret may stand there.
//
// # File
//
// One YAML document: a mapping from keys to single values. No nesting, no
// lists, no anchors, no key twice.
//
//	data_dir: /var/lib/keyhole
//	object_store: s3://bucket/prefix?endpoint=http://minio:9000
//	listen: 0.0.0.0:8082
//	shutdown_timeout: 30s
package config
