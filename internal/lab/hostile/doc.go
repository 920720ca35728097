// Package hostile makes request bodies that are meant to cost a gateway more than
// their length suggests, for tests and for commands that measure the cost.
package hostile
