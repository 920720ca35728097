package scorer_test

import (
	"fmt"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer"
)

// show prints the score of each candidate.
func show(s endpick.Scorer, req endpick.Request, candidates ...endpick.Candidate) {
	scores := make([]float64, len(candidates))
	s.Score(&req, candidates, scores)
	for i, c := range candidates {
		fmt.Printf("%s %.3g\n", c.Endpoint.ID, scores[i])
	}
}

// server is a candidate.
func server(id string, running float64) endpick.Candidate {
	return endpick.Candidate{Endpoint: &endpick.Endpoint{ID: id}, ChanceKey: endpick.Salt(id), Running: running}
}

// A policy of a few lines: the cheapest server with a known price.
func ExampleCost() {
	price := map[string]float64{"spot": 1, "on-demand": 3}
	cheap := scorer.Cost("price", func(_ *endpick.Request, c *endpick.Candidate) float64 {
		return price[c.Endpoint.ID]
	})
	show(cheap, endpick.Request{}, server("spot", 0), server("on-demand", 0))
	// Output:
	// spot 0.25
	// on-demand 0.125
}

func ExampleQueueDepth() {
	show(scorer.QueueDepth(), endpick.Request{}, server("a", 2), server("b", 4), server("c", 10))
	// Output:
	// a 1
	// b 0.75
	// c 0
}

func ExampleKVUsage() {
	a, b := server("a", 0), server("b", 0)
	a.KVUsage, b.KVUsage = 0.25, 0.9
	show(scorer.KVUsage(), endpick.Request{}, a, b)
	// Output:
	// a 0.75
	// b 0.1
}

// Each runs as many requests, but one has prompts to prefill.
func ExampleLeastLoaded() {
	a, b, c := server("a", 3), server("b", 3), server("c", 4)
	a.InFlight.PrefillTokens = 9000
	show(scorer.LeastLoaded(), endpick.Request{}, a, b, c)
	// Output:
	// a 0.111
	// b 0.125
	// c 0.1
}

func ExamplePrefixAffinity() {
	a, b := server("a", 0), server("b", 0)
	a.PrefixTokens = 600
	show(scorer.PrefixAffinity(), endpick.Request{InputTokens: 1000}, a, b)
	// Output:
	// a 0.6
	// b 0
}

// (1000 − 900 + 0) × (9 + 1) = 1,000 on a, (1000 + 0) × (1 + 1) = 2,000 on b.
func ExampleLMetric() {
	a, b := server("a", 9), server("b", 1)
	a.PrefixTokens = 900
	show(scorer.LMetric(), endpick.Request{InputTokens: 1000}, a, b)
	// Output:
	// a 0.0005
	// b 0.00025
}

// a holds half of the prompt, and has the largest batch.
func ExampleLinear() {
	a, b := server("a", 10), server("b", 5)
	a.PrefixTokens = 500
	show(scorer.Linear(0.6), endpick.Request{InputTokens: 1000}, a, b)
	// Output:
	// a 0.3
	// b 0.2
}

// In blocks of 16 tokens: (1600 + 1600)/16 on a, (1600 − 800)/16 on b.
func ExampleDynamo() {
	a, b := server("a", 1), server("b", 1)
	a.InFlight.PrefillTokens = 1600
	b.PrefixTokens = 800
	show(scorer.Dynamo(0), endpick.Request{InputTokens: 1600}, a, b)
	// Output:
	// a 0.00249
	// b 0.0098
}

func ExampleAdapterAffinity() {
	a, b, c := server("a", 0), server("b", 0), server("c", 0)
	a.Report = &endpick.Load{Adapters: []string{"sql"}}
	b.Report = &endpick.Load{Adapters: []string{"poems"}}
	show(scorer.AdapterAffinity(), endpick.Request{Adapter: "sql"}, a, b, c)
	// Output:
	// a 1
	// b 0
	// c 0.5
}

// A session stays where it is as long as its server exists.
func ExampleSessionAffinity() {
	chat := endpick.Request{Session: "chat-17"}
	show(scorer.SessionAffinity(), chat, server("a", 0), server("b", 0), server("c", 0))
	fmt.Println("a goes:")
	show(scorer.SessionAffinity(), chat, server("b", 0), server("c", 0))
	// Output:
	// a 0
	// b 1
	// c 0
	// a goes:
	// b 1
	// c 0
}

// routeTo makes a router with one policy, and returns a function that routes a
// request of a thousand tokens and says where it went.
func routeTo(p endpick.Policy, ids ...string) func() string {
	config := endpick.Config{Policy: p, Seed: 1, Clock: func() time.Time { return time.Unix(0, 0) }}
	for _, id := range ids {
		config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: id})
	}
	router, err := endpick.New(config)
	if err != nil {
		panic(err)
	}
	return func() string {
		lease, err := router.Route(endpick.Request{InputTokens: 1000})
		if err != nil {
			return err.Error()
		}
		defer lease.Done(endpick.Outcome{})
		return lease.Endpoint().ID
	}
}

func ExampleRoundRobin() {
	send := routeTo(endpick.Policy{Scorers: []endpick.Weighted{{Scorer: scorer.RoundRobin(), Weight: 1}}}, "a", "b", "c")
	first := []string{send(), send(), send()}
	again := []string{send(), send(), send()}
	fmt.Println(len(first), "servers, each once; and again in the same order:", fmt.Sprint(first) == fmt.Sprint(again))
	// Output:
	// 3 servers, each once; and again in the same order: true
}

// Prompts that nobody holds go to the server that has gone longest without one.
func ExampleNoHitLRU() {
	send := routeTo(endpick.Policy{Scorers: []endpick.Weighted{
		{Scorer: scorer.NoHitLRU(), Weight: 1},
		{Scorer: scorer.QueueDepth(), Weight: 1},
	}}, "a", "b")
	first, second := send(), send()
	fmt.Println(first != second, "both idle, and yet not twice the same")
	// Output:
	// true both idle, and yet not twice the same
}

// AIBrix: the longest match, unless batches are more than 8 apart.
func ExampleMatchGate() {
	gate := scorer.MatchGate(scorer.MatchGateConfig{Range: 8})
	keep := func(candidates ...endpick.Candidate) {
		req := endpick.Request{InputTokens: 1000}
		var ids []string
		for _, c := range gate.Filter(&req, candidates) {
			ids = append(ids, c.Endpoint.ID)
		}
		fmt.Println(ids)
	}
	a, b := server("a", 9), server("b", 1)
	a.PrefixTokens = 900
	keep(a, b)
	a.Running = 10
	keep(a, b)
	// Output:
	// [a]
	// [a b]
}

// One system prompt is half of the traffic, and one of four servers holds it. If
// it always goes there, that is more than that server's share: an alarm. When
// the server still looks best three times in a row, it is a hotspot, and the
// prompt goes elsewhere until others hold it too.
func ExampleHotspot() {
	spot := scorer.Hotspot(scorer.HotspotConfig{})
	req := endpick.Request{InputTokens: 160, Blocks: []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}.At(time.Unix(100, 0), 1, 1)
	other := endpick.Request{InputTokens: 160}.At(time.Unix(100, 0), 1, 2)
	servers := []endpick.Candidate{server("a", 0), server("b", 0), server("c", 0), server("d", 0)}
	servers[0].PrefixTokens = 159
	for range 4 {
		for _, r := range []endpick.Request{other, req} {
			spot.(endpick.RoutedObserver).Routed(&endpick.Event{Request: &r, Candidate: &servers[0], Candidates: servers, Now: r.Now()})
		}
	}
	for _, c := range spot.Filter(&req, servers) {
		fmt.Print(c.Endpoint.ID, " ")
	}
	// Output:
	// b c d
}
