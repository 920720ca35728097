// Package extproctest plays Envoy's side of the endpoint picker protocol, message by
// message: to test a picker, and to see one work without Envoy. A [Proxy] is an
// http.RoundTripper, so any client can use it.
package extproctest
