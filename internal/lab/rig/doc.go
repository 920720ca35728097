// Package rig has what tests of several packages need: the time that code takes on a busy
// machine, whether the race detector is on, all orders of concurrent calls, a stage that counts
// its calls, expensive request bodies, llama.cpp, and Must.
package rig
