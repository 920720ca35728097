// Package recording is the format of a gateway's recordings: lengths, hashes and times of requests,
// and their text only if asked for. A recording is a file of JSON objects, one per line, in the
// order in which the requests ended.
//
// [NewWriter] writes one, [Read] reads it,
// including older versions. `simulate -trace` replays recordings under other policies, and
// `simulate calibrate` fits a profile to one.
package recording
