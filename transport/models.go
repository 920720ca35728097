package transport

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/endpick/endpick"
)

const (
	// modelsTimeout is how long engines may take to answer.
	modelsTimeout = 5 * time.Second
	// maxModelSources is how many engines are asked, maxModelCalls how many at one time
	// for all clients, maxModelsBytes the length of one's list, and maxModels how many
	// models are listed.
	maxModelSources = 64
	maxModelCalls   = 64
	maxModelsBytes  = 1 << 20
	maxModels       = 4096
)

// passedOn are the headers for asking an engine: the client's credentials, its
// page's origin, since engines name in the response who may read it, and the proxies on
// the way, who recognize a request that comes back.
var passedOn = [...]string{"Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "Origin", "Via"}

// listModels returns the response to a request for all models: those that the router knows
// its endpoints to serve, and those reported by engines that serve any. Engines are asked
// with the client's authorization, as for any request. If no models are found, an engine's
// refusal is the answer.
func (t *Transport) listModels(in *http.Request) (*http.Response, error) {
	models, err := union(t, in)
	if err != nil {
		return refusal(in, err)
	}
	return found(in, models.header, models.body()), nil
}

// oneModel returns the response to a request for one model.
func (t *Transport) oneModel(in *http.Request, model string) (*http.Response, error) {
	models, err := union(t, in)
	if err != nil {
		return refusal(in, err)
	}
	for i, name := range models.names {
		if name == model {
			return found(in, models.header, models.list[i]), nil
		}
	}
	if models.missing != nil { // an engine that did not answer might have it
		return refusal(in, models.missing)
	}
	return nil, &endpick.NoEndpointError{Model: model, Endpoints: t.config.Router.Stats().Endpoints}
}

func found(in *http.Request, more http.Header, body []byte) *http.Response {
	header := more.Clone()
	if header == nil {
		header = http.Header{}
	}
	header.Set("Content-Type", "application/json")
	return respond(in, http.StatusOK, header, body)
}

func respond(in *http.Request, status int, header http.Header, body []byte) *http.Response {
	header.Set("Content-Length", strconv.Itoa(len(body)))
	return &http.Response{
		Status: strconv.Itoa(status) + " " + http.StatusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: in,
		Header: header, ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)),
	}
}

// refusedModels is an engine's response other than a list of models, such as that
// the key is wrong.
type refusedModels struct {
	statusError
	header http.Header
	body   []byte
}

// refusal turns err into the engine's response, if it is one.
func refusal(in *http.Request, err error) (*http.Response, error) {
	var refused *refusedModels
	if errors.As(err, &refused) {
		return respond(in, int(refused.statusError), refused.header.Clone(), refused.body), nil
	}
	return nil, err
}

// modelsPath is the path for an engine's models, after any prefix that a gateway has
// added.
func modelsPath(in *http.Request) string {
	before, _, _ := strings.Cut(in.URL.Path, "/v1/models")
	return before + "/v1/models"
}

// union asks the engines that have to be asked, and joins the lists.
func union(t *Transport, in *http.Request) (*models, error) {
	if in.Body != nil {
		in.Body.Close()
	}
	if err := in.Context().Err(); err != nil {
		return nil, err
	}
	models := new(models)
	var ask []*endpick.Endpoint
	var named *endpick.Endpoint // one that need not be asked
	endpoints := slices.DeleteFunc(t.config.Router.Endpoints(), func(e endpick.EndpointStatus) bool { return e.Removed })
	for i := range endpoints {
		e := endpoints[i].Candidate.Endpoint
		switch {
		case len(e.Models)+len(e.Adapters) > 0:
			for _, name := range slices.Concat(e.Models, e.Adapters) {
				models.add(name, nil)
			}
			if !t.d.health.IsOut(e.ID) {
				named = e
			}
		case len(ask) < maxModelSources:
			ask = append(ask, e)
		}
	}
	ctx, cancel := context.WithTimeout(in.Context(), modelsTimeout)
	defer cancel()
	if len(ask) == 0 && named != nil && in.Header.Get("Origin") != "" {
		// A browser needs the engine's word on who may read the answer.
		if all, err := modelsOf(ctx, t, in, named); err == nil {
			models.header = all.header
		}
	}
	answers := make([]listed, len(ask))
	errs := make([]error, len(ask))
	var all sync.WaitGroup
	for i, e := range ask {
		all.Add(1)
		go func() {
			defer all.Done()
			defer t.d.guard(in, "Config.Base")
			answers[i], errs[i] = modelsOf(ctx, t, in, e)
		}()
	}
	all.Wait()
	if err := in.Context().Err(); err != nil {
		return nil, err
	}
	for _, answer := range answers {
		if models.header == nil {
			models.header = answer.header
		}
		for _, m := range answer.models {
			var named struct {
				ID string `json:"id"`
			}
			if json.Unmarshal(m, &named) == nil && named.ID != "" {
				models.add(named.ID, m)
			}
		}
	}
	var refused *refusedModels
	for i, err := range errs {
		// An engine's refusal tells the client more than that another one can't be reached.
		if err != nil && (models.missing == nil || refused == nil && errors.As(err, &refused)) {
			models.missing = &UpstreamError{Endpoint: ask[i].ID, Attempts: 1, Err: err}
		}
	}
	if len(models.list) == 0 {
		if models.missing != nil {
			return nil, models.missing
		}
		if len(endpoints) == 0 {
			return nil, &endpick.NoEndpointError{}
		}
	}
	return models, nil
}

// listed is an engine's list of models.
type listed struct {
	models []json.RawMessage
	header http.Header // for browsers; never nil
}

// modelsOf asks an engine, when one of modelCalls is free.
func modelsOf(ctx context.Context, t *Transport, in *http.Request, e *endpick.Endpoint) (all listed, err error) {
	select {
	case t.modelCalls <- struct{}{}:
		defer func() { <-t.modelCalls }()
	case <-ctx.Done():
		return all, ctx.Err()
	}
	ask := in.Clone(ctx)
	ask.Method, ask.Body = http.MethodGet, nil
	ask.URL = &url.URL{Path: modelsPath(in)}
	ask.Header = http.Header{"Accept-Encoding": {"identity"}}
	for _, name := range passedOn {
		if v, ok := in.Header[name]; ok {
			ask.Header[name] = v
		}
	}
	out, err := t.outgoing(ctx, &Call{in: ask, method: ask.Method}, e, newPayload(nil))
	if err != nil {
		return all, err
	}
	response, err := t.wire.RoundTrip(out)
	if err != nil {
		return all, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxModelsBytes))
	if response.StatusCode != http.StatusOK {
		return all, &refusedModels{statusError(response.StatusCode), response.Header, body}
	}
	if err != nil {
		return all, err
	}
	var list struct {
		Data []json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return all, err
	}
	all = listed{models: list.Data, header: http.Header{}}
	for name, v := range response.Header {
		if strings.HasPrefix(name, "Access-Control-") || name == "Vary" {
			all.header[name] = v
		}
	}
	return all, nil
}

// models is the union, each model once, in the order in which they were found.
type models struct {
	list  []json.RawMessage
	names []string
	seen  map[string]bool
	// header has the first engine's headers for browsers.
	header http.Header
	// missing is why an engine's models are missing; nil: none are.
	missing error
}

// add adds a model as an engine describes it; nil: by its name alone.
func (m *models) add(name string, as json.RawMessage) {
	if m.seen[name] || len(m.list) >= maxModels {
		return
	}
	if m.seen == nil {
		m.seen = map[string]bool{}
	}
	m.seen[name] = true
	if as == nil {
		// What OpenAI's clients expect, and what Anthropic's do.
		as, _ = json.Marshal(map[string]any{
			"id": name, "object": "model", "created": 0, "owned_by": "endpick",
			"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z",
		})
	}
	m.list = append(m.list, as)
	m.names = append(m.names, name)
}

func (m *models) body() []byte {
	type object map[string]any
	o := object{"object": "list", "data": m.list, "has_more": false, "first_id": nil, "last_id": nil}
	if n := len(m.list); n > 0 {
		o["first_id"], o["last_id"] = m.names[0], m.names[n-1]
	} else {
		o["data"] = []string{}
	}
	b, _ := json.Marshal(o)
	return b
}
