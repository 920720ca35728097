// Package transporttest checks what a host does with leases: a program that asks a
// router for an endpoint, sends the request there itself and tells the lease what
// became of it.
//
//	func TestMyGateway(t *testing.T) {
//		transporttest.Run(t, func(t *testing.T, router *endpick.Router) http.Handler {
//			return NewGateway(router)
//		})
//	}
//
// Run puts a fake engine behind the host that misbehaves in each of the ways of
// [Faults], over real HTTP, and looks at the router's account after each.
//
// It is a package of its own so that those who test scorers have no HTTP to link.
package transporttest
