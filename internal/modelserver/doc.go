// Package modelserver serves a model that does not exist: the OpenAI streaming
// API over HTTP, with the timing of [engine.Engine] on the wall clock. It sleeps
// where a real server computes, so that a small machine can run several.
//
// An index of names:
//
//   - [Config], [New], [Server]: one model server, an [http.Handler]
//   - [Server.Serve], [Server.Shutdown], [Server.Close]: its life on a listener;
//     Close is also how a test kills it
//   - [Server.Load], [Server.Totals]: what /metrics says, without HTTP
//
// It answers
//
//	POST /v1/chat/completions, POST /v1/completions   whole or as server-sent events
//	GET  /v1/models, GET /health, GET /metrics        the last with vLLM's names
//
// # Tokens
//
// The server has its own tokenizer: four bytes of text are a token, headers and
// ends of messages are special tokens, and no token crosses from one message to
// the next. The generated text is a function of the prompt alone and falls into
// the same tokens when it comes back as a message, so that the next turn of a
// conversation finds it in the cache.
//
// A request that gives max_tokens generates exactly that many, as with vLLM's
// ignore_eos; one that gives none stops after [DefaultOutputTokens].
package modelserver
