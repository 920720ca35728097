// Package conformance tests the SDKs of OpenAI and Anthropic, go-openai, and two that are
// built on them, against servers directly and through a gateway with endpick's
// transport. Every scenario runs both ways, on new servers, and what the client
// receives and what goes over the wire must be the same except for IDs and
// times. It only has tests, in a module of its own because SDKs are large.
//
//	GOWORK=off go test .                      against simulated servers
//	ENDPICK_LLAMA=DIR GOWORK=off go test .    against llama.cpp too
//	GOWORK=off go test -run Clients -v .      print the table of docs/clients.md
//	GOWORK=off go test -run Clients -told .   print what each client receives
//	GOWORK=off go test -run Clients -update . write it
//
// The clients that are npm packages need node, and a directory that has them
// installed: ENDPICK_NODE_MODULES names one in which npm ci was run with the
// package.json and package-lock.json of node/. Otherwise they are skipped.
package conformance
