package transport

import (
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/dialect"
	"github.com/endpick/endpick/transport/internal/host"
)

// prepare reads the request.
func (rt *roundTrip) prepare() error {
	t, in := rt.t, rt.in
	if err := host.CheckPath(in.URL); err != nil {
		if in.Body != nil {
			in.Body.Close()
		}
		return err
	}
	body, unpacked, err := readBody(in, t.config.MaxBodyBytes)
	if err != nil {
		return err
	}
	call, err := t.d.reader.Read(dialect.Incoming{Method: in.Method, Path: in.URL.Path, Query: in.URL.RawQuery, Header: in.Header, Body: body})
	if call != nil {
		for _, w := range call.Warnings {
			rt.warn(w)
		}
		rt.request = call.Request // for the record, even if it is refused
	}
	if err != nil {
		return err
	}
	if err := rt.describe(body, &call.Request); err != nil {
		return err
	}
	rt.slo, rt.model = call.Request.SLO, call.Model()
	if err := rt.read(in.Context(), call); err != nil {
		return err
	}
	rt.call, rt.unpacked = call, unpacked
	rt.payload = newPayload(call.Body())
	rt.sketch, rt.salt = call.Sketch()
	if rt.observer != nil && t.queue != nil {
		rt.observer.ready = t.d.now()
	}
	return nil
}

// memory is how much the request holds while it waits: the body and the blocks.
func (rt *roundTrip) memory() int { return rt.call.Memory() + 8*cap(rt.request.Blocks) }

// describe calls Config.Describe.
func (rt *roundTrip) describe(body []byte, req *endpick.Request) (err error) {
	if rt.t.config.Describe == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = rt.t.d.panicked(rt.in, "Config.Describe", v)
		}
	}()
	rt.t.config.Describe(rt.in, body, req)
	return nil
}
