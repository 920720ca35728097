package health

import (
	"cmp"
	"slices"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/health"
	"github.com/endpick/endpick/transport/internal/host"
)

// Request follows one request of a host that sends it itself, over all attempts. With
// Monitor set it is ready to use. It is not safe for concurrent use.
//
//	h := health.Request{Monitor: monitor}
//	defer h.Close()
//	h.Avoid(&req)
//	lease, err := router.Route(req) // and return, if there is none
//	h.Sent(lease, req.Stream)
//	h.Served() // or h.Failed(err), and once more from Avoid, with the endpoint in req.Exclude
//
// If an endpoint refuses the request (4xx, 429), or the client gives it up, report neither
// Served nor Failed.
type Request struct {
	Monitor *Monitor

	attempt  health.Attempt // the latest
	stream   bool
	sent     time.Time
	served   bool
	suspects health.Suspects
}

// Avoid prepares the request to be routed: it sets Request.Avoid to the endpoints that
// fail, and adds to Request.Exclude those that hang. If that leaves none,
// [endpick.Router.Route] fails.
func (r *Request) Avoid(req *endpick.Request) {
	avoid, hanging := r.Monitor.core.Avoid(nil, nil, !r.sent.IsZero(), 0)
	req.Avoid = append(avoid, r.Monitor.core.Only(cmp.Or(req.Adapter, req.Model))...)
	req.Exclude = append(slices.Clip(req.Exclude), hanging...)
}

// Sent records that the request goes to the endpoint of a lease, which must be open.
func (r *Request) Sent(lease endpick.Lease, stream bool) {
	c, _ := lease.Candidate()
	r.attempt, r.stream = r.Monitor.core.Sent(lease.Endpoint().ID, c.Ref), stream
	r.sent, r.served = r.Monitor.config.Router.Now(), false
}

// Served reports that the first token of a stream has arrived, or the whole of another
// response. Endpoints that have failed the request before are then at fault.
func (r *Request) Served() {
	r.attempt.Waited(r.stream, r.Monitor.config.Router.Now().Sub(r.sent))
	r.attempt.Heard()
	r.attempt.Ended(health.Served)
	r.served = true
	r.suspects.Served()
}

// Failed reports that the endpoint has failed the request, by an error that is not nil. It
// counts at once if no connection could be made, which package net reports, or if the
// response has broken off; otherwise once another endpoint has served the request.
func (r *Request) Failed(err error) {
	a := r.attempt.Because(err)
	switch {
	case host.IsDial(err):
		a.Ended(health.NotSent)
	case r.served:
		a.Ended(health.Broken)
	default:
		r.suspects.Add(a, health.Broken)
	}
}

// Close ends the request. If several endpoints have failed it and none has served it,
// that counts against none of them: it may be at fault itself.
func (r *Request) Close() { r.suspects.GivenUp(func(health.Result) bool { return true }) }
