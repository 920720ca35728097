package main

import (
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
)

func (l *logSettings) level() (level slog.Level, err error) {
	return level, level.UnmarshalText([]byte(l.Level))
}

func newLogger(w io.Writer, l *logSettings) *slog.Logger {
	level, _ := l.level()
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if err, ok := a.Value.Any().(error); ok { // it may repeat what a server has sent
			a.Value = slog.AnyValue(textOf(err))
		}
		return a
	}}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// requestLog writes lines about requests. They contain nothing of prompts and responses.
type requestLog struct {
	log   *slog.Logger
	which string // all, failed or none
	// These limit the lines that clients cause: those without a key, those with invalid headers, and, where there
	// are no tenants, those whose requests are refused or given up; and lines of requests that no server was asked.
	strangers, warnings, faults, unsent few
}

// ended logs a request that has ended: what the client got, and why.
func (l *requestLog) ended(r *transport.Observation, why error) {
	if a := r.Last(); why == nil && a != nil {
		why = a.Err
	}
	failed := r.Status != endpick.Completed.String()
	if l.which == "none" || l.which == "failed" && !failed {
		return
	}
	more, ok := 0, true
	switch t := tenantOf(r.In.Context()); {
	case l.which != "failed" || r.Status == endpick.Failed.String() && len(r.Attempts) > 0:
	case r.Status == endpick.Failed.String():
		more, ok = l.unsent.next(time.Now())
	case t != nil:
		more, ok = t.faults.next(time.Now())
	default:
		more, ok = l.faults.next(time.Now())
	}
	if !ok {
		return
	}
	level := slog.LevelInfo
	if failed && r.Status != endpick.Canceled.String() {
		level = slog.LevelWarn
	}
	attributes := append([]any{"status", r.Status, "http", r.Code()}, nameOf(r.In)...)
	attributes = append(attributes,
		"model", r.Model, "endpoint", r.Endpoint, "attempts", len(r.Attempts),
		"input", r.InputTokens, "output", r.OutputTokens, "e2e_ms", tenths(r.E2EMillis),
	)
	add := func(known bool, name string, value any) {
		if known {
			attributes = append(attributes, name, value)
		}
	}
	add(r.Estimated, "estimated", true)
	if r.CachedTokens != nil {
		add(true, "cached", *r.CachedTokens)
	}
	if r.TTFTMillis != nil {
		add(true, "ttft_ms", tenths(*r.TTFTMillis))
	}
	held, tried := heldMillis(r), earlier(r.Attempts)
	add(held > 0, "held_ms", held)
	add(r.Named != "", "asked", r.Named)
	add(r.Tenant != "", "tenant", r.Tenant)
	add(tried != "", "earlier", tried)
	add(failed && why != nil, "error", why)
	l.log.Log(context.Background(), level, "request", append(attributes, unlogged(more)...)...)
}

// heldMillis is how long the request waited in the gateway; 0: less than a millisecond.
func heldMillis(r *transport.Observation) float64 {
	if r.Held < time.Millisecond {
		return 0
	}
	return tenths(float64(r.Held) / float64(time.Millisecond))
}

// earlier names the endpoints that were tried before the last one and their errors;
// empty if there were none.
func earlier(attempts []transport.ObservedAttempt) string {
	var all []string
	for _, a := range attempts[:max(len(attempts)-1, 0)] {
		why := string(a.Result)
		if a.Err != nil {
			why = textOf(a.Err).Error()
		}
		all = append(all, a.Candidate.Endpoint.ID+": "+why)
	}
	return strings.Join(all, "; ")
}

// stranger logs a request without a valid key.
func (l *requestLog) stranger(in *http.Request) {
	if l.which == "none" {
		return
	}
	if more, ok := l.strangers.next(time.Now()); ok {
		host, _, _ := net.SplitHostPort(in.RemoteAddr)
		l.log.Warn("request", slices.Concat([]any{"status", "refused", "http", http.StatusUnauthorized}, nameOf(in), []any{
			"client", host, "error", "no valid API key",
		}, unlogged(more))...)
	}
}

// warn logs a problem with a request that was served anyway; in is nil for problems
// with none in particular.
func (l *requestLog) warn(in *http.Request, err error) {
	if more, ok := l.warnings.next(time.Now()); ok {
		l.log.Warn("request", slices.Concat(nameOf(in), []any{"warning", err}, unlogged(more))...)
	}
}

// unlogged says how many lines were left out before this one.
func unlogged(n int) []any {
	if n == 0 {
		return nil
	}
	return []any{"unlogged", n}
}

// nameOf identifies a request.
func nameOf(in *http.Request) []any {
	if in == nil {
		return nil
	}
	return []any{"method", cut(in.Method), "path", cut(in.URL.Path), "id", idOf(in.Context())}
}

// maxLogged is the most bytes of a string from a client that are logged.
const maxLogged = 128

func cut(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxLogged)], "") }

// maxFew is the most lines of one kind per second.
const maxFew = 10

// few limits the lines per second. It is safe for concurrent use.
type few struct {
	mu     sync.Mutex
	second int64
	n      int
}

// next reports whether another line may be logged, and how many were left out since the last
// one.
func (f *few) next(now time.Time) (more int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := now.Unix(); s != f.second {
		more = max(f.n-maxFew, 0)
		f.second, f.n = s, 0
	}
	f.n++
	return more, f.n <= maxFew
}

// idHeader is the header with which clients and proxies identify a request.
const idHeader = "X-Request-Id"

type idKey struct{}

// idOf returns the id that identified has given a request.
func idOf(ctx context.Context) string {
	id, _ := ctx.Value(idKey{}).(string)
	return id
}

// identified gives every request an id, its client's or one that no client can foresee, because some servers take no two
// with the same: in the log, at the server and in the response.
func identified(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := cleanID(r.Header.Get(idHeader))
		if id == "" {
			id = rand.Text()
		}
		w.Header().Set(idHeader, id)
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), idKey{}, id)))
	})
}

// cleanID removes what could be mistaken for something else in a log from a client's id.
func cleanID(id string) string {
	return strings.Map(func(c rune) rune {
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.ContainsRune("-_.:/+", c) {
			return c
		}
		return '_'
	}, cut(id))
}

func tenths(v float64) float64 { return math.Round(10*v) / 10 }
