package health

import (
	"slices"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/health"
)

const (
	// triedWithin is how long a failure waits for another attempt at the request.
	triedWithin = time.Second
	// maxDoubts limits the requests in doubt at one time, and maxFailures the failures
	// of one; any more are judged at once.
	maxDoubts   = 64
	maxFailures = 16
)

// doubts are requests that have failed and may yet be served by another endpoint.
// Attempts of one request are recognized by what the router knows about the prompt.
type doubts []doubt

type doubt struct {
	likes    uint64
	failures []failure
	open     int // later attempts under way
	last     time.Time
}

type failure struct {
	visit health.Visit
	ref   endpick.Ref
}

// likes is a hash that the attempts of one request share, unlike those of others.
func likes(req *endpick.Request) uint64 {
	h := endpick.Salt(req.Model)*3 + endpick.Salt(req.Adapter)*5 + endpick.Salt(req.Tenant)*7 + endpick.Salt(req.Session)*9
	if n := len(req.Blocks); n > 0 {
		h ^= req.Blocks[n-1] + uint64(n)
	}
	return h ^ uint64(req.InputTokens)<<32 ^ uint64(req.ExpectedOutputTokens)
}

func (d *doubts) find(likes uint64) int {
	return slices.IndexFunc(*d, func(o doubt) bool { return o.likes == likes })
}

// again records that a request is routed, and reports whether it was in doubt.
func (d *doubts) again(likes uint64) bool {
	i := d.find(likes)
	if i < 0 {
		return false
	}
	(*d)[i].open++
	return true
}

// gone records that an attempt has ended without a judgement.
func (d *doubts) gone(v *visit) {
	if i := d.find(v.likes); i >= 0 && v.doubt {
		(*d)[i].open = max((*d)[i].open-1, 0)
	}
}

// failed records that an attempt has failed.
func (d *doubts) failed(v *visit, now time.Time, core *health.Health) {
	d.gone(v)
	i := d.find(v.likes)
	if i < 0 {
		if len(*d) == maxDoubts {
			d.judge(0, core)
		}
		*d = append(*d, doubt{likes: v.likes})
		i = len(*d) - 1
	}
	o := &(*d)[i]
	o.failures, o.last = append(o.failures, failure{v.Visit, v.ref}), now
	if len(o.failures) == maxFailures {
		d.judge(i, core)
	}
}

// served records that a request was served: the endpoints that failed it before are at fault.
func (d *doubts) served(v *visit, core *health.Health) {
	i := d.find(v.likes)
	if i < 0 {
		return
	}
	for _, f := range (*d)[i].failures {
		if f.ref == v.ref {
			core.Undecided(f.visit)
		} else {
			core.Failed(f.visit, false)
		}
	}
	*d = slices.Delete(*d, i, i+1)
}

// settle judges the requests that were not retried.
func (d *doubts) settle(now time.Time, core *health.Health) {
	for i := len(*d) - 1; i >= 0; i-- {
		since := now.Sub((*d)[i].last)
		if (*d)[i].open == 0 && (since >= triedWithin || since < 0) { // negative: the clock was set back
			d.judge(i, core)
		}
	}
}

// judge ends a doubt without a success: if several endpoints have failed the
// request, it is at fault; if only one was tried, that endpoint is.
func (d *doubts) judge(i int, core *health.Health) {
	failures := (*d)[i].failures
	several := slices.ContainsFunc(failures, func(f failure) bool { return f.ref != failures[0].ref })
	for _, f := range failures {
		if several {
			core.Undecided(f.visit)
		} else {
			core.Failed(f.visit, false)
		}
	}
	*d = slices.Delete(*d, i, i+1)
}
