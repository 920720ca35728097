package main

import (
	"context"
	"io"
	"log/slog"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/recording"
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

// logRequest writes a line for a request that has ended. Nothing of the prompt or of
// the answer is in it.
func logRequest(logger *slog.Logger, which string, r *recording.Request, tenant string) {
	failed := r.Status != endpick.Completed.String() || r.HTTP >= 400
	if which == "none" || which == "failed" && !failed {
		return
	}
	level := slog.LevelInfo
	if failed && r.Status != endpick.Canceled.String() {
		level = slog.LevelWarn
	}
	attributes := []any{
		"status", r.Status, "http", r.HTTP, "model", r.Model, "endpoint", r.Endpoint, "attempts", r.Attempts,
		"input", r.InputTokens, "output", r.OutputTokens, "e2e_ms", r.E2EMillis,
	}
	if r.CachedTokens != nil {
		attributes = append(attributes, "cached", *r.CachedTokens)
	}
	if r.TTFTMillis != nil {
		attributes = append(attributes, "ttft_ms", *r.TTFTMillis)
	}
	if tenant != "" {
		attributes = append(attributes, "tenant", tenant)
	}
	logger.Log(context.Background(), level, "request", attributes...)
}
