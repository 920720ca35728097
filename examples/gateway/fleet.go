package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
)

// What operators of small fleets set: limits and tiers of servers, names for models, and how to wake
// a server.

// nameSettings are the models behind a name.
type nameSettings struct {
	Models  []string  `yaml:"models"`
	Weights []float64 `yaml:"weights"`
}

// wakeSettings say how to wake a server that sleeps.
type wakeSettings struct {
	Run   []string      `yaml:"run"`
	Takes time.Duration `yaml:"takes"`
}

func (w *wakeSettings) given() bool { return len(w.Run) > 0 || w.Takes > 0 }

func (s *settings) names() map[string]transport.Name {
	names := map[string]transport.Name{}
	for name, n := range s.Names {
		names[name] = transport.Name{Models: n.Models, Weights: n.Weights}
	}
	return names
}

func (s *settings) validateNames() error {
	router, err := endpick.New(endpick.Config{})
	if err == nil {
		_, err = transport.NewDispatcher(transport.Config{Router: router, Names: s.names()})
	}
	if bad, ok := errors.AsType[*endpick.ConfigError](err); ok {
		quoted := strings.TrimSuffix(strings.TrimPrefix(bad.Field, "transport.Config.Names["), "]")
		name, _ := strconv.Unquote(quoted)
		return s.bad("names."+name, "%s", bad.Reason)
	}
	return err
}

// validateTiers checks what operators set for servers that are listed, or for all that are found.
func (s *settings) validateTiers() error {
	tiers := map[int]bool{1: s.Discover != nil}
	for _, e := range s.Endpoints {
		tiers[max(e.Tier, 1)] = true
	}
	check := func(at string, e *endpointSettings) error {
		for _, f := range []struct {
			field string
			zero  bool
		}{{"max_in_flight", e.InFlight == 0}, {"max_context", e.Context == 0}, {"tier", e.Tier == 0}, {"weight", e.Weight == 0}} {
			if s.document != nil && f.zero && s.document.lines[at+"."+f.field] > 0 {
				return s.bad(at+"."+f.field, "is 0; leave it out if there is nothing to set")
			}
		}
		switch w := &e.Wake; {
		case e.Tier > 1 && s.Discover == nil && !tiers[e.Tier-1]:
			return s.bad(at+".tier", "is %d, and no endpoint has tier %d", e.Tier, e.Tier-1)
		case w.given() && (len(w.Run) == 0 || w.Run[0] == ""):
			return s.bad(at+".wake.run", "names no command")
		case w.given() && w.Takes == 0:
			return s.bad(at+".wake.takes", "is missing")
		}
		return nil
	}
	for i := range s.Endpoints {
		if err := check(fmt.Sprintf("endpoints[%d]", i), &s.Endpoints[i]); err != nil {
			return err
		}
	}
	if s.Discover != nil {
		return check("discover.endpoint", &s.Discover.Endpoint)
	}
	return nil
}

// wakes reports whether any server can be woken.
func (s *settings) wakes() bool {
	return slices.ContainsFunc(s.Endpoints, func(e endpointSettings) bool { return e.Wake.given() })
}

// wake is what the transport calls to wake servers; nil: none can be woken.
func (g *gateway) wake(s *settings) func(*endpick.Endpoint) {
	if !s.wakes() {
		return nil
	}
	return func(to *endpick.Endpoint) {
		for _, e := range g.settings.Load().Endpoints {
			if w := e.Wake; w.given() && e.URL == to.Address {
				g.log.Info("waking a server", "endpoint", to.ID, "command", w.Run[0])
				ctx, cancel := context.WithTimeout(context.Background(), w.Takes)
				defer cancel()
				var out beginningOf
				command := exec.CommandContext(ctx, w.Run[0], w.Run[1:]...)
				command.Stdout, command.Stderr = &out, &out
				if err := command.Run(); err != nil {
					g.log.Warn("waking a server has failed", "endpoint", to.ID, "error", err, "output", cut(string(out)))
				}
				return
			}
		}
	}
}

// beginningOf is what is logged of a command's output, which may last as long as a server that it has started.
type beginningOf []byte

func (b *beginningOf) Write(p []byte) (int, error) {
	*b = append(*b, p[:min(len(p), maxLogged-len(*b))]...)
	return len(p), nil
}
