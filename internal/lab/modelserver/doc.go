// Package modelserver serves a simulated model over HTTP: OpenAI's and Anthropic's
// streaming APIs, with the timing of [engine.Engine] in real time. It sleeps where a real
// server computes, so that a small machine can run several.
//
// An index of names:
//
//   - [Config], [New], [Server]: one model server, an [http.Handler]
//   - [Server.Serve], [Server.Close]: its life on a listener; Close is also how a test
//     kills it
//   - [Server.Load], [Server.Totals]: what /metrics says, without HTTP
//
// It answers
//
//	POST /v1/chat/completions, POST /v1/completions   whole or as server-sent events
//	POST /v1/messages, POST /v1/responses             likewise
//	POST /v1/messages/count_tokens
//	GET  /v1/models, GET /v1/models/{model}           the one that it has
//	GET  /health, GET /metrics, GET /version          as vLLM
//	POST /tokenize                                    and 403 at …/render, as vLLM
//
// The same requests in the same order give the same bytes, except for ids and times;
// streams have an event for each token.
//
// # Tokens
//
// The server has its own tokenizer: four bytes of text are a token, headers and ends of
// messages are special tokens, and no token crosses from one message to the next. The
// generated text is a function of the prompt alone and has the same tokens when it comes
// back as a message, so that the next turn of a conversation finds it in the cache.
//
// Thoughts come before the answer if the request asks for reasoning; they leave the prompt
// when the user has spoken again. A response of /v1/responses is kept for
// previous_response_id.
//
// A request that gives max_tokens generates exactly that many, as with vLLM's ignore_eos;
// one that gives none stops after [DefaultOutputTokens].
//
// # What a prompt may ask for
//
// Words in double brackets in the last message, if it is the user's:
//
//	[[call NAME {"a":1}]]                  call this tool, if the request has tools
//	[[error 429]]                          answer with an error in the API's form
//	[[error 503 retry-after=1 times=2]]    with a Retry-After, the first two times
//	[[cut 5]]                              break the connection after five tokens,
//	                                       or in the middle of a whole response
package modelserver
