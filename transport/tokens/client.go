package tokens

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/endpick/endpick/internal/check"
)

// Config configures a Client. Tokenizer is required; the zero value of everything else
// is its default.
type Config struct {
	Tokenizer Tokenizer
	// Within is how long a request waits for its ids. After that it is routed by the ids
	// of its beginning, if these are known, or by its text; the answer is still
	// remembered, for the next turn. Zero: 5 ms.
	Within time.Duration
	// GiveUp is the time limit of a call. Zero: 2 s.
	GiveUp time.Duration
	// MaxCalls limits the number of calls at one time. Further requests are not
	// tokenized. Zero: 64.
	MaxCalls int
	// MaxBytes limits the ids that are cached, 4 bytes each and about 150 per prompt.
	// Zero: 64 MiB.
	MaxBytes int64
	// MaxPrompt is the length of the longest body to tokenize, in bytes.
	// Zero: 8 MiB.
	MaxPrompt int
	// RestAfter is how many calls in a row may fail before the tokenizer is not called
	// for a while: RestFor at first (zero: 500 ms), doubling up to a minute. Zero: 5.
	RestAfter int
	RestFor   time.Duration
}

func (c *Config) validate() error {
	if c.Tokenizer == nil {
		return check.Bad("tokens.Config.Tokenizer", "is nil")
	}
	return cmp.Or(
		check.Default("tokens.Config.Within", &c.Within, 5*time.Millisecond),
		check.Default("tokens.Config.GiveUp", &c.GiveUp, 2*time.Second),
		check.Default("tokens.Config.MaxCalls", &c.MaxCalls, 64),
		check.Default("tokens.Config.MaxBytes", &c.MaxBytes, 64<<20),
		check.Default("tokens.Config.MaxPrompt", &c.MaxPrompt, 8<<20),
		check.Default("tokens.Config.RestAfter", &c.RestAfter, 5),
		check.Default("tokens.Config.RestFor", &c.RestFor, 500*time.Millisecond),
	)
}

const longestRest = time.Minute

// Stats counts what became of requests.
type Stats struct {
	Asked     uint64    // calls of the tokenizer
	Failed    uint64    // of these calls
	Hits      uint64    // prompts whose ids were cached
	Shared    uint64    // requests that waited for another's call
	Late      uint64    // requests whose ids were not available in time
	Heads     uint64    // requests routed by the ids of their head
	Declined  uint64    // requests without a call: too many, too long, a rest, no prompt
	Bytes     int64     // cached
	Prompts   int       // cached
	RestUntil time.Time // zero: the tokenizer has not been rested
}

// Client gets the ids of prompts within a short time limit. It is safe for concurrent
// use.
type Client struct {
	config Config
	seed   maphash.Seed

	mu    sync.Mutex // guards the fields below
	memo  memo
	calls map[uint64]*call
	stats Stats
	rest  time.Duration
	fails int
}

// call is a call of the tokenizer under way.
type call struct {
	done chan struct{}
	ids  []uint32 // once done; nil: failed
}

// New returns a client, or an [endpick.ConfigError].
func New(config Config) (*Client, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	return &Client{config: config, seed: maphash.MakeSeed(), memo: newMemo(config.MaxBytes), calls: map[uint64]*call{}}, nil
}

// Stats returns a snapshot.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Bytes, s.Prompts = c.memo.bytes, c.memo.order.Len()
	return s
}

// Tokens returns the ids of a request's prompt, or nil if they are not available in
// time. If only those of the beginning of the conversation are, rest is how many bytes
// of messages follow. It returns after Config.Within at the latest, and survives a
// panic of the tokenizer. The ids must not be changed.
func (c *Client) Tokens(ctx context.Context, path string, body []byte) (ids []uint32, rest int) {
	if len(body) > c.config.MaxPrompt {
		c.decline()
		return nil, 0
	}
	keys, lengths, ok := c.keys(path, body)
	if !ok {
		c.decline()
		return nil, 0
	}
	whole := keys[len(keys)-1]
	w := c.begin(ctx, whole, path, body)
	if w == nil {
		return c.known(keys, lengths)
	}
	select {
	case <-w.done: // perhaps long ago
	default:
		timer := time.NewTimer(c.config.Within)
		defer timer.Stop()
		select {
		case <-w.done:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	select {
	case <-w.done:
		if w.ids != nil {
			return w.ids, 0
		}
	default:
		c.mu.Lock()
		c.stats.Late++
		c.mu.Unlock()
	}
	return c.known(keys, lengths)
}

// known returns the ids of the longest head that is cached.
func (c *Client) known(keys []uint64, lengths []int) ([]uint32, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := len(keys) - 1; i >= 0; i-- {
		if ids := c.memo.get(keys[i]); ids != nil {
			c.stats.Heads++
			return ids, lengths[len(lengths)-1] - lengths[i]
		}
	}
	return nil, 0
}

func (c *Client) decline() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Declined++
}

// begin returns the call for a prompt: one that is done if it is cached, one
// that is under way, or a new one; nil if there may be none.
func (c *Client) begin(ctx context.Context, key uint64, path string, body []byte) *call {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if ids := c.memo.get(key); ids != nil {
		c.stats.Hits++
		return &call{done: closed, ids: ids}
	}
	if w := c.calls[key]; w != nil {
		c.stats.Shared++
		return w
	}
	if len(c.calls) >= c.config.MaxCalls || now.Before(c.stats.RestUntil) {
		c.stats.Declined++
		return nil
	}
	w := &call{done: make(chan struct{})}
	c.calls[key] = w
	c.stats.Asked++
	// It continues when the request can't wait for it, and body may change then.
	body = slices.Clone(body)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.config.GiveUp)
	go func() {
		defer cancel()
		ids, err := c.ask(ctx, path, body)
		c.end(key, w, ids, err)
	}()
	return w
}

var closed = func() chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}()

var errPanic = errors.New("tokens: the tokenizer panicked")

func (c *Client) ask(ctx context.Context, path string, body []byte) (ids []uint32, err error) {
	defer func() {
		if recover() != nil {
			err = errPanic
		}
	}()
	return c.config.Tokenizer.Tokens(ctx, path, body)
}

// end records the result of a call.
func (c *Client) end(key uint64, w *call, ids []uint32, err error) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.calls, key)
	var refused statusError
	switch {
	case err == nil && len(ids) > 0:
		w.ids = ids
		c.memo.put(key, ids)
		c.fails, c.rest = 0, 0
	case errors.Is(err, ErrNoPrompt), errors.As(err, &refused) && refused >= 400 && refused < 500:
		c.stats.Failed++ // one client's bad requests are no reason to stop calling for others
	default:
		c.stats.Failed++
		if c.fails++; c.fails >= c.config.RestAfter && !now.Before(c.stats.RestUntil) { // those under way prolong no rest
			c.rest = min(max(2*c.rest, c.config.RestFor), longestRest)
			c.stats.RestUntil = now.Add(c.rest)
		}
	}
	close(w.done)
}

// answering are members of a request that shape only its answer. Any other one may affect the prompt, among
// them those that no engine knows: `"Prompt"`, which some of Go's decoders take for "prompt".
var answering = map[string]bool{
	"stream": true, "stream_options": true, "max_tokens": true, "max_completion_tokens": true, "min_tokens": true, "n": true, "seed": true,
	"stop": true, "stop_sequences": true, "stop_token_ids": true, "ignore_eos": true, "temperature": true, "top_p": true, "top_k": true,
	"min_p": true, "frequency_penalty": true, "presence_penalty": true, "repetition_penalty": true, "logit_bias": true, "logprobs": true,
	"top_logprobs": true, "user": true, "metadata": true, "store": true, "service_tier": true, "safety_identifier": true,
	"prompt_cache_key": true, "cache_salt": true, "cache_prompt": true, "priority": true, "request_id": true, "rid": true, "kv_transfer_params": true,
}

// keys names a prompt and, if it is a conversation, its heads, the whole one last;
// lengths are the bytes of messages up to there. The names depend on a secret, so that
// nobody can make two prompts with the same name.
func (c *Client) keys(path string, body []byte) (keys []uint64, lengths []int, ok bool) {
	var members map[string]json.RawMessage // by their exact names, as in engines
	var messages []json.RawMessage
	if json.Unmarshal(body, &members) != nil || members["messages"] != nil && json.Unmarshal(members["messages"], &messages) != nil {
		return nil, nil, false
	}
	var h maphash.Hash
	h.SetSeed(c.seed)
	add := func(b []byte) {
		// Lengths precede the parts, so that no two lists give the same text.
		n := len(b)
		h.Write([]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)})
		h.Write(b)
	}
	add([]byte(path))
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if name != "messages" && !answering[name] {
			add([]byte(name))
			add(members[name])
		}
	}
	if prompt := members["prompt"]; len(messages) == 0 {
		return []uint64{h.Sum64()}, []int{len(prompt)}, len(prompt) > 0
	}
	length := 0
	for _, m := range messages {
		if !textOnly(m) {
			return nil, nil, false
		}
		add(m)
		length += len(m)
		keys, lengths = append(keys, h.Sum64()), append(lengths, length)
	}
	return keys, lengths, true
}

// textOnly reports whether a message consists of text only, which its tokens determine.
func textOnly(message json.RawMessage) bool {
	var m struct {
		Content json.RawMessage `json:"content"`
	}
	if json.Unmarshal(message, &m) != nil {
		return false
	}
	if len(m.Content) == 0 || m.Content[0] != '[' {
		return true
	}
	type part struct {
		Type string `json:"type"`
	}
	var parts []part
	if json.Unmarshal(m.Content, &parts) != nil {
		return false
	}
	return !slices.ContainsFunc(parts, func(p part) bool { return p.Type != "text" })
}
