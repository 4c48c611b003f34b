// Package catalog knows which topics exist, what their properties are, which
// switches of the cluster are on, and which partitions live on this node.
//
// # Promise
//
//   - A change (property, switch, feature, topic made or deleted) is on disk
//     before it takes effect, and it takes effect without a restart. A refused
//     change leaves everything as it was and says why, property by property.
//   - Topic is lock-free: it reads one immutable snapshot. An administrator
//     who flips switches never stalls a lookup.
//   - "No such topic" is said only when it is known. Until the topics of the
//     bucket have been listed, an unknown name gives ErrBucketUnknown.
//   - A topic id is made with the topic. A topic made again under its old name
//     has another id and shares neither files nor objects with the old one.
//   - Nothing is written into a bucket before the bucket has proved to be the
//     one this node belongs to, and no object of a topic before its topic.json.
//     Of a deleted topic, topic.json is the last object to go, and nothing of it
//     comes back from an old disk, see gone.go.
//   - A topic that another node has taken over is changed and deleted there only.
//   - A read replica writes nothing into the bucket at all, see replica.go.
//
// # Picture
//
//	          AlterCluster  AlterTopic  SetFeature  CreateTopic  DeleteTopic
//	                 └───────────┴────┬─────┴────────────┴───────────┘
//	                                  ▼ one at a time (mu)
//	data directory  ◄── temp, sync, rename, sync dir ──  validate
//	                                  │
//	                                  ▼ then
//	   Topic(name) ──►  snapshot (atomic pointer)  ──►  partition.Configure
//	                                  ▲
//	bucket  ◄── topic.json, deletion marks ── keeper    (background, for ever)
//	   │    ◄── what deleted topics left ──── sweeper   (the same)
//	   └─────── cluster.json, topics ───────► attacher  (background, until known)
//	                                          follower  (for ever, on a read replica,
//	                                                     in place of the others)
//
// # Files
//
//	<data>/LOCK                        held while the process lives
//	<data>/node.json                   node id (the writer id in manifests), cluster id, role
//	<data>/config.json                 cluster properties and features
//	<data>/topics/<name>/<id>/topic.json
//	<data>/topics/<name>/<id>/stored   empty: the bucket has had its topic.json
//	<data>/topics/<name>/<id>/<n>/     partition n
//	<data>/deleted/<id>.json           deletion of which the bucket still has something
//
// The .json files are one JSON object each with a checksum, see docs/format/catalog.md.
package catalog
