// Package health shows which endpoints of a router are unhealthy, and why, and checks
// them actively.
//
// Every [transport.Transport] learns from the outcome of its requests which endpoints
// fail. A [Monitor] makes that visible. It also polls the /health page of each endpoint, so that
// a server that hangs is noticed before requests wait for it, and one that has come back
// is tried at once.
//
//	monitor, err := health.New(health.Config{Router: router})
//	…
//	go monitor.Run(ctx)
//	routed, err := transport.New(transport.Config{Router: router, Health: monitor})
//
// A host that sends requests itself follows each with a [Request].
//
// How checks count:
//
//   - An endpoint that fails two checks in a row is taken out. When it passes one, it gets
//     a single request as a trial, then a tenth of its traffic, and its full share 15
//     seconds later.
//   - A check that times out counts only if the endpoint has sent nothing to anybody
//     meanwhile: a busy server may be late to answer. While it has work, three of them, in a
//     silence that is longer than usual, make it silent.
//   - An endpoint that passes its checks but fails its requests is unhealthy all the same.
//     A page that does not exist (404) or is not accessible (401, 403) says nothing.
//   - An endpoint that has never passed a check is known by its requests alone, because
//     the check may be what is wrong. But while it has never sent anything either, and no
//     connection can be made to it, it is out as unreachable: it gets trials, and its
//     full share as soon as it passes a check.
//   - If all endpoints are out, requests wait at those that are silent, which may be busy; if
//     there are none, those that answer are used, so that clients see the engine's own error.
//     Those that don't answer a check, with nothing to do, are not: clients get an
//     [endpick.NoEndpointError], 503, at once.
package health
