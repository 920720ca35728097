// Package transporttest checks how a host uses leases: a program that asks a router for
// an endpoint, sends the request there itself, and reports the outcome to the lease.
//
//	func TestMyGateway(t *testing.T) {
//		transporttest.Run(t, func(t *testing.T, router *endpick.Router) http.Handler {
//			return NewGateway(router)
//		})
//	}
//
// Run puts a fake engine behind the host that misbehaves in each of the ways that
// [Faults] lists, over real HTTP, and checks the router's accounts after each. If every
// fault fails, look at the first message: the host may panic, or answer nothing at all.
// After four faults that were waited for in vain, such as for leases that nobody closes,
// the others are skipped.
//
// It is a package of its own so that tests of scorers don't link HTTP.
package transporttest
