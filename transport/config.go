package transport

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport/health"
	"github.com/endpick/endpick/transport/internal/host"
	"github.com/endpick/endpick/transport/recording"
)

// Config configures a [Transport], or a [Dispatcher] for programs that send requests
// themselves. All fields except Router are optional.
type Config struct {
	// Router picks the endpoints. It must be set.
	Router *endpick.Router
	// Base sends the requests. Nil: an http.Transport made for many long
	// streams to few hosts, with HTTP/2 where a server offers it over TLS, and
	// in the clear to endpoints whose address starts with h2c://. A Base of
	// the caller's own gets such addresses as http:// and should neither limit
	// the wait for headers nor decompress.
	//
	// It is called once for each attempt, and once more where a server had closed an
	// idle connection. To have one span for each request, wrap the Transport.
	Base http.RoundTripper
	// Wrap returns what is called instead of Base, such as otelhttp.NewTransport around
	// it; New calls it once. The wrapper gets addresses as they are, including those with
	// h2c:// if Base is nil, and must pass them on unchanged. Nil: Base itself.
	Wrap func(base http.RoundTripper) http.RoundTripper

	// Health knows which endpoints fail, and may also check them. It must have the same
	// Router; several transports and dispatchers may share it. Nil: one of its own,
	// without active checks.
	Health *health.Monitor

	// MaxBodyBytes is the longest request body that is accepted. Bodies are read whole
	// before the endpoint is chosen. Zero: 32 MiB.
	MaxBodyBytes int64
	// MaxAttempts is how many endpoints one request is sent to at most; after that, it goes on only
	// while endpoints that were well refuse the connection. Zero: 3.
	// One: no retries.
	MaxAttempts int
	// RetryShare bounds the retries of requests that an endpoint may have
	// worked on, as a share of all requests. Zero: 0.2.
	RetryShare float64
	// RetryBurst is how many such retries may happen at once, as when a server dies. A
	// tenth of it is refilled each second. Zero: 100.
	RetryBurst int
	// Fallbacks is how many endpoints besides the chosen one [Attempt.Fallbacks]
	// returns at most, for programs that leave retries to others. It must be zero for a
	// Transport. Zero: none.
	Fallbacks int
	// FirstByteTimeout bounds the wait for the first byte of a stream's body. It must
	// leave time for the engine's queue and for prefill. Zero: two minutes.
	FirstByteTimeout time.Duration
	// StallTimeout bounds the time between two pieces of a stream. It must leave time
	// for the prefill of other requests, and for preemption. Before the first token
	// FirstByteTimeout applies instead, if it is longer. Zero: two minutes.
	StallTimeout time.Duration
	// LoadTimeout is FirstByteTimeout where the model has to be loaded into memory first, as
	// Endpoint.Residents says. Zero: ten minutes.
	LoadTimeout time.Duration
	// ResponseTimeout bounds one attempt at a response that does not stream,
	// from sending the request to the last byte. Zero: 10 minutes.
	ResponseTimeout time.Duration

	// KeepAlive is how long a stream may be silent before its client gets a comment, for
	// proxies that cut connections on which nothing comes, as during a long prefill or load. The
	// first comment may come before anything of an endpoint, after the status 200: other endpoints
	// may still be asked, but the receipt is that of the first decision, no header of the endpoint
	// is passed on, and an error comes as an event. Requests in the queue, Ollama's API and
	// responses that do not stream get no comments. Zero: never.
	KeepAlive time.Duration

	// UpgradeTimeout bounds the silence, in both directions, of a connection that has left
	// HTTP, such as a WebSocket; it is then closed. Zero: an hour.
	UpgradeTimeout time.Duration

	// Queue holds requests while the endpoints are full. Nil: each is routed when it
	// arrives, unless all endpoints for it have as many as their MaxInFlight.
	Queue *QueueConfig

	// Describe may set what the transport can't know, such as the Tenant and the
	// endpoints to Exclude or Avoid, and change what it read from the headers. It is called
	// before the prompt is hashed, with the model, the SLO, the priority and the
	// session filled in. A host with a tokenizer sets InputTokens, Blocks and BlockTokens
	// itself. It may set Receipt to one that is used for this request only; the Observation
	// has it, and it may be read when RoundTrip has returned.
	// It must not change body, nor keep body or req: their memory is reused. Nil: all
	// requests are of one tenant.
	Describe func(in *http.Request, body []byte, req *endpick.Request)
	// MaxItems is how many messages, parts, tools, tool calls and prompts a request
	// may have, counted together. Zero: 65,536. Short bodies may have fewer: see SECURITY.md.
	MaxItems int
	// SharedCache says that the engines share their prefix caches between
	// tenants. By default the blocks of two tenants are never the same. A
	// cache_salt in a request always keeps its blocks apart.
	SharedCache bool
	// HashKey is the secret key for hashing prompts, so that no client can make
	// prompts that collide with others. Gateways whose hashes or recordings are to be
	// compared need the same one; see also [Transport.SetHashKey]. Zero: a random one
	// for this process.
	HashKey prefix.Key
	// Tokens returns the engine's token ids of a prompt, or of its beginning, and how
	// many bytes of text follow; nil if they are not available in time. It is usually
	// tokens.Client.Tokens. It must not change or keep req or body. Nil: prompts are
	// cut into blocks by their text, which can't be matched with KV-cache events.
	Tokens func(ctx context.Context, req *endpick.Request, path string, body []byte) (ids []uint32, rest int)
	// DisableUsage stops the transport from asking for usage in streams whose clients
	// did not. Lengths are then estimated from the content.
	DisableUsage bool
	// DisableResume lets a stream that breaks off end there. By default, one whose endpoint
	// has an Engine that continues a text goes on at another such endpoint: chats and
	// completions with one response of text, without constraints on it.
	DisableResume bool
	// Decoders read bodies in content codings other than gzip and deflate, by name:
	// "zstd", "br". They are called concurrently, must limit the memory that a body can
	// make them take, and need no Close. A body in a coding that is not known is refused
	// with [ErrCoding].
	Decoders map[string]func(io.Reader) (io.Reader, error)
	// Names are what clients may ask for instead of models, by name, in bodies and, of a
	// Transport, in queries; see also [Transport.SetNames]. Nil: none.
	Names map[string]Name
	// Wake is called, in a goroutine of its own, for an endpoint with a WakeTime that does not answer
	// when a request has no other one, or is expected to wait longer for its first token than
	// that; not again for an endpoint within twice that time and half a minute. It may switch a machine on, or
	// start a server. A Transport's requests without another endpoint wait for it, up to LoadTimeout;
	// a Dispatcher's fail. Nil: nothing is woken.
	Wake func(*endpick.Endpoint)
	// Pass are requests to pass on although they belong to none of the APIs of
	// docs/apis.md, which alone reach endpoints by default: "GET /version", a path for any
	// method, or one that ends in a slash with all that is below it. "/" passes on
	// everything: clients then administer engines.
	Pass []string

	// EnableEndpointHeader names the endpoint in a response header. That reveals to
	// clients where prompts are cached, including those of others: for tests, and for
	// clients that trust each other.
	EnableEndpointHeader bool

	// Record is called with a record of each request when it has ended; see
	// [recording.NewWriter]. It is called concurrently. Nil: no records.
	Record func(recording.Request)
	// RecordText adds the text of prompts to records, up to 1 MiB of each, so that a
	// diagnosis can show differences. By default there are only hashes and lengths.
	RecordText bool
	// Observe is called when a request has ended, with each attempt and its failure,
	// what was predicted, and the outcome. It is not called for lists of models. It is
	// called concurrently, before Record, and while the client waits if there is no
	// response. Nil: not called.
	Observe func(*Observation)
	// Warn is called for problems with requests that were served anyway, such as a
	// malformed header, and for panics in these callbacks ([endpick.PanicError]; in is
	// nil for Tokens and Saturation). A dispatcher returns the former as
	// Call.Warnings. It is called concurrently. Nil: not called.
	Warn func(in *http.Request, err error)
}

// sending names a field that is set and only of use for sending requests; empty: none.
func (c *Config) sending() string {
	for field, set := range map[string]bool{
		"Base": c.Base != nil, "Wrap": c.Wrap != nil, "Queue": c.Queue != nil, "Describe": c.Describe != nil,
		"FirstByteTimeout": c.FirstByteTimeout != 0, "StallTimeout": c.StallTimeout != 0, "LoadTimeout": c.LoadTimeout != 0,
		"ResponseTimeout": c.ResponseTimeout != 0, "KeepAlive": c.KeepAlive != 0, "UpgradeTimeout": c.UpgradeTimeout != 0,
		"EnableEndpointHeader": c.EnableEndpointHeader, "Record": c.Record != nil, "RecordText": c.RecordText,
		"Observe": c.Observe != nil,
	} {
		if set {
			return field
		}
	}
	return ""
}

// validate checks the configuration, and fills in the defaults.
func (c *Config) validate() error {
	switch {
	case c.Router == nil:
		return check.Bad("transport.Config.Router", "is nil")
	case c.Health != nil && c.Health.Core().Router() != c.Router:
		return check.Bad("transport.Config.Health", "is over another router")
	case !(c.RetryShare >= 0 && c.RetryShare <= 1):
		return check.Bad("transport.Config.RetryShare", "is not within 0 and 1")
	}
	c.RetryShare = cmp.Or(c.RetryShare, 0.2)
	return cmp.Or(
		check.Default("transport.Config.MaxBodyBytes", &c.MaxBodyBytes, 32<<20),
		check.Default("transport.Config.MaxAttempts", &c.MaxAttempts, 3),
		check.Default("transport.Config.RetryBurst", &c.RetryBurst, 100),
		check.Default("transport.Config.Fallbacks", &c.Fallbacks, 0),
		check.Default("transport.Config.FirstByteTimeout", &c.FirstByteTimeout, 2*time.Minute),
		check.Default("transport.Config.StallTimeout", &c.StallTimeout, 2*time.Minute),
		check.Default("transport.Config.LoadTimeout", &c.LoadTimeout, 10*time.Minute),
		check.Default("transport.Config.ResponseTimeout", &c.ResponseTimeout, 10*time.Minute),
		check.Default("transport.Config.KeepAlive", &c.KeepAlive, 0),
		check.Default("transport.Config.UpgradeTimeout", &c.UpgradeTimeout, time.Hour),
	)
}

// validateSending is the rest of validate for a Transport.
func (c *Config) validateSending() error {
	if c.Fallbacks != 0 {
		return check.Bad("transport.Config.Fallbacks", "is for a Dispatcher: a Transport asks other endpoints itself")
	}
	for _, e := range c.Router.Endpoints() {
		if _, err := host.Parse(e.Candidate.Endpoint.Address); err != nil {
			what := "whose address is neither host:port nor an http, https or h2c URL"
			if e.Candidate.Endpoint.Address == "" {
				what = "which has no Address"
			}
			return check.Bad("transport.Config.Router", "has endpoint %q, %s", e.Candidate.Endpoint.ID, what)
		}
	}
	if c.Base == nil {
		c.Base = newBase()
	}
	if c.Wrap == nil {
		c.Wrap = func(base http.RoundTripper) http.RoundTripper { return base }
	}
	return nil
}
