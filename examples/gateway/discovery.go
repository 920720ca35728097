package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/endpick/endpick"
)

// checkBackend reports whether a model server can be at this address.
func checkBackend(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "h2c") {
		return errors.New("want http://HOST[:PORT], https://… or h2c://…")
	}
	return nil
}

// listed is the discovery of a small shop: a file that names the model servers, one
// URL a line, and that somebody or something writes anew when they change. Empty
// lines, and lines that begin with #, are skipped.
type listed struct {
	path string
	last []byte // as it was read last
}

// changed returns the servers if the file says something new, or nil.
func (l *listed) changed() ([]endpick.Endpoint, error) {
	text, err := os.ReadFile(l.path)
	if err != nil || (l.last != nil && bytes.Equal(text, l.last)) {
		return nil, err
	}
	l.last = text
	var urls []string
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if err := checkBackend(line); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", l.path, number, err)
		}
		if slices.Contains(urls, line) {
			return nil, fmt.Errorf("%s:%d: there twice", l.path, number)
		}
		urls = append(urls, line)
	}
	if len(urls) == 0 { // it is more likely being written than meant
		return nil, fmt.Errorf("%s names no server", l.path)
	}
	return named(urls), nil
}

// named are the endpoints at these addresses. They serve whatever they are asked for.
func named(urls []string) (all []endpick.Endpoint) {
	for _, u := range urls {
		all = append(all, endpick.Endpoint{Address: u})
	}
	return all
}

// follow makes the router's endpoints those of the file whenever it changes, until
// the context ends. What can't be is logged, and the endpoints stay.
func (l *listed) follow(ctx context.Context, router *endpick.Router, logger *slog.Logger) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	failing := "" // what was logged last, which is enough once
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		endpoints, err := l.changed()
		if err == nil && endpoints != nil {
			if err = router.SetEndpoints(endpoints); err == nil {
				logger.Info("endpoints", "number", len(endpoints))
			}
		}
		if err == nil {
			failing = ""
		} else if failing != err.Error() {
			failing = err.Error()
			logger.Error("endpoints stay as they are", "error", err)
		}
	}
}
