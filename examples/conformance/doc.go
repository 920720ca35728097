// Package conformance holds the SDKs of OpenAI and Anthropic, and two that are
// built on them, before servers directly and through a gateway with endpick's
// transport. Every scenario runs both ways, on servers that are fresh, and what
// the client was told and what went over the wire must be the same but for IDs
// and times. It has tests only, in a module of its own since SDKs are large.
//
//	GOWORK=off go test .                      against modelled servers
//	ENDPICK_LLAMA=DIR GOWORK=off go test .    against llama.cpp too
//	GOWORK=off go test -run Clients -v .      print the table of docs/clients.md
//	GOWORK=off go test -run Clients -told .   print what each client is told
//	GOWORK=off go test -run Clients -update . write it
//
// The clients that are npm packages need node, and a directory that has them
// installed: ENDPICK_NODE_MODULES names one in which npm ci was run with the
// package.json and package-lock.json of node/. Without it they are skipped.
package conformance
