// Package traffic has clients for the examples and their tests: conversations with
// pauses and a shared history, sent over HTTP in one of the APIs of model servers,
// and measured; and a fleet of simulated servers to send them to.
//
//	f, err := traffic.StartFleet(3, config)
//	c := traffic.NewClient(url) // of a gateway in front of them
//	samples := c.Play(ctx, workload.Conversations(), func() {})
//	result := traffic.Summarise("lmetric", samples, endpick.SLO{})
package traffic
