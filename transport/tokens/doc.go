// Package tokens gets the token ids of prompts from the engines, so that a router's blocks are
// those of the engines' KV-cache events.
//
//   - [Tokenizer]: who knows the ids: [Rendering] engines (vLLM, SGLang), [Llama] servers
//     (llama.cpp), or something of the host's own
//   - [Client], [Config]: asks one within a few milliseconds, caches the heads of
//     conversations, and falls back to text
//
// Package transport cuts prompts by them if its Config says so:
//
//	Tokens: func(ctx context.Context, req *endpick.Request, path string, body []byte) ([]uint32, int) {
//		return client.Tokens(ctx, path, body) // the client of req.Model, if there are several
//	}
package tokens
