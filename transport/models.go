package transport

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/choose"
)

const (
	// modelsFor is how long a list of models is good, modelsTimeout how long
	// engines may take to tell theirs.
	modelsFor     = 5 * time.Second
	modelsTimeout = 5 * time.Second
	// maxModelSources is how many engines are asked, maxModelsBytes how long
	// the list of one may be, maxModels how many are listed.
	maxModelSources = 64
	maxModelsBytes  = 1 << 20
	maxModels       = 4096
)

// modelList answers which models there are: those that the router knows its
// endpoints to serve, and those that engines tell of themselves which serve any.
// Engines are asked with the client's authorization, as in any request, and the
// answer is for this client's.
type modelList struct {
	mu            sync.Mutex
	models        *models
	at            time.Time
	authorization string
}

// list returns the response to a request for all models.
func (l *modelList) list(t *Transport, in *http.Request) (*http.Response, error) {
	models, err := l.get(t, in)
	if err != nil {
		return nil, err
	}
	return answer(in, models.body()), nil
}

// one returns the response to a request for one model.
func (l *modelList) one(t *Transport, in *http.Request, model string) (*http.Response, error) {
	models, err := l.get(t, in)
	if err != nil {
		return nil, err
	}
	for i, name := range models.names {
		if name == model {
			return answer(in, models.list[i]), nil
		}
	}
	if models.missing != nil { // who might have it
		return nil, models.missing
	}
	return nil, &endpick.NoEndpointsError{Model: model, Endpoints: t.config.Router.Stats().Endpoints}
}

func answer(in *http.Request, body []byte) *http.Response {
	return &http.Response{
		Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: in,
		Header:        http.Header{"Content-Type": {"application/json"}, "Content-Length": {strconv.Itoa(len(body))}},
		ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)),
	}
}

func (l *modelList) get(t *Transport, in *http.Request) (*models, error) {
	if in.Body != nil {
		in.Body.Close()
	}
	if err := in.Context().Err(); err != nil {
		return nil, err
	}
	now, authorization := t.now(), credentialsOf(in.Header)
	l.mu.Lock()
	if age := now.Sub(l.at); l.models != nil && age >= 0 && age < modelsFor && l.authorization == authorization {
		defer l.mu.Unlock()
		return l.models, nil
	}
	l.mu.Unlock()
	models, err := union(t, in)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.models, l.at, l.authorization = models, now, authorization
	return models, nil
}

func credentialsOf(h http.Header) string {
	return h.Get("Authorization") + "\n" + h.Get("X-Api-Key")
}

// union asks who has to be asked, and puts all together.
func union(t *Transport, in *http.Request) (*models, error) {
	models := new(models)
	var ask []*endpick.Endpoint
	endpoints := t.config.Router.Endpoints()
	for i := range endpoints {
		e := endpoints[i].Candidate.Endpoint
		switch {
		case endpoints[i].Removed:
		case len(e.Models)+len(e.Adapters) > 0:
			for _, name := range slices.Concat(e.Models, e.Adapters) {
				models.add(name, nil)
			}
		case len(ask) < maxModelSources:
			ask = append(ask, e)
		}
	}
	answers := make([][]json.RawMessage, len(ask))
	errs := make([]error, len(ask))
	ctx, cancel := context.WithTimeout(in.Context(), modelsTimeout)
	defer cancel()
	var all sync.WaitGroup
	for i, e := range ask {
		all.Add(1)
		go func() {
			defer all.Done()
			defer t.guard(in, "Config.Base")
			answers[i], errs[i] = modelsOf(ctx, t, in, e)
		}()
	}
	all.Wait()
	if err := in.Context().Err(); err != nil {
		return nil, err
	}
	for _, answer := range answers {
		for _, m := range answer {
			var named struct {
				ID string `json:"id"`
			}
			if json.Unmarshal(m, &named) == nil && named.ID != "" {
				models.add(named.ID, m)
			}
		}
	}
	for i, err := range errs {
		if err != nil && models.missing == nil {
			models.missing = &UpstreamError{Endpoint: ask[i].ID, Attempts: 1, Err: err}
		}
	}
	if len(models.list) == 0 {
		if models.missing != nil {
			return nil, models.missing
		}
		if len(endpoints) == 0 {
			return nil, &endpick.NoEndpointsError{}
		}
	}
	return models, nil
}

// modelsOf is what an engine tells of its models.
func modelsOf(ctx context.Context, t *Transport, in *http.Request, e *endpick.Endpoint) ([]json.RawMessage, error) {
	tr := &trip{t: t, in: in.Clone(ctx), payload: newPayload(nil, nil)}
	tr.in.Method, tr.in.Body = http.MethodGet, nil
	path, _, _ := strings.Cut(in.URL.Path, "/v1/models")
	tr.in.URL = &url.URL{Path: path + "/v1/models"}
	tr.in.Header = http.Header{"Accept-Encoding": {"identity"}}
	for _, name := range [...]string{"Authorization", "X-Api-Key"} {
		if v, ok := in.Header[name]; ok {
			tr.in.Header[name] = v
		}
	}
	out, err := tr.outgoing(ctx, e)
	if err != nil {
		return nil, err
	}
	response, err := t.wire.RoundTrip(out)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, choose.StatusError(response.StatusCode)
	}
	var list struct {
		Data []json.RawMessage `json:"data"`
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxModelsBytes))
	if err != nil {
		return nil, err
	}
	err = json.Unmarshal(body, &list)
	return list.Data, err
}

// models are those that were found, each once, in the order in which they were.
type models struct {
	list  []json.RawMessage
	names []string
	seen  map[string]bool
	// missing is why an engine has not told its models; nil: all that were asked
	// have.
	missing error
}

// add takes a model as an engine describes it; nil: by its name alone.
func (m *models) add(name string, as json.RawMessage) {
	if m.seen[name] || len(m.list) >= maxModels {
		return
	}
	if m.seen == nil {
		m.seen = map[string]bool{}
	}
	m.seen[name] = true
	if as == nil {
		// What OpenAI's clients want to be there, and what Anthropic's want.
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
