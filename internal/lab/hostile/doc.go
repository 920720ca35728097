// Package hostile makes request bodies that are meant to cost a gateway more than
// their length suggests, for tests and for commands that measure the cost:
// hand-written ones, and any number of random ones.
package hostile
