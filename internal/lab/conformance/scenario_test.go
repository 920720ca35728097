package conformance

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

// scenario is something that a client does with one API. What it receives is recorded as lines.
type scenario struct {
	name string
	// open: the client leaves before the end, so what it was sent may end anywhere.
	open bool
	// modelled: only the simulated servers have tools, thinking, errors on demand and WebSockets.
	modelled bool
	// fails: the client gets errors.
	fails bool
}

// scenarios are all scenarios in the order of the table. A client has those of its APIs.
var scenarios = []scenario{
	{name: "whole"},
	{name: "stream"},
	{name: "n = 2"},
	{name: "n = 2, stream"},
	{name: "tools", modelled: true},
	{name: "tools, stream", modelled: true},
	{name: "generate", modelled: true},
	{name: "images", modelled: true},
	{name: "embeddings", modelled: true},
	{name: "thinking", modelled: true},
	{name: "thinking, stream", modelled: true},
	{name: "two turns"},
	{name: "previous response", modelled: true},
	{name: "count tokens"},
	{name: "list of models"},
	{name: "one model", modelled: true},
	{name: "abort", open: true, fails: true},
	{name: "errors", modelled: true, fails: true},
	{name: "unknown model", modelled: true, fails: true},
	{name: "retries", modelled: true},
	{name: "cut", modelled: true, fails: true},
	{name: "WebSocket", modelled: true},
}

// Texts of the prompts.
const (
	question    = "What is the weather like in the town where I live, and what was it yesterday?"
	second      = "And what will it be tomorrow?"
	askForCall  = question + ` [[call weather {"city":"Paris"}]]`
	askForRetry = question + " [[error 503 times=1]]"
	askForCut   = question + " [[cut 3]]"
	result      = "It rains."
	maxTokens   = 12
	longest     = 2000 // tokens: a stream of two seconds, which the client abandons
	heard       = 3    // events with text until then
)

func askForError(status int) string {
	if status == 429 {
		return fmt.Sprintf("%s [[error %d retry-after=7]]", question, status)
	}
	return fmt.Sprintf("%s [[error %d]]", question, status)
}

var statuses = []int{400, 401, 404, 429, 500, 503}

type documentation struct {
	allowed []string
	why     string
}

// documented are the intended differences, by scenario.
var documented = map[string]documentation{
	"unknown model": {[]string{"body", "what the client is told", "header Content-Type"}, "the text of the error"},
	"cut": {
		[]string{"body", "end", "status", "header ", "the number of responses", "what the client is told"},
		"the gateway says that the server has failed",
	},
	"list of models": models,
	"one model":      models,
}

// models are the gateway's own answers.
var models = documentation{
	[]string{"body", "header Server", "header Access-Control-Allow-Origin", "header Content-Type"},
	"the gateway has a list of its own",
}

// session is a client in a scenario, and what it receives, as lines.
type session struct {
	ctx     context.Context
	cancel  func()
	url     string
	retries int               // of its SDK
	base    http.RoundTripper // nil: a new one
	told    strings.Builder
}

// client has connections of its own, unless base is given.
func (s *session) client() *http.Client {
	if s.base != nil {
		return &http.Client{Transport: s.base}
	}
	return &http.Client{Transport: &http.Transport{}}
}

func (s *session) add(format string, args ...any) { fmt.Fprintf(&s.told, format+"\n", args...) }

// do is what a Go client does in a scenario.
type do func(s *session)

// api is how a Go client uses one API: what it asks, in either way.
type api[P, R any] struct {
	params        func(question string) P
	whole, stream func(s *session, p P) R
}

// scenarios are those that every API has, those that change a request, also as a stream, and others.
func (a api[P, R]) scenarios(changes map[string]func(*P), others map[string]do) map[string]do {
	all := map[string]do{
		"whole":  func(s *session) { a.whole(s, a.params(question)) },
		"stream": func(s *session) { a.stream(s, a.params(question)) },
		"retries": func(s *session) {
			s.retries = 2
			a.whole(s, a.params(askForRetry))
		},
		"cut": func(s *session) {
			a.stream(s, a.params(askForCut))
			a.whole(s, a.params(askForCut))
		},
		"errors": func(s *session) {
			for _, status := range statuses {
				a.whole(s, a.params(askForError(status)))
				a.stream(s, a.params(askForError(status)))
			}
		},
	}
	for name, change := range changes {
		all[name], all[name+", stream"] = a.changed(change, a.whole), a.changed(change, a.stream)
	}
	maps.Copy(all, others)
	return all
}

func (a api[P, R]) changed(change func(*P), send func(*session, P) R) do {
	return func(s *session) {
		p := a.params(question)
		change(&p)
		send(s, p)
	}
}

// twice sends a request and, if next makes another of the answer, that too.
func twice[P, R any](params func() P, send func(*session, P) R, next func(*P, R) bool) do {
	return func(s *session) {
		p := params()
		if next(&p, send(s, p)) {
			send(s, p)
		}
	}
}

const nobodys = "nobody-has-it" // a model

// raw is a value of an SDK that remembers how it came.
type raw interface{ RawJSON() string }

// whole adds a response, or the error instead of it.
func whole[T raw](s *session, r T, err error) (none T) {
	if err != nil {
		s.add("error %T: %v", err, err)
		return none
	}
	s.add("%s", r.RawJSON())
	return r
}

// stream is a response that comes in parts.
type stream[T raw] interface {
	Next() bool
	Current() T
	Err() error
	Close() error
}

// read adds all parts of a stream, and does something with each.
func read[T raw](s *session, in stream[T], do func(T)) {
	defer in.Close()
	for in.Next() {
		s.add("%s", in.Current().RawJSON())
		do(in.Current())
	}
	s.add("end: %v", in.Err())
}

// leave reads a stream until some parts with text have come.
func leave[T raw](s *session, in stream[T], text func(T) string) {
	defer in.Close()
	for n := 0; n < heard && in.Next(); {
		s.add("%s", in.Current().RawJSON())
		if text(in.Current()) != "" {
			n++
		}
	}
	s.cancel()
	for in.Next() {
	}
	s.add("end: %v", in.Err())
}

// outcome is a line of the table.
type outcome struct {
	fleet, client, api, scenario string

	differs []string // undocumented differences: there must be none
	why     string   // why the documented differences exist
}

func judge(fleet, client, api string, s scenario, direct, gateway run) outcome {
	o := outcome{fleet: fleet, client: client, api: api, scenario: s.name}
	d := documented[s.name]
found:
	for _, one := range differences(direct, gateway, s.open) {
		for _, allowed := range d.allowed {
			if strings.HasPrefix(one, allowed+": ") || strings.HasSuffix(allowed, " ") && strings.HasPrefix(one, allowed) {
				o.why = d.why
				continue found
			}
		}
		o.differs = append(o.differs, one)
	}
	return o
}

// fleet is a kind of servers to run scenarios on.
type fleet struct {
	name string
	// targets are made anew for each scenario. The last two are compared: one
	// server directly, and servers through a gateway. Any target before them warms up what they share.
	targets []func(*testing.T) *target
	// one: the targets are the same server, so scenarios run one by one.
	one bool
	// without are scenarios that this way does not support.
	without []string
}

var modelled = fleet{name: "modelled", targets: []func(*testing.T) *target{directly, throughGateway}}

// has reports whether the servers support a scenario.
func (f *fleet) has(s scenario) bool {
	return (!f.one || !s.modelled) && !slices.Contains(f.without, s.name)
}

// together runs functions concurrently, or one by one if necessary.
func (f *fleet) together(functions ...func()) {
	if f.one {
		for _, one := range functions {
			one()
		}
		return
	}
	var group sync.WaitGroup
	for _, one := range functions {
		group.Go(one)
	}
	group.Wait()
}

// compare judges the last two runs of a scenario.
func (f *fleet) compare(t *testing.T, client, api string, s scenario, runs []run) outcome {
	direct, gateway := runs[len(runs)-2], runs[len(runs)-1]
	if *told {
		fmt.Printf("%s, %s, %s, %s:\n%s", f.name, client, api, s.name, direct.told)
	}
	assert.NotEmpty(t, direct.told)
	assert.NotEmpty(t, direct.wire)
	if !s.fails && !f.one { // some clients can't parse llama.cpp's errors, with or without a gateway
		assert.NotRegexp(t, `(?m)^error|^end: [^<]`, direct.told, "%s, %s, %s", client, api, s.name)
	}
	return judge(f.name, client, api, s, direct, gateway)
}

// runGo runs a Go client.
func (f *fleet) runGo(t *testing.T, client, api string, does map[string]do) (all []outcome) {
	for _, s := range scenarios {
		act := does[s.name]
		if act == nil || !f.has(s) {
			continue
		}
		var runs []run
		for _, fresh := range f.targets {
			p := fresh(t)
			client := session{url: p.url}
			client.ctx, client.cancel = context.WithCancel(t.Context())
			act(&client)
			runs = append(runs, run{client.told.String(), p.settled(t)})
			client.cancel()
		}
		all = append(all, f.compare(t, client, api, s, runs))
	}
	return all
}
