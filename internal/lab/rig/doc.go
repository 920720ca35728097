// Package rig has what tests of several packages need: the time that code takes on a busy
// machine, whether the race detector is on, all orders of concurrent calls, a stage that counts
// its calls, expensive request bodies, llama.cpp, what runs until it is stopped and its output, and
// Must, Err and Field for calls with an error.
package rig
