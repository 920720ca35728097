// Package recording is the format in which a gateway keeps what it has seen of
// its requests: lengths, hashes and times, and text only where it was asked for. A
// recording is a file of JSON objects, one a line, in the order in which the requests
// ended.
//
// [Writer] writes one; its Write suits Config.Record of package transport.
// [Read] reads it again, also what older versions have written: `simulate -trace` replays recordings against other
// policies, `simulate calibrate` fits a profile to one.
package recording
