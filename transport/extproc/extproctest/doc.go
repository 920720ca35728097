// Package extproctest plays an Envoy's side of the endpoint picker protocol, message by
// message: for tests of a picker, and to see it work where there is no Envoy. A [Proxy]
// is an http.RoundTripper, so that any client can be put before it.
package extproctest
