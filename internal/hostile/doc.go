// Package hostile makes bodies of requests that are meant to cost a gateway more
// than they are long, for tests and for the commands that measure the cost: those
// that somebody thought of, and as many as one likes that nobody has.
package hostile
