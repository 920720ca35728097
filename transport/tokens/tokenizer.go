package tokens

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick/transport/internal/host"
)

// Tokenizer returns the token ids of a request's prompt, as the engine makes them. Path
// and body are those of the request; the body must not be changed or kept. It must be
// safe for concurrent use.
type Tokenizer interface {
	Tokens(ctx context.Context, path string, body []byte) ([]uint32, error)
}

// ErrNoPrompt: the request has no single prompt, or is of an API whose prompts the
// engine can't tokenize.
var ErrNoPrompt = errors.New("tokens: the request has no prompt")

// maxAnswer limits the length of an engine's answer, beyond the ids of any context.
const maxAnswer = 64 << 20

// Rendering asks vLLM or SGLang at a URL such as http://10.0.0.7:8000. They render chats,
// completions, messages and responses at the paths of these APIs followed by /render. Where
// that is missing or switched off (vLLM's --enable-scale-out), which is detected, chats and
// completions are rendered at /tokenize. The client sends the requests; nil: one that follows no
// redirects and uses no proxy.
func Rendering(url string, client *http.Client) Tokenizer {
	return &rendering{url: strings.TrimSuffix(url, "/"), client: client}
}

type rendering struct {
	url    string
	client *http.Client
	old    atomic.Bool // it has no /render, or not for clients
}

func (e *rendering) Tokens(ctx context.Context, path string, body []byte) ([]uint32, error) {
	path = "/" + strings.Trim(path, "/")
	also := path == "/v1/chat/completions" || path == "/v1/completions" // at /tokenize
	if !also && path != "/v1/messages" && path != "/v1/responses" {
		return nil, ErrNoPrompt
	}
	if !e.old.Load() {
		var answer rendered
		err := ask(ctx, e.client, e.url+path+"/render", body, &answer)
		var status statusError
		if !errors.As(err, &status) || status != http.StatusNotFound && status != http.StatusMethodNotAllowed && status != http.StatusForbidden {
			return answer.ids, err
		}
	}
	if !also {
		return nil, ErrNoPrompt
	}
	var answer struct{ Tokens []uint32 }
	if err := ask(ctx, e.client, e.url+"/tokenize", body, &answer); err != nil {
		return nil, err
	}
	e.old.Store(true)
	return some(answer.Tokens)
}

// rendered is one prompt, or a list as for completions.
type rendered struct{ ids []uint32 }

type renderedPrompt struct {
	TokenIDs []uint32 `json:"token_ids"`
}

// UnmarshalJSON implements [json.Unmarshaler].
func (r *rendered) UnmarshalJSON(b []byte) error {
	var one renderedPrompt
	if b = bytes.TrimSpace(b); len(b) > 0 && b[0] == '[' {
		var all []renderedPrompt
		if err := json.Unmarshal(b, &all); err != nil {
			return err
		}
		if len(all) != 1 {
			return ErrNoPrompt
		}
		one = all[0]
	} else if err := json.Unmarshal(b, &one); err != nil {
		return err
	}
	var err error
	r.ids, err = some(one.TokenIDs)
	return err
}

func some(ids []uint32) ([]uint32, error) {
	if len(ids) == 0 {
		return nil, errors.New("tokens: the answer has no token ids")
	}
	return ids, nil
}

// Llama asks a server of llama.cpp at a URL such as http://10.0.0.7:8080: /apply-template
// for a chat, and /tokenize. The client is as for [Rendering].
func Llama(url string, client *http.Client) Tokenizer {
	return &llama{strings.TrimSuffix(url, "/"), client}
}

type llama struct {
	url    string
	client *http.Client
}

func (e *llama) Tokens(ctx context.Context, path string, body []byte) ([]uint32, error) {
	var prompt struct{ Prompt string }
	switch path = strings.TrimPrefix("/"+strings.Trim(path, "/"), "/v1"); path {
	case "/chat/completions":
		if err := ask(ctx, e.client, e.url+"/apply-template", body, &prompt); err != nil {
			return nil, err
		}
	case "/completions", "/completion":
		var members map[string]json.RawMessage // by their exact names, as in the engine
		if json.Unmarshal(body, &members) != nil || json.Unmarshal(members["prompt"], &prompt.Prompt) != nil {
			return nil, ErrNoPrompt
		}
	default:
		return nil, ErrNoPrompt
	}
	// The options that the server itself uses for prompts.
	content, err := json.Marshal(map[string]any{"content": prompt.Prompt, "add_special": true, "parse_special": true})
	if err != nil {
		return nil, err
	}
	var answer struct{ Tokens []uint32 }
	if err := ask(ctx, e.client, e.url+"/tokenize", content, &answer); err != nil {
		return nil, err
	}
	return some(answer.Tokens)
}

// statusError is a status other than 200.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("tokens: the engine answers %d", int(e)) }

// direct keeps as many connections as [Config.MaxCalls] by default, and connecting takes no
// longer than [Config.GiveUp] by default.
var direct = host.Client(2*time.Second, 64)

// ask posts JSON and reads the answer.
func ask(ctx context.Context, c *http.Client, url string, body []byte, answer any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if c == nil {
		c = direct
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		host.Drain(resp, 64<<10)
		return statusError(resp.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return err
	}
	return json.Unmarshal(text, answer)
}
