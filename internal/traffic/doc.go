// Package traffic is clients for the examples and their tests: conversations with
// pauses and a shared history, sent over HTTP in one of the APIs that model servers
// speak, and what was measured of them; and a fleet of modelled servers to send
// them to.
//
//	f, err := traffic.StartFleet(3, config)
//	c := traffic.NewClient(url) // of a gateway in front of them
//	samples := c.Play(ctx, workload.Conversations(), func() {})
//	result := traffic.Summarise("lmetric", samples, endpick.SLO{})
package traffic
