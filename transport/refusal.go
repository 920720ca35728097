package transport

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/health"
	"github.com/endpick/endpick/transport/internal/host"
)

// What an endpoint says when it does not serve a request: whose fault that is, what it lacks, and when to ask again.

// refused ends the attempt because of what the endpoint has answered.
func (a *Attempt) refused(status int, header http.Header, first []byte, r Result, err error) error {
	a.health.Heard()
	name := a.call.model()
	var lacks *health.Lack // what the endpoint has refused the request for lack of; nil: of nothing
	resident := a.lease.Endpoint().Resident(name)
	switch {
	case name != "" && (status == http.StatusBadRequest && noModel.Match(first) || status == http.StatusNotFound &&
		bytes.Contains(first, []byte(name)) && bytes.Contains(bytes.ToLower(first), []byte("model"))):
		lacks = &health.Lack{Model: name}
	case status == http.StatusBadRequest && tooLong.Match(first):
		lacks = new(health.Lack)
	case status == http.StatusNotFound || status == http.StatusMethodNotAllowed || status == http.StatusNotImplemented,
		r == Refused && !a.call.harmless: // a WebSocket, or what is stored elsewhere
		lacks = &health.Lack{Model: name, Path: a.call.parsed.Path()}
		name = "" // it may be for whatever prefix the path has
	case r == Erred && resident != nil && resident.State != endpick.InMemory: // it may have no memory for it
		lacks = &health.Lack{Model: name}
	}
	if lacks != nil && a.call.parsed.Invents(name) {
		lacks = new(health.Lack)
	}
	if lacks != nil {
		a.health = a.health.Lacking(*lacks)
	}
	if isFull(status, first, a.queued) {
		r = Full
	}
	if r == Full || r == Erred && header.Get("Retry-After") != "" {
		a.full(header)
	}
	return a.fail(r, err)
}

// noModel is how llama.cpp's router, llama-swap and Triton say, with a 400, that they lack a model, which others may have.
var noModel = regexp.MustCompile(`(?i)model.* (not loaded|not running|not found)|unknown model|not find real modelID`)

// tooLong is how vLLM, SGLang, llama.cpp and others say that a prompt is, which another may take.
var tooLong = regexp.MustCompile(`(?i)context (length|size)`)

// ownLocation makes a redirect of an endpoint, such as one to the path with a slash, one of the
// gateway: clients don't learn where the endpoint is. It reports whether that leads to where the
// request was sent, whatever query is added to one that is metered.
func (a *Attempt) ownLocation(header http.Header) (back bool) {
	location := header.Get("Location")
	if location == "" {
		return false
	}
	to, err := url.Parse(location)
	if err != nil {
		header.Del("Location")
		return false
	}
	path := to.EscapedPath()
	base, err := host.Parse(a.lease.Endpoint().Address)
	if err == nil {
		path = "/" + strings.TrimLeft(strings.TrimPrefix(path, strings.TrimSuffix(base.EscapedPath(), "/")), "/")
	}
	back = path == a.call.parsed.Path() && (to.RawQuery == "" || a.call.metered)
	if !back && err == nil && to.Host != "" && to.Hostname() != base.Hostname() {
		return false // it is elsewhere, as files in a store
	}
	if to.RawQuery != "" {
		path += "?" + to.RawQuery
	}
	header.Set("Location", path)
	return back
}

// errFirstEvent is the failure of an endpoint whose stream began with an error.
var errFirstEvent = errors.New("answered with an error event or object")

// statusError is the failure of an endpoint that answered with a status that is none of success.
type statusError int

func (e statusError) Error() string {
	return fmt.Sprintf("answered %d %s", int(e), http.StatusText(int(e)))
}

// resultOf classifies a status; see isFull. What an endpoint will never do is a refusal.
func resultOf(status int) Result {
	if status < 500 || status == http.StatusNotImplemented || status == http.StatusHTTPVersionNotSupported {
		return Refused
	}
	return Erred
}

// isFull reports whether a failure says no more than that the endpoint has no room for the request
// now, or still loads: with a status of 429; as an error with a word for that; or as a 503 at an
// endpoint where requests wait. It may be the engine's (vLLM, SGLang, llama.cpp, Ollama) or that of
// a proxy before it.
func isFull(status int, first []byte, queued bool) bool {
	unavailable := status == http.StatusServiceUnavailable || status == statusOverloaded
	return status == http.StatusTooManyRequests || unavailable && (queued || saysFull(first, false)) ||
		status < http.StatusBadRequest && saysFull(first, true)
}

// statusOverloaded is what Anthropic's API answers, and what imitates it.
const statusOverloaded = 529

// saysFull reports whether a failure has a word for being full, or loading, or, with codes, a code for
// it: that of a 503 is in any.
func saysFull(text []byte, codes bool) bool {
	before := ""
	for word := range bytes.FieldsFuncSeq(bytes.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		switch w := string(word); w {
		case "busy", "full", "overloaded", "overflow", "capacity", "queue", "backpressure", "loading":
			return true
		case "429", "503", "529":
			if codes && before == "code" {
				return true
			}
		default:
			before = w
		}
	}
	return false
}

// full makes health avoid the endpoint for as long as it asks for, and tells the client when to try
// again if the endpoint has not.
func (a *Attempt) full(header http.Header) {
	wait, key := retryAfterOf(header), uint64(0)
	if a.http == http.StatusTooManyRequests && wait > 0 { // engines that are full for all, such as TGI, don't say for how long
		key = a.call.key()
	}
	a.health.Full(wait, key)
	if header != nil && header.Get("Retry-After") == "" {
		header.Set("Retry-After", "1")
	}
}

// key stands for the client's key at endpoints, of which each may allow so much; 0: it has none.
func (c *Call) key() uint64 {
	if c.in == nil || c.in.Header.Get("Authorization") == "" {
		return 0
	}
	return maphash.String(c.d.conversations.seed, c.in.Header.Get("Authorization"))
}

// retryAfterOf is how long a response asks not to be asked again; 0 or less: it does not say when.
func retryAfterOf(header http.Header) time.Duration {
	v := header.Get("Retry-After")
	if n, err := strconv.ParseUint(v, 10, 16); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(n) * time.Second
	}
	at, err := http.ParseTime(v)
	sent, unsaid := http.ParseTime(header.Get("Date"))
	if err != nil || unsaid != nil {
		return 0
	}
	return at.Sub(sent)
}
