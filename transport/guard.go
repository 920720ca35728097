package transport

import (
	"context"
	"net/http"

	"github.com/endpick/endpick"
)

// Callbacks belong to the host and may panic, even in goroutines where an
// unrecovered panic would end the process. A panic costs only its own record or
// warning or, in Describe, its own request; it is counted and reported.

// guard must be deferred around a call into the host.
func (t *Transport) guard(in *http.Request, callback string) {
	if v := recover(); v != nil {
		t.panicked(in, callback, v)
	}
}

func (t *Transport) panicked(in *http.Request, callback string, v any) error {
	err := &endpick.PanicError{Stage: "transport." + callback, Value: v}
	t.panics.Add(1)
	t.warn(in, err)
	return err
}

// warn calls Config.Warn, and ignores a panic of it.
func (t *Transport) warn(in *http.Request, err error) {
	if t.config.Warn == nil {
		return
	}
	defer func() {
		if recover() != nil {
			t.panics.Add(1)
		}
	}()
	t.config.Warn(in, err)
}

// tokens calls Config.Tokens. If that panics, the prompt is cut by its text.
func (t *Transport) tokens(ctx context.Context, req *endpick.Request, path string, body []byte) (ids []uint32, rest int) {
	defer t.guard(nil, "Config.Tokens")
	return t.config.Tokens(ctx, req, path, body)
}

// describe calls Config.Describe.
func (tr *trip) describe(body []byte, req *endpick.Request) (err error) {
	if tr.t.config.Describe == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = tr.t.panicked(tr.in, "Config.Describe", v)
		}
	}()
	tr.t.config.Describe(tr.in, body, req)
	return nil
}
