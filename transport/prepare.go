package transport

import (
	"github.com/endpick/endpick/transport/internal/dialect"
	"github.com/endpick/endpick/transport/internal/target"
)

// prepare reads the request.
func (tr *trip) prepare() error {
	t, in := tr.t, tr.in
	if err := target.CheckPath(in.URL); err != nil {
		if in.Body != nil {
			in.Body.Close()
		}
		return err
	}
	body, unpacked, err := readBody(in, t.config.MaxBodyBytes)
	if err != nil {
		return err
	}
	call, err := t.desk.Reader.Read(dialect.Incoming{Method: in.Method, Path: in.URL.Path, Query: in.URL.RawQuery, Header: in.Header, Body: body})
	if call != nil {
		for _, w := range call.Warnings {
			tr.warn(w)
		}
		tr.Request = call.Request // for the record, even if it is refused
	}
	if err != nil {
		return err
	}
	if err := tr.describe(body, &call.Request); err != nil {
		return err
	}
	tr.slo, tr.model = call.Request.SLO, call.Model()
	if err := tr.Prompt(in.Context(), call); err != nil {
		return err
	}
	tr.call, tr.unpacked = call, unpacked
	tr.payload = newPayload(body, call.Body())
	tr.sketch, tr.salt = call.Sketch()
	if tr.seen != nil && t.hold != nil {
		tr.seen.ready = t.now()
	}
	return nil
}

// memory is how much the request holds while it waits: the body and the blocks.
func (tr *trip) memory() int { return tr.call.Memory() + 8*cap(tr.Request.Blocks) }
