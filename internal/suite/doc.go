// Package suite is one list of exchanges, from a chat to an upgrade, that a client has
// with model servers, and what is the same and what is not when something stands in
// between: a reverse proxy with endpick's transport, a Caddy, an endpoint picker.
//
// An index of names:
//
//   - [Scenario], [Scenarios]: what a client sends, what servers answer, and who leaves
//   - [Way], [Direct]: a way from the client to the servers
//   - [Play]: a scenario on a way, to a [Transcript]; nothing may be left of it
//   - [Transcript.Differences]: from the one that was made without anything in between
//   - [Meant]: those that are documented, each with its reason
//   - [Compare], [Report]: all scenarios on all ways, and a table
//
// Servers and client are scripted byte by byte, over TCP, so that nothing has to be
// made alike before it is compared but dates and addresses. Whoever waits, waits for
// what the other side has seen, and at most for [Patience].
package suite
