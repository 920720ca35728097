package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"time"

	"github.com/endpick/endpick"
)

// reloadInterval is how often the settings file, and the files that it names,
// are checked.
const reloadInterval = time.Second

// reloader applies changes of the settings to a running gateway.
type reloader struct {
	path    string
	gateway *gateway
	log     *slog.Logger

	first  *settings // the settings at the start
	now    *settings // in force
	read   *settings // as last read, which may have a mistake
	text   []byte    // of the file, as last read
	stamps []stamp   // of the files that it names
	// seen and seenStamps are the state at the last check: a change is applied once
	// two checks have seen it, so that no half-written file is.
	seen       []byte
	seenStamps []stamp
	failed     string // the last logged error of an unreadable file
	waits      string // the last logged error of a new source of endpoints; empty: none
}

// stamp changes when a file does, or who may read it.
type stamp struct {
	size int64
	at   time.Time
	mode os.FileMode
}

func stampOf(path string) stamp {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{size: -1}
	}
	return stamp{info.Size(), info.ModTime(), info.Mode()}
}

func newReloader(path string, text []byte, now *settings, g *gateway, logger *slog.Logger) *reloader {
	return &reloader{path: path, gateway: g, log: logger, first: now, now: now, read: now, text: text, stamps: now.stamps}
}

// stampsNow returns the stamps of the certificate, its key and other secrets.
func (s *settings) stampsNow() (all []stamp) {
	if t := s.TLS; t != nil {
		all = []stamp{stampOf(t.Cert), stampOf(t.Key)}
	}
	if s.document != nil {
		for _, path := range s.document.files {
			all = append(all, stampOf(path))
		}
	}
	return all
}

// follow reloads when the file changes, and on request, until the context ends.
func (r *reloader) follow(ctx context.Context, asked <-chan os.Signal) {
	tick := time.NewTicker(reloadInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-asked:
			r.look(true)
		case <-tick.C:
			r.look(false)
		}
	}
}

// look reads the file, and applies it if it has changed and is stable, or on request.
// An invalid file changes nothing. Nor does one with a new source of endpoints that gives
// no list; that is tried again each time.
func (r *reloader) look(asked bool) {
	text, err := os.ReadFile(r.path)
	if err != nil {
		if asked || r.failed != err.Error() {
			r.log.Error("can't read the settings; keeping the old ones", "error", err)
		}
		r.gateway.outdated.Store(&err)
		r.failed, r.text = err.Error(), nil // it will count as changed
		return
	}
	r.failed = ""
	stamps := r.read.stampsNow()
	settled := bytes.Equal(text, r.seen) && reflect.DeepEqual(stamps, r.seenStamps)
	r.seen, r.seenStamps = text, stamps
	if !asked && (!settled || bytes.Equal(text, r.text) && reflect.DeepEqual(stamps, r.stamps)) {
		return
	}
	next, err := parseSettings(r.path, text)
	r.read, r.text, r.stamps = next, text, next.stamps
	if err == nil && r.now.Tenants != nil && next.Tenants == nil && !next.Open {
		err = next.bad("tenants", "is gone: without it nobody needs a key; if that is meant, say open: true")
	}
	if err == nil {
		err = r.gateway.apply(next)
	}
	if err != nil {
		r.gateway.outdated.Store(&err)
	}
	if source := new(sourceError); errors.As(err, &source) {
		if asked || r.waits != err.Error() {
			r.log.Error("the endpoints of the new settings are not found; keeping the old ones until they are", "error", err)
		}
		r.waits, r.text = err.Error(), nil // it counts as changed
		return
	}
	r.waits = ""
	if err != nil {
		r.log.Error("the new settings have a mistake; keeping the old ones", "error", err)
		return
	}
	done := "settings reloaded"
	for _, field := range restart(r.first, next) {
		r.log.Warn("this change needs a restart", "field", field)
		done = "all other settings reloaded"
	}
	r.gateway.warnOf(next)
	attributes := []any{"endpoints", r.gateway.router.Stats().Endpoints, "policy", next.Policy,
		"models", len(next.Models), "tenants", len(next.Tenants)}
	var gone []string // whose keys are refused from now on
	for name := range r.now.Tenants {
		if _, there := next.Tenants[name]; !there {
			gone = append(gone, name)
		}
	}
	if slices.Sort(gone); len(gone) > 0 {
		attributes = append(attributes, "tenants_removed", gone)
	}
	r.now = next
	r.gateway.outdated.Store(nil)
	r.log.Info(done, attributes...)
}

// warnOf logs settings that are probably mistakes.
func (g *gateway) warnOf(s *settings) {
	var endpoints []endpick.Endpoint
	for _, there := range g.router.Endpoints() {
		endpoints = append(endpoints, *there.Candidate.Endpoint)
	}
	for _, w := range append(s.warnings(), s.unserved(endpoints)...) {
		g.log.Warn("settings", "warning", w)
	}
}

// restarted are the fields that can't be changed without a restart, besides tls itself and endpoints.wake.
var restarted = []string{
	"listen", "admin", "h2c", "trust_headers", "origins", "shared_cache", "endpoint_header", "disable_resume", "pass", "seed",
	"queue", "limits", "timeouts", "record", "log", "poll", "price",
}

// restart lists the fields that differ and can't be changed without a restart.
func restart(old, next *settings) (fields []string) {
	a, b := reflect.ValueOf(old).Elem(), reflect.ValueOf(next).Elem()
	for i := range a.NumField() {
		name := a.Type().Field(i).Tag.Get("yaml")
		if slices.Contains(restarted, name) && !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			fields = append(fields, name)
		}
	}
	if (old.TLS != nil) != (next.TLS != nil) {
		fields = append(fields, "tls")
	}
	if old.wakes() != next.wakes() {
		fields = append(fields, "endpoints.wake")
	}
	return fields
}
