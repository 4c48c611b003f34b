// Package recordjson turns records into JSON and back: the record form that
// lookups answer with, the headers form that travels in an HTTP header, the two
// Kafka REST produce bodies, and the line of a produce file.
//
// It promises:
//
//   - JSON text that becomes a key or a value is copied byte for byte from the
//     request: numbers keep their digits, objects their white space and their
//     duplicate members. Nothing ever passes through a float.
//   - null, absent and empty are told apart as far as Kafka tells them apart:
//     no key, a tombstone and a null header are nil, "" is empty.
//   - What is ambiguous is refused, not guessed: unknown or repeated fields of
//     a record, broken base64, half a surrogate pair in a string. A misspelt
//     "value" must not become a tombstone.
//   - Work is linear in the input and memory a small multiple of it. Nesting
//     costs nothing, since no decoder here recurses.
//
// A record in its outgoing form, and the forms that come in:
//
//	{"topic":"t","partition":0,"offset":"41","timestamp":1700000000000,
//	 "key":{"type":"string","data":"k"},"value":{"type":"binary","data":"AAEC"},
//	 "headers":[{"name":"h","value":"YWJj"},{"name":"h","value":null}]}
//
//	produce, binary  {"records":[{"key":"aw==","value":"dg==","headers":[…]}]}   strings are base64
//	produce, json    {"records":[{"key":"k","value":{"a":1},"headers":[…]}]}     values are JSON text
//	produce, line    {"key":"k","value":"v","headers":[{"name":"h","value":"x"}]} strings are their UTF-8 bytes
package recordjson
