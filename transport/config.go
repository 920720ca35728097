package transport

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/target"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport/health"
	"github.com/endpick/endpick/transport/observed"
	"github.com/endpick/endpick/transport/recording"
)

// Config says how a [Transport] is made. All fields but Router may be left out.
type Config struct {
	// Router picks the endpoints. It must be set.
	Router *endpick.Router
	// Base sends the requests. Nil: an http.Transport made for many long
	// streams to few hosts, with HTTP/2 where a server offers it over TLS, and
	// in the clear to endpoints whose address starts with h2c://. A Base of
	// the caller's own gets such addresses as http:// and should neither limit
	// the wait for headers nor decompress.
	Base http.RoundTripper

	// Health is told how requests fare, and may check the endpoints beside. It is over
	// the same Router, and transports over one router may share it. Nil: the
	// transport has one of its own, which checks nothing.
	Health *health.Monitor

	// MaxBodyBytes is the longest body of any request that is accepted: it is
	// read whole before the endpoint is chosen. Zero: 32 MiB.
	MaxBodyBytes int64
	// MaxAttempts is how many endpoints one request is sent to at most.
	// Zero: 3. One: nothing is tried again.
	MaxAttempts int
	// RetryShare bounds the retries of requests that an endpoint may have
	// worked on, as a share of all requests. Zero: 0.2.
	RetryShare float64
	// RetryBurst is how many such retries may come at once, as after the death
	// of a server. A tenth of it comes back each second. Zero: 100.
	RetryBurst int
	// FirstByteTimeout bounds the wait for the first byte of a stream, behind
	// its header. It must leave time for queue and prefill. Zero: two minutes.
	FirstByteTimeout time.Duration
	// StallTimeout bounds the silence of the endpoint within a stream. It must
	// leave time for the prefill of others, and for a sequence that is set
	// aside for lack of memory. Before the first token FirstByteTimeout applies
	// instead, if it is longer. Zero: two minutes.
	StallTimeout time.Duration
	// ResponseTimeout bounds one attempt at a response that does not stream,
	// from sending the request to the last byte. Zero: 10 minutes.
	ResponseTimeout time.Duration

	// Queue holds requests while the endpoints are full. Nil: each is routed
	// when it comes.
	Queue *QueueConfig

	// Describe may fill in what the transport can't know, such as the Tenant,
	// and may change what it found in the headers. It is called before the
	// prompt is hashed, with the model, the SLO, the priority and the session
	// filled in. A host with a tokenizer sets InputTokens, Blocks and
	// BlockTokens itself. It may set Receipt, to one for this request alone,
	// and read it once RoundTrip has returned. It must not change body, or keep
	// body or req: the memory of bodies is used again. Nil: there are no tenants.
	Describe func(in *http.Request, body []byte, req *endpick.Request)
	// MaxItems is how many messages, parts, tools, tool calls and prompts a
	// request may have, all counted together; of members of objects that are
	// looked into it may have sixteen times as many. Zero: 65,536. Short
	// bodies may have fewer, as SECURITY.md says.
	MaxItems int
	// SharedCache says that the engines share their prefix caches between
	// tenants. By default the blocks of two tenants are never the same. A
	// cache_salt in a request always keeps its blocks apart.
	SharedCache bool
	// HashKey is the secret that prompts are hashed with, so that no client can
	// make prompts that pass for others. Gateways whose hashes or recordings are
	// to be compared share one; see also [Transport.SetHashKey]. Zero: one that
	// this process has drawn at random.
	HashKey prefix.Key
	// Tokens returns the token ids of a request's prompt as the engines make them, or
	// those of its head, with the bytes of text that follow; nil if they are not to be
	// had in a time that a request can spare: what a tokens.Client of the request's
	// model says. It must not change or keep req, nor body, of which it may keep a
	// copy. Nil: prompts are cut into blocks by their text, which no engine speaks of
	// in its events.
	Tokens func(ctx context.Context, req *endpick.Request, path string, body []byte) (ids []uint32, rest int)
	// DisableUsage leaves out asking for usage in streams whose clients did
	// not. Lengths are then estimated from the content.
	DisableUsage bool
	// AllowAdministration passes on what administers an engine, such as
	// /sleep or /load_lora_adapter, instead of refusing it with [ErrForbidden].
	AllowAdministration bool
	// DenyUnknown refuses the paths of no API that is read, with
	// [ErrUnknownPath]. By default they are passed on.
	DenyUnknown bool

	// EnableEndpointHeader names the endpoint in a response header. It tells
	// clients who holds which prompt, others' prompts among them: for tests, and
	// for clients that trust each other.
	EnableEndpointHeader bool

	// Record is given what was seen of each request, when it has ended; see
	// [recording.Writer]. It is called from many goroutines. Nil: nothing is
	// recorded.
	Record func(recording.Request)
	// RecordText adds the text of prompts to records, up to 1 MiB of each, so that a
	// diagnosis can show what differs. By default there are only hashes and lengths.
	RecordText bool
	// Observe is told what became of each request, when it has ended: where it
	// was sent and why not served there, what was predicted, what came. Lists of
	// models are no requests. It is called from many goroutines, before Record,
	// and while the client waits if there is no response. Nil: nobody is told.
	Observe func(*observed.Request)
	// Warn is told what was wrong with a request that was served all the same,
	// such as a malformed header, and of panics of these callbacks
	// ([endpick.PanicError]; in is nil for Clock and Saturation). It is called from many
	// goroutines. Nil: nobody is told.
	Warn func(in *http.Request, err error)
	// Clock tells the time for records, health, the queue and the retry
	// budget. Nil: time.Now.
	Clock func() time.Time
}

func badConfig(field, reason string) error {
	return &endpick.ConfigError{Field: "transport.Config." + field, Reason: reason}
}

func (c *Config) validate() error {
	switch {
	case c.Router == nil:
		return badConfig("Router", "is nil")
	case c.Health != nil && c.Health.Router() != c.Router:
		return badConfig("Health", "is over another router")
	case c.MaxBodyBytes < 0:
		return badConfig("MaxBodyBytes", "is negative")
	case c.MaxItems < 0:
		return badConfig("MaxItems", "is negative")
	case c.MaxAttempts < 0:
		return badConfig("MaxAttempts", "is negative")
	case !(c.RetryShare >= 0 && c.RetryShare <= 1):
		return badConfig("RetryShare", "is not within 0 and 1")
	case c.RetryBurst < 0:
		return badConfig("RetryBurst", "is negative")
	case c.FirstByteTimeout < 0:
		return badConfig("FirstByteTimeout", "is negative")
	case c.StallTimeout < 0:
		return badConfig("StallTimeout", "is negative")
	case c.ResponseTimeout < 0:
		return badConfig("ResponseTimeout", "is negative")
	}
	for _, e := range c.Router.Endpoints() {
		if _, err := target.Parse(e.Candidate.Endpoint.Address); err != nil {
			return badConfig("Router", fmt.Sprintf("has endpoint %q whose address is neither host:port nor an http, https or h2c URL", e.Candidate.Endpoint.ID))
		}
	}
	if c.Base == nil {
		c.Base = newBase()
	}
	if c.MaxBodyBytes == 0 {
		c.MaxBodyBytes = 32 << 20
	}
	if c.MaxAttempts == 0 {
		c.MaxAttempts = 3
	}
	if c.RetryShare == 0 {
		c.RetryShare = 0.2
	}
	if c.RetryBurst == 0 {
		c.RetryBurst = 100
	}
	if c.FirstByteTimeout == 0 {
		c.FirstByteTimeout = 2 * time.Minute
	}
	if c.StallTimeout == 0 {
		c.StallTimeout = 2 * time.Minute
	}
	if c.ResponseTimeout == 0 {
		c.ResponseTimeout = 10 * time.Minute
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	return nil
}
