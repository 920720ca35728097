package main

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/quota"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/recording"
	"github.com/rs/cors"
)

type tenant struct {
	name     string
	priority int         // of its requests
	slo      endpick.SLO // of those without targets
	// reading is how many bytes of bodies are being read: those that its quota would refuse are
	// read first.
	reading atomic.Int64
	faults  few // limits the lines of the log
}

// maxReading is how many bodies of the greatest length a tenant may send at a time.
const maxReading = 4

// reads counts the body of a request while it is read. If that would be too much at a time, it
// returns false.
func (t *tenant) reads(r *http.Request, longest int64) bool {
	b := &readBody{ReadCloser: r.Body, tenant: t, most: maxReading * longest}
	if !b.count(max(r.ContentLength, 0)) {
		return false
	}
	r.Body = b
	return true
}

// readBody is a body that its tenant is sending.
type readBody struct {
	io.ReadCloser
	tenant           *tenant
	most, held, read int64 // bytes: at a time, counted, and read so far
	ended            bool
}

// count counts more bytes, unless they are too many.
func (b *readBody) count(n int64) bool {
	if now := b.tenant.reading.Add(n); now > b.most && now > n {
		b.tenant.reading.Add(-n)
		return false
	}
	b.held += n
	return true
}

func (b *readBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	if more := b.read - b.held; more > 0 && !b.ended && !b.count(more) { // its length was not known
		err = &http.MaxBytesError{Limit: b.most}
	}
	if err != nil {
		b.end()
	}
	return n, err
}

func (b *readBody) Close() error {
	b.end()
	return b.ReadCloser.Close()
}

func (b *readBody) end() {
	if !b.ended {
		b.ended = true
		b.tenant.reading.Add(-b.held)
	}
}

// keyring finds tenants by their keys. It is immutable.
//
// A client's key is looked up by its hash with a secret of this process: timing
// reveals nothing about the keys, since nobody can choose a key whose hash is close
// to another's. The result is compared again in constant time.
type keyring struct {
	secret [32]byte
	owners map[[32]byte]keyOwner
	names  map[recording.Hash]string // of the tenants, as in recordings
	limits map[string]quota.Limits   // by tenant
}

type keyOwner struct {
	sum    [32]byte // of the key
	tenant *tenant
}

// newKeyring returns the keyring of validated settings; nil: there are no tenants,
// and no keys are required.
func newKeyring(tenants map[string]tenantSettings) *keyring {
	if len(tenants) == 0 {
		return nil
	}
	k := &keyring{owners: map[[32]byte]keyOwner{}, names: map[recording.Hash]string{}, limits: map[string]quota.Limits{}}
	rand.Read(k.secret[:]) // never fails
	for name, t := range tenants {
		owner := &tenant{name: name, priority: int(t.Priority), slo: endpick.SLO{TTFT: t.SLO.TTFT, TPOT: t.SLO.TPOT}}
		k.limits[name] = quota.Limits{Rate: t.Quota.Rate, Burst: t.Quota.Burst, Requests: t.Quota.Requests}
		k.names[recording.NameHash(name)] = name
		for _, key := range t.Keys {
			sum, _ := keySum(string(key))
			k.owners[k.place(sum)] = keyOwner{sum, owner}
		}
	}
	return k
}

// tenantName is the name of the tenant with this hash in a recording, or the hash if
// there is no such tenant now; empty: no tenant.
func (g *gateway) tenantName(h recording.Hash) string {
	if h == 0 {
		return ""
	}
	if keys := g.keys.Load(); keys != nil && keys.names[h] != "" {
		return keys.names[h]
	}
	text, _ := h.MarshalText()
	return string(text)
}

func sumOf(key string) [32]byte { return sha256.Sum256([]byte(key)) }

// place is the key under which an owner is stored.
func (k *keyring) place(sum [32]byte) (p [32]byte) {
	mac := hmac.New(sha256.New, k.secret[:])
	mac.Write(sum[:])
	mac.Sum(p[:0])
	return p
}

// owner returns the tenant of a key, or nil.
func (k *keyring) owner(key string) *tenant {
	sum := sumOf(key)
	if found, ok := k.owners[k.place(sum)]; ok && subtle.ConstantTimeCompare(found.sum[:], sum[:]) == 1 {
		return found.tenant
	}
	return nil
}

// ownerOf returns the tenant of the keys in a request; nil if none of them is anybody's, or two are of
// different tenants. Agents send one for the gateway beside one that was meant for somebody else.
func (k *keyring) ownerOf(h http.Header) (owner *tenant) {
	for _, key := range keysIn(h) {
		switch found := k.owner(key); {
		case key == "" || found == nil:
		case owner != nil && owner != found:
			return nil
		default:
			owner = found
		}
	}
	return owner
}

// keysIn are the keys in a request, as the clients of the APIs send them.
func keysIn(h http.Header) (keys []string) {
	for _, name := range credentials {
		for _, v := range h[name] {
			if name == "Authorization" {
				scheme, rest, _ := strings.Cut(v, " ")
				if !strings.EqualFold(scheme, "Bearer") {
					continue
				}
				v = strings.TrimSpace(rest)
			}
			keys = append(keys, v)
		}
	}
	for _, p := range protocols(h) {
		if v, ok := strings.CutPrefix(p, keyProtocol); ok {
			keys = append(keys, v)
		}
	}
	return keys
}

// credentials are the headers with clients' keys: with tenants the gateway's, which engines don't see.
var credentials = [...]string{"Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key"}

// Browsers can't set headers of WebSockets: OpenAI's clients there send the key as a
// subprotocol with this prefix.
const (
	keyProtocol     = "openai-insecure-api-key."
	protocolsHeader = "Sec-Websocket-Protocol" // as http.Header spells it
)

// protocols are the subprotocols that a client of a WebSocket offers.
func protocols(h http.Header) (all []string) {
	for _, line := range h[protocolsHeader] {
		for p := range strings.SplitSeq(line, ",") {
			all = append(all, strings.TrimSpace(p))
		}
	}
	return all
}

func dropKeys(h http.Header) {
	for _, name := range credentials {
		h.Del(name)
	}
	offered := protocols(h)
	left := slices.DeleteFunc(slices.Clone(offered), func(p string) bool { return strings.HasPrefix(p, keyProtocol) })
	if len(left) < len(offered) {
		if h.Del(protocolsHeader); len(left) > 0 {
			h.Set(protocolsHeader, strings.Join(left, ", "))
		}
	}
}

// limits are a tenant's limits in the current settings.
func (g *gateway) limits(tenant string) quota.Limits {
	if keys := g.keys.Load(); keys != nil {
		return keys.limits[tenant]
	}
	return quota.Limits{}
}

type tenantKey struct{}

// tenantOf is the tenant of an admitted request; nil: there are no tenants.
func tenantOf(ctx context.Context) *tenant {
	t, _ := ctx.Value(tenantKey{}).(*tenant)
	return t
}

// allows reports whether pages of an origin may call.
func allows(origins []string, origin string) bool {
	return slices.Contains(origins, origin) || slices.Contains(origins, "*")
}

// forPages lets pages of these origins call the gateway from a browser, and answers browsers'
// preflights, which never have a key: no server sees one.
func forPages(origins []string, next http.Handler) http.Handler {
	return cors.New(cors.Options{
		AllowOriginFunc: func(origin string) bool { return allows(origins, origin) },
		AllowedMethods:  []string{http.MethodGet, http.MethodPost, http.MethodDelete}, AllowedHeaders: []string{"*"},
		ExposedHeaders: []string{"Retry-After", "X-Should-Retry", idHeader}, MaxAge: 600,
	}).Handler(next)
}

// ownHeader removes what a server would allow pages, and its id of the request: these are for the
// gateway to say. A stream asks nginx in front to pass on each event when it comes.
func ownHeader(resp *http.Response) error {
	maps.DeleteFunc(resp.Header, func(name string, _ []string) bool {
		return strings.HasPrefix(name, "Access-Control-") || name == idHeader
	})
	kind, _, _ := strings.Cut(strings.ToLower(resp.Header.Get("Content-Type")), ";")
	if kind == "text/event-stream" || kind == "application/x-ndjson" {
		resp.Header.Set("X-Accel-Buffering", "no")
	}
	return nil
}

// admit admits requests with a valid key, and records their tenant. Where nobody needs a key, it refuses
// what pages of other origins send, for which browsers ask nobody if it looks like a form or opens a WebSocket.
func (g *gateway) admit(origins []string, next http.Handler) http.Handler {
	pages := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys := g.keys.Load()
		if keys == nil && !allows(origins, r.Header.Get("Origin")) {
			asked := *r
			if r.Header.Get("Upgrade") != "" {
				asked.Method = http.MethodPost // a GET is taken for harmless
			}
			if r.Header.Get("Origin") != "" && rebound(r) || pages.Check(&asked) != nil {
				g.refuse(w, r, http.StatusForbidden, "a page of an origin that the gateway's origins do not name", "", "Vary", "Origin")
				return
			}
		}
		if keys != nil {
			owner := keys.ownerOf(r.Header)
			if owner == nil {
				g.requests.stranger(r)
				g.refuse(w, r, http.StatusUnauthorized, "this needs a valid API key", "invalid_api_key", "WWW-Authenticate", "Bearer")
				return
			}
			r = r.WithContext(context.WithValue(r.Context(), tenantKey{}, owner))
			if r.ContentLength != 0 && !owner.reads(r, g.longest) {
				g.refuse(w, r, http.StatusTooManyRequests, "too much is being sent at once", "rate_limit_exceeded", "Retry-After", "1")
				return
			}
			defer r.Body.Close()
		}
		next.ServeHTTP(w, r)
	})
}

// notRebound refuses what pages ask of an address that only this machine reaches, by a name of theirs.
func notRebound(next http.Handler, at net.Addr) http.Handler {
	if tcp, ok := at.(*net.TCPAddr); !ok || !tcp.IP.IsLoopback() {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rebound(r) {
			http.Error(w, "a page may have made this name lead here: ask for localhost or an IP address", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// rebound reports whether a page may have made its name lead here. Sec-Fetch-Site, sent over TLS and to localhost, rules
// it out; Docker has a name for its host that ends in .internal.
func rebound(r *http.Request) bool {
	host := (&url.URL{Host: r.Host}).Hostname()
	known := host == "" || host == "localhost" || strings.HasSuffix(host, ".internal") || net.ParseIP(host) != nil
	return !known && r.Header.Get("Sec-Fetch-Site") == ""
}

// refuse answers with an error in the format of the API, and one more header. It counts like any
// other request.
func (g *gateway) refuse(w http.ResponseWriter, r *http.Request, status int, message, code, header, value string) {
	body := transport.ErrorBody(r.URL.Path, status, code, message)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set(header, value)
	w.WriteHeader(status)
	_, _ = w.Write(body)
	o := &transport.Observation{Request: recording.Request{Time: time.Now(), Status: endpick.Refused.String(), HTTP: status}, In: r, Serving: -1}
	if status >= http.StatusInternalServerError {
		o.Status = endpick.Failed.String()
	}
	if t := tenantOf(r.Context()); t != nil {
		o.Tenant = t.name
	}
	if status != http.StatusUnauthorized { // of which a line says who it was
		g.requests.ended(o, errors.New(message))
	}
	g.watch.observe(o)
}
