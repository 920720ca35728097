package transport

import (
	"strconv"
	"unicode/utf8"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo"
)

// maxName is the length in bytes of the longest name of a model, an adapter, a
// session or a tenant. Names end up in tables, logs and metrics.
const maxName = 256

// checkNames refuses what can't be a name.
func checkNames(req *endpick.Request) error {
	for _, f := range [...]struct{ field, name string }{
		{"model", req.Model}, {"adapter", req.Adapter}, {SessionHeader, req.Session}, {"tenant", req.Tenant},
	} {
		switch {
		case len(f.name) > maxName:
			return &endpick.RequestError{Field: f.field, Reason: "is longer than " + strconv.Itoa(maxName) + " bytes"}
		case !utf8.ValidString(f.name):
			return &endpick.RequestError{Field: f.field, Reason: "is not valid UTF-8"}
		}
	}
	return nil
}

// prepare reads the request.
func (tr *trip) prepare() error {
	t, in := tr.t, tr.in
	if err := checkPath(in.URL); err != nil {
		return err
	}
	body, err := readBody(in, t.config.MaxBodyBytes)
	if err != nil {
		if gone := in.Context().Err(); gone != nil {
			return gone
		}
		return err
	}
	c, req := parse(apiOf(in), body), &tr.req
	tr.call = &c
	tr.model, tr.metered, tr.responses, tr.maxTokens = c.model, c.api != other, c.responses(), c.maxTokens
	req.Model = c.model
	req.Stream = c.stream
	req.Session = in.Header.Get(SessionHeader)
	if req.SLO, err = slo.FromHeader(in.Header); err != nil {
		tr.warn(err)
	}
	if v := in.Header.Get(PriorityHeader); v != "" {
		if req.Priority, err = strconv.Atoi(v); err != nil {
			req.Priority = 0
			tr.warn(&HeaderError{Header: PriorityHeader, Value: v})
		}
	}
	if err := checkNames(req); err != nil {
		return err // before a host sees them
	}
	if err := tr.describe(body); err != nil {
		return err
	}
	if err := checkNames(req); err != nil {
		return err
	}
	tr.slo = req.SLO
	tr.rates = t.learned.rates(c.model)
	tr.promptBytes = c.prompt(req, t.scope(&c, req), tr.rates)
	if !t.config.DisableUsage {
		tr.hideUsage = c.askForUsage()
	}
	tr.payload = &payload{bytes: c.body}
	return nil
}
