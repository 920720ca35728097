// Package health says which endpoints of a router are ill, how, and whether anybody
// is alive, and asks them.
//
// Every [transport.Transport] judges endpoints by what becomes of their requests. A
// [Monitor] makes that visible, and adds what requests can't tell: it asks the
// /health page of each endpoint now and then, so that a server that hangs is known
// before requests have waited for it, and one that has come back is tried at once.
//
//	monitor, err := health.New(health.Config{Router: router})
//	…
//	go monitor.Run(ctx)
//	routed, err := transport.New(transport.Config{Router: router, Health: monitor})
//
// What a check can and can't do:
//
//   - An endpoint that has failed two checks in a row is put out, and tried again when
//     it passes one: one request, then a tenth of the traffic, and all of its share 15
//     seconds later.
//   - A check that gets no answer in time counts only if the endpoint has sent nothing
//     to anybody meanwhile: a server that is busy serving may be late to say that it is
//     well.
//   - An endpoint that passes its checks and fails its requests is still ill. A page
//     that is not there (404), or not for the gateway (401, 403), says nothing.
//   - An endpoint that has never passed a check is judged by its requests alone: it may
//     be the check that is wrong.
//   - Where all endpoints are out, those that answer are asked all the same, so that
//     clients get the engine's own words. Those that do not even answer a check are not:
//     clients are told at once, with [endpick.NoEndpointsError], which is 503.
package health
