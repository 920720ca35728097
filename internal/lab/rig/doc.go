// Package rig has what tests of several packages need: the time and the memory that code takes, whether
// the race detector is on, all orders of concurrent calls, stages that record what they hear, functions
// as readers and transports, expensive request bodies, llama.cpp, what runs until it is stopped, and
// Must, Err and Field for calls with an error.
package rig
