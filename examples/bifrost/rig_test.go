package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/modelserver"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	bifrost "github.com/maximhq/bifrost/core"
	"github.com/maximhq/bifrost/core/schemas"
	"github.com/stretchr/testify/assert"
)

// fault is what a server does instead of serving; nil: it serves.
type fault func(w http.ResponseWriter, in *http.Request)

// setup is a Bifrost with three simulated servers over real HTTP: a, b and c, preferred in that order.
type setup struct {
	*bifrost.Bifrost
	heard   *rig.Heard
	router  *endpick.Router
	adapter *Adapter
	servers map[string]*httptest.Server
	models  map[string]http.Handler

	mu     sync.Mutex
	faults map[string]fault
	ranks  []string // data-parallel ranks as servers received them
}

func newSetup(t *testing.T, change func(*endpick.Config, *AdapterConfig)) *setup {
	w := &setup{heard: &rig.Heard{Order: "abc"}, servers: map[string]*httptest.Server{}, models: map[string]http.Handler{}, faults: map[string]fault{}}
	config := endpick.Config{Policy: endpick.Policy{Matcher: rig.Must(prefix.NewIndex(prefix.IndexConfig{})), Scorers: []endpick.Weighted{{Scorer: w.heard, Weight: 1}}}}
	for _, id := range []string{"a", "b", "c"} {
		model := rig.Must(modelserver.New(modelserver.Config{Model: "m", Speed: 1000}))
		w.models[id] = model
		w.servers[id] = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, in *http.Request) {
			w.mu.Lock()
			f := w.faults[id]
			w.ranks = append(w.ranks, id+in.Header.Get("X-Data-Parallel-Rank"))
			w.mu.Unlock()
			if f != nil {
				f(rw, in)
				return
			}
			model.ServeHTTP(rw, in)
		}))
		t.Cleanup(func() {
			w.servers[id].Close()
			assert.NoError(t, model.Close())
		})
		config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: id, Address: w.servers[id].URL})
	}
	c := AdapterConfig{}
	if change != nil {
		change(&config, &c)
	}
	w.router = rig.Must(endpick.New(config))
	c.Router = w.router
	w.adapter = rig.Must(NewAdapter(c))
	w.Bifrost = rig.Must(bifrost.Init(context.Background(), schemas.BifrostConfig{
		Account:     &Account{Router: w.router, Provider: schemas.ProviderConfig{ConcurrencyAndBufferSize: schemas.ConcurrencyAndBufferSize{Concurrency: 50, BufferSize: 200}}},
		KeySelector: w.adapter.SelectKey, LLMPlugins: []schemas.LLMPlugin{w.adapter},
		Logger: bifrost.NewNoOpLogger(), InitialPoolSize: 10,
	}))
	t.Cleanup(w.Shutdown)
	return w
}

// breaks makes servers fail from now on.
func (w *setup) breaks(f fault, ids ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		w.faults[id] = f
	}
}

// idle waits until nothing is open and checks that nothing remains.
func (w *setup) idle(t *testing.T) {
	t.Helper()
	rig.Idle(t, w.router)
}

// said waits until nothing is open and returns how requests have ended.
func (w *setup) said(t *testing.T) string {
	t.Helper()
	w.idle(t)
	return w.heard.Said()
}

func newContext(t *testing.T) (*schemas.BifrostContext, context.CancelFunc) {
	ctx, cancel := schemas.NewBifrostContextWithCancel(context.Background())
	t.Cleanup(cancel)
	return ctx, cancel
}

func user(text string) schemas.ChatMessage {
	return schemas.ChatMessage{Role: schemas.ChatMessageRoleUser, Content: &schemas.ChatMessageContent{ContentStr: &text}}
}

func chat(tokens int, messages ...schemas.ChatMessage) *schemas.BifrostChatRequest {
	return &schemas.BifrostChatRequest{
		Provider: schemas.VLLM, Model: "m", Input: messages, Params: &schemas.ChatParameters{MaxCompletionTokens: &tokens},
	}
}

// serves asks, and is served.
func (w *setup) serves(t *testing.T, ctx *schemas.BifrostContext, req *schemas.BifrostChatRequest, stream bool) string {
	t.Helper()
	return rig.Must(w.ask(t, ctx, req, stream))
}

// ask sends a chat and returns the text of the answer, or a status and a message. Without a context it has a new one.
func (w *setup) ask(t *testing.T, ctx *schemas.BifrostContext, req *schemas.BifrostChatRequest, stream bool) (string, error) {
	t.Helper()
	if ctx == nil {
		ctx, _ = newContext(t)
	}
	if !stream {
		response, failure := w.ChatCompletionRequest(ctx, req)
		if failure != nil {
			return "", failed(failure)
		}
		return *response.Choices[0].Message.Content.ContentStr, nil
	}
	chunks, failure := w.ChatCompletionStreamRequest(ctx, req)
	if failure != nil {
		return "", failed(failure)
	}
	var text strings.Builder
	for chunk := range chunks {
		switch {
		case chunk.BifrostError != nil:
			return text.String(), failed(chunk.BifrostError)
		case chunk.BifrostChatResponse != nil:
			for _, c := range chunk.BifrostChatResponse.Choices {
				if c.ChatStreamResponseChoice != nil && c.Delta != nil && c.Delta.Content != nil {
					text.WriteString(*c.Delta.Content)
				}
			}
		}
	}
	return text.String(), nil
}

func failed(failure *schemas.BifrostError) error {
	status := 0
	if failure.StatusCode != nil {
		status = *failure.StatusCode
	}
	return fmt.Errorf("%d %s", status, failure.GetErrorString())
}
