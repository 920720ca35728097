package transport

import "github.com/endpick/endpick/internal/dialect"

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
	call, err := t.reader.Read(dialect.Incoming{Method: in.Method, Path: in.URL.Path, Header: in.Header, Body: body})
	if call != nil {
		for _, w := range call.Warnings {
			tr.warn(w)
		}
		tr.req = call.Request // for the record, also if it is refused
	}
	if err != nil {
		return err
	}
	if err := tr.describe(body, &call.Request); err != nil {
		return err
	}
	tr.slo, tr.model = call.Request.SLO, call.Model()
	err = call.Prompt(in.Context())
	tr.req = call.Request
	if err != nil {
		return err
	}
	call.Request.Blocks = nil // those of the trip are let go when the response is there
	tr.call, tr.unpacked = call, unpacked
	tr.payload = newPayload(call.Body())
	tr.pin(call.Endpoint())
	if tr.seen != nil {
		tr.seen.ready = t.now()
	}
	return nil
}

// pin leaves out all endpoints but the one that holds what the request refers to,
// if it is still there. If not, any endpoint can say that it has no such thing.
func (tr *trip) pin(id string) {
	if id == "" {
		return
	}
	var others []string
	found := false
	for _, e := range tr.t.config.Router.Endpoints() {
		if other := e.Candidate.Endpoint.ID; other != id {
			others = append(others, other)
		} else {
			found = !e.Removed
		}
	}
	if found {
		tr.tried = others
	}
}

// memory is what the request holds while it waits: the body and the blocks.
func (tr *trip) memory() int { return tr.call.Memory() + 8*cap(tr.req.Blocks) }
