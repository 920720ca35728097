package tokens_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/tokens"
)

func exact(router *endpick.Router) (*transport.Transport, error) {
	client, err := tokens.New(tokens.Config{Tokenizer: tokens.Rendering("http://10.0.0.9:8000", nil)}) // or tokens.Llama
	if err != nil {
		return nil, err
	}
	return transport.New(transport.Config{
		Router: router,
		Tokens: func(ctx context.Context, req *endpick.Request, path string, body []byte) ([]uint32, int) {
			return client.Tokens(ctx, path, body) // with several models, the client for req.Model
		},
	})
}

var _ = exact // in docs/kvevents.md

// A client asks an engine for the token ids of a prompt, and remembers them.
func Example() {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		io.Copy(io.Discard, in.Body)
		fmt.Println("engine:", in.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"token_ids":[1,15043,29991]}`)
	}))
	defer engine.Close()
	client, err := tokens.New(tokens.Config{Tokenizer: tokens.Rendering(engine.URL, nil), Within: time.Minute})
	if err != nil {
		panic(err)
	}
	body := []byte(`{"model":"llama","messages":[{"role":"user","content":"Hello!"}]}`)
	for range 2 {
		ids, rest := client.Tokens(context.Background(), "/v1/chat/completions", body)
		fmt.Println(ids, rest)
	}
	// Output:
	// engine: /v1/chat/completions/render
	// [1 15043 29991] 0
	// [1 15043 29991] 0
}
