package dialect

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/diagnose/sketch"
	"github.com/endpick/endpick/slo"
	"github.com/endpick/endpick/transport/recording"
)

// Call is a request as its path, header and body describe it. It is not safe for
// concurrent use.
type Call struct {
	// Request is what will be routed. Read sets the model, the session, the
	// priority and the targets, Prompt the rest. In between, the host sets what it
	// knows better: the tenant, the adapter, the length and the blocks.
	Request endpick.Request
	// Warnings say what was wrong with headers, which are then treated as absent.
	Warnings []error

	reader *Reader
	request
	method, path string
	rates        rates
	// promptBytes of text are promptTokens by the engine's count, from which the
	// reader learns; 0: nothing to learn.
	promptBytes int
	hide        bool // remove usage from the stream
	saltHash    recording.Hash
	// Of a request for the rest of a stream; nil: it is for the whole.
	first     *Call // as it was read
	beginning *beginning
	answered  answer // by what was said
}

// Read reads what a request says about itself, except for its prompt. The error
// is an [endpick.RequestError].
func (r *Reader) Read(in Incoming) (*Call, error) {
	parsed, err := parse(apiOf(in.Method, in.Path), in.Header, in.Body, r.config.MaxItems)
	if err != nil {
		return nil, err
	}
	c := &Call{reader: r, method: in.Method, path: in.Path, request: parsed}
	if model, ok := ModelOf(in.Method, in.Path); ok {
		c.model = model // only the engine that has it knows its model
	} else if c.model == "" {
		c.model = realtimeModel(in.Method, in.Path, in.Query)
	}
	req := &c.Request
	req.Model = c.model
	if req.Session = in.Header.Get(SessionHeader); req.Session == "" {
		req.Session = c.sessionName(in.Header)
	}
	if req.SLO, err = slo.FromHeader(in.Header); err != nil {
		c.Warnings = append(c.Warnings, err)
	}
	if v := in.Header.Get(PriorityHeader); v != "" {
		if req.Priority, err = strconv.Atoi(v); err != nil {
			req.Priority = 0
			reason := strconv.Quote(v[:min(len(v), 40)]) + " is not an integer"
			c.Warnings = append(c.Warnings, &endpick.RequestError{Field: PriorityHeader, Reason: reason})
		}
	}
	return c, checkNames(req)
}

// Prompt sets the length and the blocks of the prompt unless the host has, and
// everything that depends on them. The error is that of ctx, or an
// [endpick.RequestError].
func (c *Call) Prompt(ctx context.Context) error {
	req, config := &c.Request, &c.reader.config
	if err := checkNames(req); err != nil {
		return err
	}
	scope := prefix.Scope{Key: *c.reader.hashKey.Load(), Model: c.model, Adapter: req.Adapter, Salt: c.salt}
	if !config.SharedCache {
		scope.Tenant = req.Tenant
	}
	c.rates = c.reader.learned.rates(c.model)
	if config.Sketch {
		c.sketcher = sketch.New(scope.Key, config.SketchText)
		c.sketcher.Decode = unquoted
		c.saltHash = c.sketcher.Name(c.salt)
	}
	if id := c.RefersTo(); id != "" {
		if c.before = c.reader.stored.get(req.Tenant, id); c.before != nil && req.Session == "" {
			req.Session = c.before.session
		}
	}
	known := req.InputTokens > 0 || len(req.Blocks) > 0
	var err error
	if c.promptBytes, err = c.readPrompt(ctx, req, scope, c.rates); err != nil {
		return err
	}
	req.Stream = c.stream
	if config.Tokens != nil && !known && !req.Exact && !c.unread {
		c.cutByTokens(ctx, scope.Seed())
	}
	return nil
}

// cutByTokens sets the blocks of the prompt from its token ids, if they are available.
func (c *Call) cutByTokens(ctx context.Context, seed prefix.Seed) {
	req := &c.Request
	ids, rest := c.reader.config.Tokens(ctx, req, c.path, c.body)
	if len(ids) == 0 {
		return
	}
	req.Blocks = prefix.AppendTokens(make([]uint64, 0, len(ids)/prefix.BlockTokens), seed, ids)
	req.InputTokens = len(ids) + toTokens(max(rest, 0), c.rates.prompts.perByte())
	req.BlockTokens, req.Exact = prefix.BlockTokens, true
	c.hasher = nil // the answer is text, which does not continue these
}

// Sketch describes the prompt for a recording, and returns a hash of the cache_salt.
// Call Prompt before. Nil: sketches are not enabled, or the prompt is not text.
func (c *Call) Sketch() (prompt *recording.Prompt, salt recording.Hash) {
	if c.sketcher != nil && len(c.sketcher.Prompt.Messages) > 0 {
		prompt = c.sketcher.Prompt
	}
	return prompt, c.saltHash
}

// RefersTo is the id of the stored response that the request names, or empty.
func (c *Call) RefersTo() string {
	if c.api == other {
		return storedID(c.path)
	}
	return plain(c.parts[previousPart])
}

// Path is that of the request.
func (c *Call) Path() string { return c.path }

// Invents reports whether a refusal may be for something that clients can invent: a stored response, or a prefix of
// the path, which may contain the name of a model.
func (c *Call) Invents(name string) bool {
	ends := c.api.paths
	if i := unreadAs(c.method, c.path); i >= 0 && c.api == other {
		ends = []string{unread[i].path}
	}
	own := slices.Contains(ends, c.path) || slices.Contains(ends, strings.TrimPrefix(c.path, "/v1"))
	return c.RefersTo() != "" || !own && strings.Contains(c.path, name)
}

// Endpoint is the ID of the only endpoint that can serve the request, because it
// holds what that refers to, such as the previous response, if this is known after
// Prompt. Empty: any may.
func (c *Call) Endpoint() string {
	if c.before == nil {
		return ""
	}
	return c.before.endpoint
}

// Body returns the body to send to the engine, in pieces that refer to the
// original. With ask, a stream whose client did not ask for usage asks for it.
func (c *Call) Body(ask bool) [][]byte {
	if c.hide = false; !ask || c.reader.config.DisableUsage {
		return [][]byte{c.body}
	}
	var pieces [][]byte
	pieces, c.hide = c.askForUsage()
	return pieces
}

// AsksUsage reports whether the last Body asks for usage that its client did not ask for.
func (c *Call) AsksUsage() bool { return c.hide }

// Metered reports whether the response will be read, so that it should come
// uncompressed.
func (c *Call) Metered() bool { return c.api != other }

// MaxTokens is the client's limit for the length of a response, or 0.
func (c *Call) MaxTokens() int { return c.maxTokens }

// Model is the model that the body asks for, whatever the host has changed;
// empty if there is none.
func (c *Call) Model() string { return c.model }

// Memory is how many bytes of the body the call holds.
func (c *Call) Memory() int { return cap(c.body) }

// Meter returns the meter of a response to the call. Call Body before. The meter
// does not refer to the body.
func (c *Call) Meter(lease endpick.Lease, clock func() time.Time) *Meter {
	m := &Meter{
		reader: c.reader, lease: lease, clock: clock,
		model: c.model, hide: c.hide, requested: c.responses(), promptBytes: c.promptBytes,
		hasher:   c.hasher,
		response: response{api: c.api, rates: c.rates, most: min(c.responses(), maxChoices)},
		origin:   stored{key: storedKey{tenant: c.Request.Tenant}, session: c.Request.Session},
	}
	if c.api.stores && string(c.parts[storePart]) != "false" {
		m.stores, m.origin.head = true, headOfResponse(&c.request)
		m.origin.size = int(float64(c.Request.InputTokens) / c.rates.prompts.perByte())
	}
	if c.api == other && c.before == nil { // another gateway may have asked for it, or this one before it was started
		m.answer.id = storedID(c.path)
	}
	m.resumable = c.Resumable()
	m.answer.wanted, m.answer.repeats = m.hasher != nil || m.stores, c.api.output != nil
	if c.beginning != nil {
		m.before, m.answer, m.requested = c.beginning, c.answered, 0
	}
	return m
}

// maxName is the longest name of a model, an adapter, a session or a tenant, in
// bytes. Names end up in tables, logs and metrics.
const maxName = 256

func checkNames(req *endpick.Request) error {
	for _, f := range [...]struct{ field, name string }{
		{"model", req.Model}, {"adapter", req.Adapter}, {SessionHeader, req.Session}, {"tenant", req.Tenant},
	} {
		switch {
		case len(f.name) > maxName:
			return &endpick.RequestError{Field: f.field, Reason: "is longer than " + strconv.Itoa(maxName) + " bytes"}
		case !utf8.ValidString(f.name):
			return &endpick.RequestError{Field: f.field, Reason: "is not valid UTF-8"}
		}
	}
	return nil
}

// Sessions are recognized from what clients send anyway. None of it is to be
// trusted: it only says which turns belong together.

// sessionHeaders name a session, in order of precedence. Our own header
// precedes them.
var sessionHeaders = [...]string{"X-Claude-Code-Session-Id", "X-Session-Affinity", "Session-Id", "Session_id"}

// sessionName is the name of the session from other sources than endpick's own header;
// empty: none. It does not refer to the body.
func (c *request) sessionName(header http.Header) string {
	for _, h := range sessionHeaders {
		if v := header[h]; len(v) > 0 && v[0] != "" {
			return validName(v[0])
		}
	}
	for _, v := range [...][]byte{c.parts[cacheKeyPart], field(c.parts[metadataPart], "user_id"), c.parts[userPart]} {
		if name := plain(v); name != "" {
			return validName(name)
		}
	}
	return ""
}

// validName makes a valid name: it replaces a string that is too long or not
// Unicode by a hash.
func validName(s string) string {
	if len(s) <= maxName && utf8.ValidString(s) {
		return strings.Clone(s)
	}
	return "hash-" + strconv.FormatUint(xxhash.Sum64String(s), 16)
}
