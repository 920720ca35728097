package traffic

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// Gate holds requests in front of servers until it is opened, so that it is known where
// all were sent before anything is computed. It is safe for concurrent use.
type Gate struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each change
	held    int
	round   int
}

// NewGate returns a closed gate.
func NewGate() *Gate { return &Gate{changed: make(chan struct{})} }

// Wrap puts the gate in front of a server's prompts.
func (g *Gate) Wrap(server http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		if in.Method == http.MethodPost {
			g.hold(in.Context())
		}
		server.ServeHTTP(w, in)
	})
}

func (g *Gate) hold(ctx context.Context) {
	g.mu.Lock()
	g.held++
	round := g.round
	g.wake()
	g.mu.Unlock()
	_ = g.until(ctx, func() bool { return g.round > round })
}

// open releases all held requests.
func (g *Gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.round++
	g.held = 0
	g.wake()
}

func (g *Gate) wake() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// until waits for a condition, which is evaluated under the lock.
func (g *Gate) until(ctx context.Context, holds func() bool) error {
	for {
		g.mu.Lock()
		ok, changed := holds(), g.changed
		g.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// PlayInStep plays conversations regardless of their times: so many at once, a turn of
// each in every step. The requests of a step are sent one after the other, each when
// the previous one has reached a server, and answered when all have; the next step
// begins when leases says that nothing is open. So what a router knows at each decision
// hardly depends on the machine: only the order in which servers compute a step is left
// to chance. gate is that of all servers.
func (c *Client) PlayInStep(ctx context.Context, conversations []Conversation, atOnce int, gate *Gate, leases func() int) (samples []Sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var playing []*stepped
	for {
		for len(playing) < atOnce && len(conversations) > 0 {
			first := &conversations[0]
			playing = append(playing, &stepped{of: first, messages: []Message{{Role: "system", Content: first.System}}})
			conversations = conversations[1:]
		}
		if len(playing) == 0 {
			return samples, nil
		}
		step := make([]Sample, len(playing))
		var asked sync.WaitGroup
		for i, p := range playing {
			turn := p.of.Turns[p.turn]
			p.messages = append(p.messages, Message{Role: "user", Content: turn.Question})
			// A request that ends before the gate is open has failed.
			arrives, ended := context.WithCancel(ctx)
			asked.Go(func() {
				defer ended()
				step[i] = c.Ask(ctx, time.Now(), p.messages, turn.output)
			})
			if err := gate.until(arrives, func() bool { return gate.held > i }); err != nil {
				cancel()
				asked.Wait()
				return samples, fmt.Errorf("traffic: request %d of a step has reached no server: %w", i, step[i].Err)
			}
		}
		gate.open()
		asked.Wait()
		going := playing[:0]
		for i, p := range playing {
			step[i].Turn = p.turn
			p.messages = append(p.messages, Message{Role: "assistant", Content: step[i].Text})
			if p.turn++; p.turn < len(p.of.Turns) && step[i].Err == nil {
				going = append(going, p)
			}
		}
		playing = going
		samples = append(samples, step...)
		for leases() > 0 { // a response is complete before its end is seen everywhere
			if err := ctx.Err(); err != nil {
				return samples, fmt.Errorf("traffic: %d leases are left open", leases())
			}
			time.Sleep(100 * time.Microsecond)
		}
	}
}

// stepped is a conversation being played.
type stepped struct {
	of       *Conversation
	turn     int
	messages []Message
}
