// Package suite is a list of exchanges of a client with model servers, from a chat to
// an upgrade, and compares what happens directly and with something in between: a
// reverse proxy with endpick's transport, a Caddy, an endpoint picker.
//
// An index of names:
//
//   - [Scenario], [Scenarios]: what a client sends, what servers answer, and who leaves
//   - [Way], [Direct]: a way from the client to the servers
//   - [Play]: a scenario on a way, to a [Transcript]; nothing may be left of it
//   - [Transcript.Differences]: from the direct one
//   - [Meant]: the documented ones, each with its reason
//   - [Compare], [Report]: all scenarios on all ways, and a table
//
// Servers and client are scripted byte by byte, over TCP, so that only dates and
// addresses need normalizing before a comparison. Waiting means waiting for what the
// other side has seen, and for [Way.Patience] at most.
package suite
