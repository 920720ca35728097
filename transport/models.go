package transport

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/dialect"
)

const (
	// modelsTimeout is how long engines may take to answer, modelsGrace how long after another has.
	modelsTimeout = 5 * time.Second
	modelsGrace   = time.Second
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

// models returns the response to a request for all models, or for the one of this name: those that
// the router knows its endpoints to serve, and those reported by engines that serve any. Engines
// are asked with the client's authorization, as for any request. If no models are found, an
// engine's refusal is the answer.
func (t *Transport) models(in *http.Request, list dialect.List, name string) (*http.Response, error) {
	all, err := t.union(in, list)
	if err == nil {
		i := slices.Index(all.names, name)
		switch {
		case name == "":
			return respond(in, http.StatusOK, all.header, all.body()), nil
		case i >= 0:
			return respond(in, http.StatusOK, all.header, all.list[i]), nil
		case all.missing == nil:
			return nil, &endpick.NoEndpointError{Model: name, Endpoints: t.config.Router.Stats().Endpoints}
		}
		err = all.missing // an engine that did not answer might have it
	}
	var refused *refusedModels
	if errors.As(err, &refused) {
		return respond(in, int(refused.statusError), refused.header, refused.body), nil
	}
	return nil, err
}

// refusedModels is an engine's response other than a list of models, such as that
// the key is wrong.
type refusedModels struct {
	statusError
	header http.Header
	body   []byte
}

func respond(in *http.Request, status int, header http.Header, body []byte) *http.Response {
	own := http.Header{}
	maps.Copy(own, header)
	if status == http.StatusOK {
		own.Set("Content-Type", "application/json")
	}
	own.Set("Content-Length", strconv.Itoa(len(body)))
	return &http.Response{
		Status: strconv.Itoa(status) + " " + http.StatusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: in,
		Header: own, ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)),
	}
}

// union asks the engines, and joins the lists.
func (t *Transport) union(in *http.Request, list dialect.List) (*models, error) {
	if in.Body != nil {
		in.Body.Close()
	}
	if err := in.Context().Err(); err != nil {
		return nil, err
	}
	all := &models{of: list, seen: map[string]bool{}}
	var ask []*endpick.Endpoint
	endpoints := slices.DeleteFunc(t.config.Router.Endpoints(), func(e endpick.EndpointStatus) bool { return e.Removed })
	for i := range endpoints {
		e := endpoints[i].Candidate.Endpoint
		// One whose names are known tells more of them, if it can.
		if len(ask) < maxModelSources && (len(namesOf(e)) == 0 || !t.d.health.IsOut(e.ID)) {
			ask = append(ask, e)
		}
	}
	ctx, cancel := context.WithTimeout(in.Context(), modelsTimeout)
	defer cancel()
	answers := make([]listed, len(ask))
	var asked sync.WaitGroup
	for i, e := range ask {
		asked.Go(func() {
			defer t.d.guard(in, "Config.Base")
			if answers[i] = t.modelsOf(ctx, in, list, e); answers[i].err == nil {
				time.AfterFunc(modelsGrace, cancel)
			}
		})
	}
	asked.Wait()
	if err := in.Context().Err(); err != nil {
		return nil, err
	}
	var refused *refusedModels
	for i, answer := range answers {
		if all.header == nil {
			all.header = answer.header
		}
		names := namesOf(ask[i])
		for _, m := range answer.models {
			if id := nameIn(m, list.ID); id != "" && (len(names) == 0 || slices.Contains(names, id)) {
				all.add(id, m)
			}
		}
		// An engine's refusal tells the client more than that another one can't be reached.
		if err := answer.err; err != nil && len(names) == 0 && (all.missing == nil || refused == nil && errors.As(err, &refused)) {
			all.missing = &UpstreamError{Endpoint: ask[i].ID, Attempts: 1, Err: err}
		}
	}
	for i := range endpoints {
		for _, name := range namesOf(endpoints[i].Candidate.Endpoint) {
			if list.Others(endpoints[i].Candidate.Endpoint.Engine) && !all.seen[name+":latest"] { // which is the same model
				all.add(name, nil)
			}
		}
	}
	if names := t.d.names.Load(); list.Others("") && (len(all.list) > 0 || all.missing == nil && len(endpoints) > 0) {
		for _, name := range slices.Sorted(maps.Keys(*names)) {
			all.add(name, nil)
		}
	}
	switch {
	case len(all.list) > 0, !list.Others(""):
		return all, nil
	case all.missing != nil:
		return nil, all.missing
	case len(endpoints) == 0:
		return nil, &endpick.NoEndpointError{}
	}
	return all, nil
}

// nameIn is the name of a model in a list; empty if it has none.
func nameIn(m json.RawMessage, id string) (name string) {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(m, &members)
	_ = json.Unmarshal(members[id], &name)
	return name
}

// namesOf are the names that an endpoint serves; none: it takes any.
func namesOf(e *endpick.Endpoint) []string { return slices.Concat(e.Models, e.Adapters) }

type listed struct {
	models []json.RawMessage
	header http.Header // for browsers; nil: there was no list
	err    error
}

// modelsOf asks an engine, when one of modelCalls is free.
func (t *Transport) modelsOf(ctx context.Context, in *http.Request, list dialect.List, e *endpick.Endpoint) (all listed) {
	select {
	case t.modelCalls <- struct{}{}:
		defer func() { <-t.modelCalls }()
	case <-ctx.Done():
		return listed{err: ctx.Err()}
	}
	ask := in.Clone(ctx)
	ask.Method, ask.Body = http.MethodGet, nil
	before, _, _ := strings.Cut(in.URL.Path, list.Path) // a gateway's prefix
	ask.URL = &url.URL{Path: before + list.Path}
	ask.Header = http.Header{"Accept-Encoding": {"identity"}}
	for _, name := range passedOn {
		if v, ok := in.Header[name]; ok {
			ask.Header[name] = v
		}
	}
	out, err := t.outgoing(ctx, &Call{in: ask, method: ask.Method}, e, newPayload(nil))
	if err != nil {
		return listed{err: err}
	}
	response, err := t.over(out)
	if err != nil {
		return listed{err: err}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxModelsBytes))
	switch code := statusError(response.StatusCode); {
	case code >= http.StatusBadRequest:
		return listed{err: &refusedModels{code, response.Header, body}}
	case code != http.StatusOK: // a redirect would tell the client where the engine is
		return listed{err: code}
	}
	var answer map[string]json.RawMessage
	if err = cmp.Or(err, json.Unmarshal(body, &answer)); err != nil {
		return listed{err: err}
	}
	all.header = http.Header{}
	if v := answer[list.Key]; v != nil {
		if err = json.Unmarshal(v, &all.models); err != nil {
			return listed{err: err}
		}
	}
	for name, v := range response.Header {
		if strings.HasPrefix(name, "Access-Control-") || name == "Vary" {
			all.header[name] = v
		}
	}
	return all
}

// models is the union, each model once, in the order in which they were found.
type models struct {
	of    dialect.List
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
	m.seen[name] = true
	if as == nil {
		as, _ = json.Marshal(m.of.Entry(name))
	}
	m.list = append(m.list, as)
	m.names = append(m.names, name)
}

func (m *models) body() []byte {
	o := map[string]any{m.of.Key: append([]json.RawMessage{}, m.list...)}
	if m.of.Key == "data" {
		o["object"], o["has_more"], o["first_id"], o["last_id"] = "list", false, nil, nil
		if n := len(m.list); n > 0 {
			o["first_id"], o["last_id"] = m.names[0], m.names[n-1]
		}
	}
	b, _ := json.Marshal(o)
	return b
}
