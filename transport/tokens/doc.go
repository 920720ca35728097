// Package tokens gets the token ids of prompts from the engines that will run them, so
// that a router's blocks are those that engines speak of in their KV-cache events.
//
//   - [Tokenizer]: who knows the ids: [Rendering] engines (vLLM, SGLang), [Llama] servers
//     (llama.cpp), or something of the host's own
//   - [Client], [Config]: asks one within a few milliseconds, remembers the heads of
//     conversations, and gives up in favour of text
//
// A host with package transport fills in the request in its Describe:
//
//	Describe: func(in *http.Request, body []byte, req *endpick.Request) {
//		scope := prefix.Scope{Key: key, Model: req.Model}
//		client.Fill(in.Context(), in.URL.Path, body, scope.Seed(), req)
//	}
package tokens
