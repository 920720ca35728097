package main

import (
	"net/http"

	bifrost "github.com/maximhq/bifrost/core"
	"github.com/maximhq/bifrost/core/providers/openai"
	"github.com/maximhq/bifrost/core/providers/utils"
	"github.com/maximhq/bifrost/core/schemas"
)

// wire is a request as a server with OpenAI's API gets it. If endpick does not read
// this kind of request, the body only has its model, and it is routed by load.
func wire(ctx *schemas.BifrostContext, req *schemas.BifrostRequest, model string) (path string, stream bool, body []byte, err error) {
	stream = bifrost.IsStreamRequestType(req.RequestType)
	var extra map[string]any
	var raw []byte
	var v any
	switch {
	case req.ChatRequest != nil:
		path, raw = "/v1/chat/completions", req.ChatRequest.RawRequestBody
		if b := openai.ToOpenAIChatRequest(ctx, req.ChatRequest); b != nil {
			b.Stream, extra, v = &stream, b.ExtraParams, b
		}
	case req.TextCompletionRequest != nil:
		path, raw = "/v1/completions", req.TextCompletionRequest.RawRequestBody
		if b := openai.ToOpenAITextCompletionRequest(req.TextCompletionRequest); b != nil {
			b.Stream, extra, v = &stream, b.ExtraParams, b
		}
	case req.ResponsesRequest != nil:
		path, raw = "/v1/responses", req.ResponsesRequest.RawRequestBody
		if b := openai.ToOpenAIResponsesRequest(ctx, req.ResponsesRequest); b != nil {
			b.Stream, extra, v = &stream, b.ExtraParams, b
		}
	case req.EmbeddingRequest != nil:
		path, raw = "/v1/embeddings", req.EmbeddingRequest.RawRequestBody
		if b := openai.ToOpenAIEmbeddingRequest(req.EmbeddingRequest); b != nil {
			extra, v = b.ExtraParams, b
		}
	default:
		path = "/v1/other"
	}
	if use, _ := ctx.Value(schemas.BifrostContextKeyUseRawRequestBody).(bool); use && raw != nil {
		return path, stream, raw, nil
	}
	if v == nil {
		v = map[string]any{"model": model}
	}
	if body, err = schemas.Marshal(v); err == nil && len(extra) > 0 {
		body, err = utils.MergeExtraParamsIntoJSON(body, extra)
	}
	return path, stream, body, err
}

// said is a response, or a chunk of one, as the server has sent it; nil if endpick does
// not read this kind. whole says that it contains the engine's final counts.
func said(resp *schemas.BifrostResponse) (data []byte, whole bool) {
	var v any
	switch {
	case resp.ChatResponse != nil:
		r := resp.ChatResponse
		v, whole = r, r.Usage != nil && r.Usage.PromptTokens > 0
	case resp.TextCompletionResponse != nil:
		r := resp.TextCompletionResponse
		v, whole = r, r.Usage != nil && r.Usage.PromptTokens > 0
	case resp.ResponsesResponse != nil:
		v = resp.ResponsesResponse
	case resp.ResponsesStreamResponse != nil:
		v = resp.ResponsesStreamResponse
	case resp.EmbeddingResponse != nil:
		v = resp.EmbeddingResponse
	default:
		return nil, false
	}
	data, err := schemas.Marshal(v)
	if err != nil {
		return nil, whole
	}
	return data, whole
}

// headers are those that Bifrost's HTTP server keeps of a request, including targets,
// sessions and priorities, without those that describe the body.
func headers(ctx *schemas.BifrostContext) http.Header {
	all, _ := ctx.Value(schemas.BifrostContextKeyRequestHeaders).(map[string]string)
	h := make(http.Header, len(all))
	for k, v := range all {
		h.Set(k, v)
	}
	h.Del("Content-Encoding")
	h.Del("Content-Type")
	return h
}
