package traffic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/suite"
	"github.com/endpick/endpick/scorer/preset/all"
)

// Front is something in front of a fleet that clients connect to.
type Front struct {
	Client *Client
	Leases func() int // open leases
	Stop   func() error
}

// Opener opens a front.
type Opener func(*Fleet) (*Front, error)

// Direct is the library's own transport in a proxy of the standard library, with which other
// hosts are compared. Ties are broken in the same way each time.
func Direct(policy string) Opener {
	return func(f *Fleet) (*Front, error) { return Proxy(policy, 1, f.Endpoints()) }
}

// Proxy is the same in front of endpoints that are there.
func Proxy(policy string, seed uint64, endpoints []endpick.Endpoint) (*Front, error) {
	config, err := all.ByName(policy)
	if err != nil {
		return nil, err
	}
	config.Endpoints, config.Seed = endpoints, seed
	return over(suite.OpenReverseProxy(config))
}

// Serve serves a handler that routes with a router, until the front is stopped, which calls
// stop.
func Serve(handler http.Handler, router *endpick.Router, stop func() error) (*Front, error) {
	return over(suite.Serve(handler, router, stop))
}

func over(f *suite.Front, err error) (*Front, error) {
	if err != nil {
		return nil, err
	}
	return &Front{
		Client: NewClient("http://" + f.Address),
		Leases: func() int { return f.Router().Stats().OpenLeases },
		Stop:   f.Close,
	}, nil
}

// PlayBehind plays conversations at their times behind a front with n new servers. It returns
// when no lease is open, and calls step after each request.
func PlayBehind(ctx context.Context, n, kvTokens int, open Opener, conversations []Conversation, step func()) ([]Sample, error) {
	return behind(ctx, n, kvTokens, 1, open, func(front *Front) ([]Sample, error) {
		return front.Client.Play(ctx, conversations, step), ctx.Err()
	})
}

// behind starts n servers of a speed and a front, plays, and ends them when no lease is open.
func behind(ctx context.Context, n, kvTokens int, speed float64, open Opener, play func(*Front) ([]Sample, error)) (samples []Sample, err error) {
	config, err := ServerConfig(kvTokens)
	if err != nil {
		return nil, err
	}
	config.Speed = speed
	fleet, err := StartFleet(n, config)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, fleet.Close()) }()
	front, err := open(fleet)
	if err != nil {
		return nil, err
	}
	defer func() { front.Client.Close(); err = errors.Join(err, front.Stop()) }()
	if samples, err = play(front); err != nil {
		return nil, err
	}
	return samples, front.settle(ctx)
}

// settle waits until no lease is open: a stream may end a moment after its client has received
// everything.
func (f *Front) settle(ctx context.Context) error {
	for until := time.Now().Add(30 * time.Second); f.Leases() > 0; time.Sleep(100 * time.Microsecond) {
		if ctx.Err() != nil || time.Now().After(until) {
			return fmt.Errorf("traffic: %d leases are left open", f.Leases())
		}
	}
	return nil
}

// OneByOne is the policy for the hits of a contest. It does not learn times, which depend on the
// machine.
const OneByOne = "lmetric"

// playOneByOne plays conversations regardless of their times: a turn of each of eight, then the
// next, each when the one before it has ended. So what a router knows at a decision does not
// depend on the machine.
func playOneByOne(ctx context.Context, front *Front, conversations []Conversation) (samples []Sample, err error) {
	for some := range slices.Chunk(conversations, 8) {
		messages := make([][]Message, len(some))
		for turn := range some[0].Turns {
			for i, c := range some {
				if turn == 0 {
					messages[i] = []Message{{Role: "system", Content: c.System}}
				}
				messages[i] = append(messages[i], Message{Role: "user", Content: c.Turns[turn].Question})
				s := front.Client.Ask(ctx, time.Now(), messages[i], c.Turns[turn].output)
				if s.Err == nil {
					s.Err = front.settle(ctx)
				}
				if s.Err != nil {
					return nil, s.Err
				}
				messages[i] = append(messages[i], Message{Role: "assistant", Content: s.Text})
				samples = append(samples, s)
			}
		}
	}
	return samples, nil
}

// Way is a front that is compared with others.
type Way struct {
	Name string
	Open Opener
}

// Contest compares hosts of the library: it plays the workload behind each way, and then one
// request after another behind a and b, which route with the policy OneByOne. It returns the share
// of prompts that each of these has found in caches, and a table of all.
func Contest(ctx context.Context, w Workload, ways []Way, a, b Opener) (results []Result, hits [2]float64, text string, err error) {
	const servers, kvTokens = 4, 16384
	for _, way := range ways {
		samples, err := PlayBehind(ctx, servers, kvTokens, way.Open, w.Conversations(), func() {})
		r := Summarise(way.Name, samples, endpick.SLO{})
		if err = cmp.Or(err, r.FirstErr); err != nil {
			return nil, hits, "", fmt.Errorf("%s: %w", way.Name, err)
		}
		results = append(results, r)
	}
	for i, open := range []Opener{a, b} {
		samples, err := behind(ctx, servers, kvTokens, 100, open, func(front *Front) ([]Sample, error) {
			return playOneByOne(ctx, front, w.Conversations())
		})
		if err != nil {
			return nil, hits, "", fmt.Errorf("one by one: %w", err)
		}
		if r := Summarise("", samples, endpick.SLO{}); r.PrefixHitRatio != nil {
			hits[i] = *r.PrefixHitRatio
		}
	}
	var table strings.Builder
	err = WriteTable(&table, results)
	return results, hits, fmt.Sprintf("%sprefix hits one by one: %.3f and %.3f", &table, hits[0], hits[1]), err
}

// ContestWorkload is the workload of contests, some conversations of many turns.
func ContestWorkload(duration time.Duration) Workload {
	return Workload{
		Duration: duration, Rate: 16, Groups: 16, SystemTokens: 3000, QuestionTokens: 80, OutputTokens: 48, Turns: 3,
		Think: 400 * time.Millisecond, Seed: 1,
	}
}
