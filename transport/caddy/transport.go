package caddy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"go.uber.org/zap"
)

func init() {
	caddy.RegisterModule(new(Transport))
	caddy.RegisterModule(new(Upstreams))
}

// placeholders is the prefix of the placeholders' names.
const placeholders = "http.reverse_proxy.endpick."

// Transport is a transport of Caddy's reverse_proxy that picks the server.
type Transport struct {
	Settings

	pool   *pool
	number uint64                              // of its configuration, for the pool
	sender atomic.Pointer[transport.Transport] // nil until the first request
	logger *zap.Logger
}

// Settings are the JSON configuration of a [Transport]; docs/caddy.md has the
// Caddyfile's directives.
type Settings struct {
	// Pool names what is kept over reloads. Transports of one pool in one
	// configuration must be equal. Empty: "default".
	Pool string `json:"pool,omitempty"`
	// Policy is a preset's name; see [all.ByName]. Empty: marginal-delay.
	Policy    string     `json:"policy,omitempty"`
	Endpoints []Endpoint `json:"endpoints,omitempty"`
	// Scrape is how often the servers' /metrics are read for their load.
	// Zero: never.
	Scrape caddy.Duration `json:"scrape,omitempty"`
	// Queue holds requests while the servers are full. Nil: no queue.
	Queue *Queue `json:"queue,omitempty"`
	// Tenant is the tenant of a request, with placeholders. Empty: there are
	// no tenants. It must not be something that clients can choose freely.
	Tenant string `json:"tenant,omitempty"`
	// TTFT and TPOT are the targets of requests that have none. Zero: none.
	TTFT caddy.Duration `json:"ttft,omitempty"`
	TPOT caddy.Duration `json:"tpot,omitempty"`

	// Seed breaks ties, from the first request of a pool on, so that two pools can be
	// compared. Zero: random, as it should be if several gateways share servers.
	Seed int `json:"seed,omitempty"`

	// The remaining fields are those of [transport.Config], with zero as the
	// default. HashKey is 64 hexadecimal digits; {env.NAME} and {file.PATH} are
	// replaced.
	MaxAttempts      int            `json:"max_attempts,omitempty"`
	MaxBodyBytes     int64          `json:"max_body_bytes,omitempty"`
	FirstByteTimeout caddy.Duration `json:"first_byte_timeout,omitempty"`
	StallTimeout     caddy.Duration `json:"stall_timeout,omitempty"`
	ResponseTimeout  caddy.Duration `json:"response_timeout,omitempty"`
	UpgradeTimeout   caddy.Duration `json:"upgrade_timeout,omitempty"`
	HashKey          string         `json:"hash_key,omitempty"`
	SharedCache      bool           `json:"shared_cache,omitempty"`
	DisableUsage     bool           `json:"disable_usage,omitempty"`
	Pass             []string       `json:"pass,omitempty"`
}

// CaddyModule implements [caddy.Module].
func (*Transport) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.reverse_proxy.transport.endpick", New: func() caddy.Module { return new(Transport) }}
}

// Provision implements [caddy.Provisioner]. It refuses invalid configurations,
// and changes nothing that is running.
func (t *Transport) Provision(ctx caddy.Context) error {
	t.logger = ctx.Logger()
	if t.HashKey != "" {
		// An unset variable must not result in a key of this process alone.
		if t.HashKey = caddy.NewReplacer().ReplaceKnown(t.HashKey, ""); t.HashKey == "" {
			return errors.New("endpick: hash_key: is empty when its placeholders are replaced")
		}
	}
	t.Pool = cmp.Or(t.Pool, "default")
	if err := t.check(); err != nil {
		return err
	}
	// Each configuration has its own instance of Caddy's modules, which identifies it.
	configuration, err := ctx.App("events")
	if err != nil {
		return err
	}
	shared, _, err := pools.LoadOrNew(t.Pool, func() (caddy.Destructor, error) { return new(pool), nil })
	if err != nil {
		return err
	}
	t.pool = shared.(*pool)
	t.number, err = t.pool.want(t.definition(), configuration)
	return err
}

// check tries out the configuration.
func (t *Transport) check() error {
	routing, err := t.routing()
	if err != nil {
		return err
	}
	sending, err := t.sending()
	if err != nil {
		return err
	}
	if sending.Router, err = endpick.New(routing); err != nil {
		return err
	}
	if t.Scrape < 0 || t.TTFT < 0 || t.TPOT < 0 {
		return errors.New("endpick: scrape, ttft or tpot is negative")
	}
	_, err = transport.New(sending)
	return err
}

// Cleanup implements [caddy.CleanerUpper].
func (t *Transport) Cleanup() error {
	if t.pool == nil {
		return nil
	}
	_, err := pools.Delete(t.Pool)
	return err
}

// RoundTrip implements [http.RoundTripper]. It turns errors into responses in the
// format of the API, as clients' libraries expect, and logs them.
func (t *Transport) RoundTrip(in *http.Request) (*http.Response, error) {
	sender := t.sender.Load()
	if sender == nil {
		var err error
		if sender, err = t.pool.apply(t); err != nil {
			return nil, err
		}
		t.sender.Store(sender)
	}
	r := &request{by: t}
	response, err := sender.RoundTrip(in.WithContext(context.WithValue(in.Context(), requestKey{}, r)))
	endpoint := ""
	switch {
	case err == nil:
		endpoint = response.Header.Get(transport.EndpointHeader)
		response.Header.Del(transport.EndpointHeader)
	case errors.Is(err, context.Canceled):
		return nil, err // the client has left
	default:
		response = failure(in, err)
		level := zap.InfoLevel
		if response.StatusCode >= http.StatusInternalServerError {
			level = zap.ErrorLevel
		}
		t.logger.Log(level, "request failed", zap.String("path", in.URL.Path), zap.Error(err))
	}
	explain(in, endpoint, &r.receipt)
	return response, nil
}

// CloseIdleConnections implements what http.Client.CloseIdleConnections calls.
func (t *Transport) CloseIdleConnections() {
	if sender := t.sender.Load(); sender != nil {
		sender.CloseIdleConnections()
	}
}

// failure is the response for an error.
func failure(in *http.Request, err error) *http.Response {
	status, header, body := transport.ErrorResponse(in.URL.Path, err)
	return &http.Response{
		Status: strconv.Itoa(status) + " " + http.StatusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)), Request: in,
	}
}

// request is what describe needs to know about a request, and what it returns. A
// pool's transport serves changing configurations.
type request struct {
	by      *Transport
	receipt endpick.Receipt
}

type requestKey struct{}

// explain sets the placeholders that say where a request went, and why.
func explain(in *http.Request, endpoint string, receipt *endpick.Receipt) {
	to, ok := in.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		return
	}
	to.Set(placeholders+"endpoint", endpoint)
	to.Set(placeholders+"policy", receipt.Policy)
	to.Set(placeholders+"model", receipt.Model)
	to.Set(placeholders+"input_tokens", receipt.InputTokens)
	to.Set(placeholders+"candidates", len(receipt.Verdicts))
	matched := 0
	if receipt.Policy != "" && receipt.Chosen >= 0 {
		matched = receipt.Verdicts[receipt.Chosen].Candidate.PrefixTokens
	}
	to.Set(placeholders+"matched_tokens", matched)
}

// describe sets what only the host knows about a request.
func describe(in *http.Request, _ []byte, req *endpick.Request) {
	r, ok := in.Context().Value(requestKey{}).(*request)
	if !ok {
		return
	}
	req.Receipt = &r.receipt
	if r.by.Tenant != "" {
		if values, ok := in.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
			req.Tenant = values.ReplaceAll(r.by.Tenant, "")
		}
	}
	if !req.SLO.Asked() {
		req.SLO = endpick.SLO{TTFT: time.Duration(r.by.TTFT), TPOT: time.Duration(r.by.TPOT)}
	}
}
