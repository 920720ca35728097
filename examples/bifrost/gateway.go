package main

import (
	"encoding/json"
	"io"
	"net/http"

	bifrost "github.com/maximhq/bifrost/core"
	"github.com/maximhq/bifrost/core/providers/openai"
	"github.com/maximhq/bifrost/core/schemas"
)

// maxBody is the longest request body, in bytes.
const maxBody = 32 << 20

// gateway serves OpenAI's chat completions through Bifrost.
type gateway struct{ bifrost *bifrost.Bifrost }

func (g *gateway) ServeHTTP(w http.ResponseWriter, in *http.Request) {
	// Its end tells Bifrost, and endpick below it, that the client has left.
	ctx, cancel := schemas.NewBifrostContextWithCancel(in.Context())
	defer cancel()
	if in.Method != http.MethodPost || in.URL.Path != "/v1/chat/completions" {
		http.NotFound(w, in)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, in.Body, maxBody))
	var chat openai.OpenAIChatRequest
	if err == nil {
		err = json.Unmarshal(body, &chat)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	header := make(map[string]string, len(in.Header))
	for k := range in.Header {
		header[k] = in.Header.Get(k)
	}
	ctx.SetValue(schemas.BifrostContextKeyRequestHeaders, header) // including targets, sessions and priorities
	req := chat.ToBifrostChatRequest(ctx)
	req.Provider, req.Model = schemas.VLLM, chat.Model
	if chat.IsStreamingRequested() {
		g.stream(ctx, w, req)
		return
	}
	response, failure := g.bifrost.ChatCompletionRequest(ctx, req)
	if failure != nil {
		fail(w, failure)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(response)
}

func (g *gateway) stream(ctx *schemas.BifrostContext, w http.ResponseWriter, req *schemas.BifrostChatRequest) {
	chunks, failure := g.bifrost.ChatCompletionStreamRequest(ctx, req)
	if failure != nil {
		fail(w, failure)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for chunk := range chunks {
		var event any = chunk.BifrostChatResponse
		if chunk.BifrostError != nil {
			event = chunk.BifrostError
		}
		data, err := schemas.Marshal(event)
		if err != nil {
			return
		}
		if _, err := w.Write(append(append([]byte("data: "), data...), "\n\n"...)); err != nil {
			return
		}
		_ = http.NewResponseController(w).Flush()
		if chunk.BifrostError != nil {
			return
		}
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// fail sends a failure to the client.
func fail(w http.ResponseWriter, failure *schemas.BifrostError) {
	status := http.StatusInternalServerError
	if failure.StatusCode != nil {
		status = *failure.StatusCode
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(failure)
}
