package health_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/transport/health"
)

// Which endpoints a host avoids after four requests, each of which it sends to one endpoint
// after the other until one has served it. Letters are endpoints in the order in which they
// are asked: f fails, d can't be reached, b breaks off, t times out while connecting, r
// refuses, s serves.
func TestHostsReportTheirRequests(t *testing.T) {
	dial := &net.OpError{Op: "dial", Err: errors.New("refused")}
	late := &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
	for outcomes, want := range map[string]string{
		"s":   "well",
		"fs":  "out",  // another has served it
		"ffs": "out",  // so have both of these
		"ff":  "well", // the request may be at fault
		"f":   "out",  // nobody else was asked
		"d":   "out",
		"dd":  "out",
		"b":   "out",
		"t":   "hangs",
		"r":   "well",
	} {
		t.Run(outcomes, func(t *testing.T) {
			config := endpick.Config{Policy: endpick.Policy{Scorers: []endpick.Weighted{{Scorer: scorer.LeastLoaded(), Weight: 1}}}}
			for i := range 8 {
				config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: fmt.Sprint(i)})
			}
			router := rig.Must(endpick.New(config))
			monitor := rig.Must(health.New(health.Config{Router: router}))
			for range 4 {
				r := health.Request{Monitor: monitor}
				for i, o := range outcomes {
					lease := rig.Must(router.Route(endpick.Request{Exclude: allBut(router, fmt.Sprint(i))}))
					r.Sent(lease, true)
					lease.Done(endpick.Outcome{})
					switch o {
					case 's':
						r.Served()
					case 'b':
						r.Served()
						r.Failed(errors.New("broken off"))
					case 'f':
						r.Failed(errors.New("500"))
					case 'd':
						r.Failed(dial)
					case 't':
						r.Failed(late)
					}
				}
				r.Close()
				r.Close()
			}
			req := endpick.Request{Exclude: []string{"7"}}
			r := health.Request{Monitor: monitor}
			r.Avoid(&req)
			assert.Equal(t, want != "well", slices.Contains(req.Avoid, "0"))
			assert.Equal(t, want == "hangs", slices.Contains(req.Exclude, "0"))
			assert.Contains(t, req.Exclude, "7", "what the host excludes stays")
		})
	}
}

func allBut(router *endpick.Router, id string) (ids []string) {
	for _, e := range router.Endpoints() {
		if other := e.Candidate.Endpoint.ID; other != id {
			ids = append(ids, other)
		}
	}
	return ids
}
