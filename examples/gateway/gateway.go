package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/quota"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/health"
	"github.com/endpick/endpick/transport/prometheus"
	"github.com/endpick/endpick/transport/recording"
	"github.com/endpick/endpick/transport/scrape"
)

// gateway is a reverse proxy in front of model servers. It is an http.Handler.
type gateway struct {
	http.Handler              // for clients
	admin        http.Handler // metrics and the debug page
	router       *endpick.Router
	transport    *transport.Transport
	health       *health.Monitor
	watch        *watch
	via          string                // what it adds to the Via header, to know its requests if they come back
	leaving      atomic.Bool           // /readyz says so
	stopping     atomic.Bool           // refuse new requests
	outdated     atomic.Pointer[error] // why the settings are older than their file; nil: they are not
	stop         func()                // stops polling

	log      *slog.Logger
	requests requestLog
	began    time.Time
	// policies are those that the router has had; settings, keys, engineKey and certificate
	// change with a reload.
	policies    policies
	settings    atomic.Pointer[settings] // those in force
	keys        atomic.Pointer[keyring]  // nil: no keys are required
	engineKey   atomic.Pointer[secret]
	certificate atomic.Pointer[tls.Certificate]
	tokenizers  atomic.Pointer[tokenizers]
	sleepers    atomic.Pointer[func(address string) bool]
	discovery   discovery
	hearing     hearing
	sharing     sharing
	inHand      atomic.Int64      // requests of clients
	longest     int64             // bytes of a body
	inspector   *scrape.Inspector // of the servers' capacities
	recent      recent
	quota       endpick.Admitter
	recorder    *recorder               // nil: no recording
	ended       func(recording.Request) // for tests: called for each request; may be nil
}

// tenantHeader names the organization to bill, in OpenAI's API.
const tenantHeader = "OpenAI-Organization"

// newGateway returns a gateway with valid settings. The endpoints are those of the settings, or
// embedded servers.
func newGateway(s *settings, endpoints []endpick.Endpoint, logger *slog.Logger) (_ *gateway, err error) {
	g := &gateway{began: time.Now(), via: "1.1 endpick-" + rand.Text(), log: logger, stop: func() {}, sharing: sharing{log: logger}}
	g.settings.Store(s)
	g.requests.log, g.requests.which = logger, s.Log.Requests
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close())
		}
	}()
	if g.quota, err = quota.New(quota.Config{Limits: g.limits}); err != nil {
		return nil, err
	}
	policy, err := g.policies.compose(s.Policy, s.Models, s.hasEvents())
	if err != nil {
		return nil, err
	}
	if s.Record != nil {
		if g.recorder, err = newRecorder(s.Record, g.log); err != nil {
			return nil, s.failed("record", err)
		}
	}
	if g.watch, err = newWatch(s.TrustHeaders, logger); err != nil {
		return nil, err
	}
	if g.router, err = endpick.New(endpick.Config{
		Policy: g.watched(policy), Endpoints: endpoints, Seed: s.Seed,
		Warn: func(err error) { g.log.Error("router", "error", err) },
	}); err != nil {
		return nil, err
	}
	if g.health, err = health.New(health.Config{Router: g.router, URL: g.page("/health"), OnChange: g.logHealth}); err != nil {
		return nil, err
	}
	g.watch.stories.health = g.unwell
	if err := g.setPolicy(policy, s); err != nil {
		return nil, err
	}
	if g.transport, err = transport.New(g.transportConfig(s)); err != nil {
		return nil, err
	}
	// The poller reports servers that can't be reached.
	if g.inspector, err = scrape.NewInspector(scrape.InspectorConfig{Router: g.router, Client: g.asking(1), Skip: g.unasked}); err != nil {
		return nil, err
	}
	g.hearing.log, g.hearing.router, g.hearing.inspector = logger, g.router, g.inspector
	if s.Discover != nil {
		if err := g.findEndpoints(s); err != nil {
			return nil, err
		}
	}
	if err := g.follow(s); err != nil {
		return nil, err
	}
	g.longest = cmp.Or(int64(s.Limits.Body), 32<<20) // as the transport
	g.serveClients(s.TrustHeaders, s.Origins, s.Price)
	// Until a server has said which models it has, it gets requests for any.
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	g.inspector.Poll(ctx)
	if g.stop, err = g.startPolling(s.Poll); err != nil {
		return nil, err
	}
	return g, nil
}

// transportConfig is what the settings say of requests and responses.
func (g *gateway) transportConfig(s *settings) transport.Config {
	return transport.Config{
		Router: g.router, Wrap: g.unlisted, Health: g.health, Queue: s.hold(), Names: s.names(), Wake: g.wake(s),
		SharedCache: s.SharedCache, HashKey: s.hashKey, Pass: s.Pass, Decoders: codings, EnableEndpointHeader: s.ServerHeader, DisableResume: s.NoResume,
		MaxBodyBytes: int64(s.Limits.Body), MaxItems: s.Limits.Items, MaxAttempts: s.Limits.Attempts,
		FirstByteTimeout: s.Timeouts.FirstByte, StallTimeout: s.Timeouts.Stall,
		ResponseTimeout: s.Timeouts.Response, UpgradeTimeout: s.Timeouts.Upgrade, KeepAlive: s.Timeouts.KeepAlive,
		Describe: g.describe(s.TrustHeaders), Tokens: g.tokens,
		Record: g.record, RecordText: s.Record != nil && s.Record.Text, Observe: g.observe, Warn: g.requests.warn,
	}
}

// watched adds the tenants' quotas to a policy, and the timing of its predictions.
func (g *gateway) watched(p endpick.Policy) endpick.Policy {
	p.Admitters = append(slices.Clone(p.Admitters), g.quota)
	p.Predictor = g.watch.metrics.Predictor(p.Predictor)
	return p
}

// setPolicy gives the router a policy, which shares its requests with other gateways if
// the settings say so. On an error nothing has changed.
func (g *gateway) setPolicy(p endpick.Policy, s *settings) error {
	replica, err := g.sharing.wanted(s, g.health)
	if err != nil {
		return err
	}
	p = g.watched(p)
	if replica != nil {
		p.Admitters = append(p.Admitters, replica.replica) // last, so that it observes admitted requests
	}
	if err := g.router.SetPolicy(p); err != nil {
		return err
	}
	g.sharing.take(replica, g.router)
	return nil
}

// apply applies settings while requests are served. On an error nothing has changed.
// Everything that stays keeps its state: endpoints their in-flight counts and their part of
// the index, policies their models.
func (g *gateway) apply(s *settings) error {
	policy, err := g.policies.compose(s.Policy, s.Models, s.hasEvents())
	if err != nil {
		return err
	}
	before, next := *g.sleepers.Load(), s.sleepers()
	either := func(address string) bool { return before(address) || next(address) }
	g.sleepers.Store(&either) // before a server is there that is to be asked nothing
	if err := g.findEndpoints(s); err != nil {
		g.sleepers.Store(&before)
		return err
	}
	// The settings are valid: the rest can only fail if a file was replaced meanwhile, and
	// then they are read again.
	if err := g.setPolicy(policy, s); err != nil {
		return err
	}
	g.settings.Store(s)
	g.transport.SetHashKey(s.hashKey)
	if err := g.transport.SetNames(s.names()); err != nil {
		return err
	}
	return g.follow(s)
}

// follow brings what depends on the settings, the policy and the endpoints up to date.
func (g *gateway) follow(s *settings) error {
	g.drain(s)
	latencies, delays := g.policies.measured(s)
	g.watch.follow(prometheus.Sources{Router: g.router, Transport: g.transport, Health: g.health, Index: g.policies.index, Latencies: latencies, Delay: delays})
	if err := g.tokenize(s); err != nil {
		return err
	}
	if err := g.hearing.follow(s, g.policies.precise); err != nil {
		return err
	}
	if t := s.TLS; t != nil {
		certificate, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return err
		}
		g.certificate.Store(&certificate)
	}
	g.keys.Store(newKeyring(s.Tenants))
	g.engineKey.Store(&s.EngineKey)
	sleepers := s.sleepers()
	g.sleepers.Store(&sleepers)
	g.watch.metrics.NameTenants(slices.Sorted(maps.Keys(s.Tenants))...)
	return nil
}

// serveClients builds the handlers.
func (g *gateway) serveClients(trustHeaders bool, origins []string, price priceSettings) {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { // the transport sets the target
			r.SetXForwarded()
			r.Out.Header.Add("Via", g.via)
			r.Out.Header.Set(idHeader, idOf(r.In.Context())) // a client may have named it in Connection
			if allows(origins, r.In.Header.Get("Origin")) {
				r.Out.Header.Del("Origin") // some servers refuse those that they don't know themselves
			}
			if !trustHeaders {
				r.Out.Header.Del(transport.PriorityHeader)
				r.Out.Header.Del(transport.SessionHeader)
			}
			if tenantOf(r.In.Context()) != nil || g.keys.Load() != nil {
				dropKeys(r.Out.Header)
			}
			if key := *g.engineKey.Load(); key != "" {
				r.Out.Header.Set("Authorization", "Bearer "+string(key))
			}
		},
		Transport:      final{g.watch.around(g.transport)},
		ModifyResponse: ownHeader,
		ErrorHandler:   transport.ErrorHandler,
		ErrorLog:       slog.NewLogLogger(g.log.Handler(), slog.LevelDebug), // the request's own line says it with its id
	}
	clients := identified(forPages(origins, g.admit(origins, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.ContainsFunc(r.Header["Via"], func(v string) bool { return strings.Contains(v, g.via) }) {
			g.refuse(w, r, http.StatusLoopDetected, "the request has come back: an endpoint leads to this gateway", "", "X-Should-Retry", "false")
			return
		}
		if g.stopping.Load() {
			g.refuse(w, r, http.StatusServiceUnavailable, "the gateway is stopping, try again", "", "Retry-After", "1")
			return
		}
		if g.leaving.Load() {
			w.Header().Set("Connection", "close") // the next request goes elsewhere
		}
		g.inHand.Add(1)
		defer g.inHand.Add(-1)
		proxy.ServeHTTP(w, r)
	}))))
	admin := http.NewServeMux()
	admin.Handle("GET /{$}", http.RedirectHandler("/debug/endpick", http.StatusFound))
	admin.HandleFunc("GET /debug/endpick", filtered(g.debug))
	admin.HandleFunc("GET /debug/endpick/requests", filtered(g.found))
	admin.HandleFunc("GET /debug/endpick/caches", g.caches(price))
	admin.Handle("GET /metrics", metricsPage(g))
	g.admin = admin
	// No ServeMux: it redirects paths such as //v1/models, which belong to the servers.
	g.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "PRI" { // the preface of HTTP/2 in the clear, which is switched off
			g.requests.warn(nil, errors.New("a client speaks HTTP/2 without TLS, which needs h2c: true"))
			http.Error(w, "HTTP/2 without TLS is switched off here", http.StatusHTTPVersionNotSupported)
			return
		}
		if (r.URL.Path == "/readyz" || r.URL.Path == "/health") && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
			g.ready(w, r)
			return
		}
		clients.ServeHTTP(w, r)
	})
}

// final keeps back what servers say before they answer (1xx): another one may answer then, and
// [httputil.ReverseProxy] would forget the headers that the client's response has already.
type final struct{ http.RoundTripper }

func (t final) RoundTrip(r *http.Request) (*http.Response, error) {
	if trace := httptrace.ContextClientTrace(r.Context()); trace != nil {
		trace.Got1xxResponse = nil
	}
	return t.RoundTripper.RoundTrip(r)
}

func (g *gateway) observe(r *transport.Observation) {
	if t := tenantOf(r.In.Context()); t != nil {
		r.Tenant = t.name // of a request that could not be read, too
	}
	r.Time = asSet(r.Time)
	g.watch.observe(r)
	g.requests.ended(r, r.Err)
}

func (g *gateway) record(r recording.Request) {
	r.Time = asSet(r.Time)
	g.recent.add(r)
	if g.recorder != nil {
		g.recorder.record(r)
	}
	if g.ended != nil {
		g.ended(r)
	}
}

// asSet is a time of the router's, whose clock goes on from how it was set at the start, by the clock as it is set now.
func asSet(t time.Time) time.Time { return time.Now().Add(-time.Since(t)) }

// describe tells the router what the transport can't know.
func (g *gateway) describe(trustHeaders bool) func(*http.Request, []byte, *endpick.Request) {
	return func(in *http.Request, body []byte, req *endpick.Request) {
		if t := tenantOf(in.Context()); t != nil {
			req.Tenant, req.Priority = t.name, t.priority
			if req.SLO == (endpick.SLO{}) {
				req.SLO = t.slo
			}
		} else if trustHeaders {
			req.Tenant = in.Header.Get(tenantHeader)
		}
		g.watch.describe(in, body, req)
	}
}

// ready answers 200 while some endpoint takes requests and may be alive, or can be woken by one: at /readyz and, like an
// engine, at /health.
func (g *gateway) ready(w http.ResponseWriter, _ *http.Request) {
	if g.leaving.Load() {
		http.Error(w, "the gateway is stopping", http.StatusServiceUnavailable)
		return
	}
	if alive, of := g.health.Alive(); alive == 0 && !g.settings.Load().wakes() {
		http.Error(w, fmt.Sprintf("none of %d endpoints is alive", of), http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("ready\n"))
}

// unwell says why an endpoint is avoided now; empty: not for its health.
func (g *gateway) unwell(id string) string {
	ref, _ := g.router.Ref(id)
	switch s := g.health.Core().Status(ref); {
	case s.State.Out():
		return s.State.String()
	case s.Full:
		return "full"
	case s.State == health.Returning:
		return "coming back"
	}
	return ""
}

// logHealth logs that an endpoint has become unhealthy, with the reason, or has recovered.
func (g *gateway) logHealth(s health.Status) {
	if !s.State.Out() {
		g.log.Info("health", "endpoint", s.Endpoint, "state", s.State.String())
		return
	}
	attributes := []any{"endpoint", s.Endpoint, "state", "out", "reason", s.State.String()}
	if err := cmp.Or(s.CheckErr, s.Err); err != nil {
		attributes = append(attributes, "error", err)
	}
	g.log.Warn("health", attributes...)
}

// pending is how many clients' requests are queued or in flight, without those of other gateways.
func (g *gateway) pending() int { return int(g.inHand.Load()) }

// close ends the gateway's background work.
func (g *gateway) close() error {
	g.stop()
	g.hearing.end()
	g.sharing.take(nil, g.router)
	g.discovery.end()
	if g.transport != nil {
		g.transport.CloseIdleConnections()
	}
	var errs []error
	if g.recorder != nil {
		errs = append(errs, g.recorder.close())
	}
	if g.watch != nil {
		errs = append(errs, g.watch.close())
	}
	return errors.Join(errs...)
}
