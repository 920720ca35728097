package main

import (
	"context"
	"io"
	"log/slog"
	"math"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/observed"
)

func (l *logSettings) level() (level slog.Level, err error) {
	return level, level.UnmarshalText([]byte(l.Level))
}

// newLogger writes what the settings ask for.
func newLogger(w io.Writer, l *logSettings) *slog.Logger {
	level, _ := l.level()
	options := &slog.HandlerOptions{Level: level}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// logRequest writes a line for a request that has ended: what the client got, and why.
// It contains nothing of the prompt or of the response.
func logRequest(logger *slog.Logger, which string, r *observed.Request) {
	status, why := r.HTTP, r.Err
	if why != nil {
		status = transport.StatusOf(why)
	} else if a := r.Last(); a != nil {
		why = a.Err
	}
	failed := r.Status != endpick.Completed.String() || status >= 400
	if which == "none" || which == "failed" && !failed {
		return
	}
	level := slog.LevelInfo
	if failed && r.Status != endpick.Canceled.String() {
		level = slog.LevelWarn
	}
	attributes := []any{
		"status", r.Status, "http", status, "model", r.Model, "endpoint", r.Endpoint, "attempts", len(r.Attempts),
		"input", r.InputTokens, "output", r.OutputTokens, "e2e_ms", tenths(r.E2EMillis),
	}
	if r.CachedTokens != nil {
		attributes = append(attributes, "cached", *r.CachedTokens)
	}
	if r.TTFTMillis != nil {
		attributes = append(attributes, "ttft_ms", tenths(*r.TTFTMillis))
	}
	if r.Tenant != "" {
		attributes = append(attributes, "tenant", r.Tenant)
	}
	if failed && why != nil {
		attributes = append(attributes, "error", why)
	}
	logger.Log(context.Background(), level, "request", attributes...)
}

// tenths rounds to a tenth.
func tenths(v float64) float64 { return math.Round(10*v) / 10 }
