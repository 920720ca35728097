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
			return tooLong(f.field)
		case !utf8.ValidString(f.name):
			return &endpick.RequestError{Field: f.field, Reason: "is not valid UTF-8"}
		}
	}
	return nil
}

func tooLong(field string) error {
	return &endpick.RequestError{Field: field, Reason: "is longer than " + strconv.Itoa(maxName) + " bytes"}
}

// prepare reads the request.
func (tr *trip) prepare() error {
	t, in := tr.t, tr.in
	if err := checkPath(in.URL); err != nil {
		return err
	}
	body, unpacked, err := readBody(in, t.config.MaxBodyBytes)
	if err != nil {
		return err
	}
	c, err := parse(apiOf(in.Method, in.URL.Path), in.Header, body, t.config.MaxItems)
	if err != nil {
		return err
	}
	req := &tr.req
	req.Model = c.model
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
	if tr.promptBytes, err = c.readPrompt(in.Context(), req, t.scope(&c, req), tr.rates); err != nil {
		return err
	}
	req.Stream = c.stream
	tr.call, tr.unpacked = &c, unpacked
	tr.model, tr.metered, tr.responses, tr.maxTokens = c.model, c.api != other, c.responses(), c.maxTokens
	pieces := [][]byte{c.body}
	if !t.config.DisableUsage {
		pieces, tr.hideUsage = c.askForUsage()
	}
	tr.payload = newPayload(pieces)
	return nil
}

// memory is what the request holds while it waits: the body and the blocks.
func (tr *trip) memory() int {
	return cap(tr.call.body) + 8*cap(tr.req.Blocks)
}
