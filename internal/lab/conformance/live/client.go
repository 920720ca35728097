package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick/internal/lab/rig"
)

// patience is the time limit for anything that has to happen.
const patience = 30 * time.Second

// fate is what becomes of a request.
type fate int

const (
	answered fate = iota
	left          // abandoned by its client
	refused       // it was invalid, or a server has refused it
	broken        // a server broke off, or was killed, after the client had received something
	failed        // each attempt failed before the client had received anything
	// Violations:
	lost    // not all attempts failed, but the client received nothing
	puzzled // the response is incomplete, but no server broke it off
	fates
)

var fateNames = [fates]string{"answered", "left by clients", "refused", "broken off", "failed at each attempt", "lost", "not whole"}

// tally has the counts of a way.
type tally struct {
	fates   [fates]atomic.Int64
	streams atomic.Int64 // open slow streams
	most    atomic.Int64 // maximum of these

	mu    sync.Mutex
	wrong []string // violations
}

func (t *tally) requests() (n int64) {
	for f := range t.fates {
		n += t.fates[f].Load()
	}
	return n
}

func (t *tally) wrongly(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.wrong) < 10 {
		t.wrong = append(t.wrong, fmt.Sprintf(format, args...))
	}
}

// clients are those of one way.
type clients struct {
	way     *way
	book    *book
	servers map[string]*server
	number  *atomic.Uint64
	seed    uint64
	pace    time.Duration // between the events of slow streams
}

// prompts are sent repeatedly.
var prompts = func() (all []string) {
	r := rand.New(rand.NewPCG(1, 1))
	words := strings.Fields("all work and no play makes Jack a dull boy while the rest of the town sleeps")
	for range 200 {
		var b strings.Builder
		for range 50 + r.IntN(800) {
			b.WriteString(words[r.IntN(len(words))] + " ")
		}
		all = append(all, b.String())
	}
	return all
}()

// shapes are the bodies that cost most, in the order of their names.
var shapes = func() (all []rig.Body) {
	byName := rig.Bodies()
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		all = append(all, byName[name])
	}
	return all
}()

// work sends requests one after the other until ctx is done. With slow they are slow
// streams.
func (c *clients) work(ctx context.Context, n int, slow bool) {
	r := rand.New(rand.NewPCG(c.seed, uint64(n)))
	if slow { // staggers them
		sleep(ctx, time.Duration(r.Int64N(int64(c.pace))))
	}
	for ctx.Err() == nil {
		c.ask(r, slow)
	}
}

// manner is how a request is sent.
type manner struct {
	path    string
	body    []byte
	stream  bool
	hostile bool
	leaves  time.Duration // after so long. Zero: it does not leave
	peeks   bool          // it leaves after the first bytes
}

func (c *clients) manner(r *rand.Rand, slow bool) manner {
	m := manner{path: "/v1/chat/completions", stream: slow || r.IntN(3) > 0}
	m.body = fmt.Appendf(nil, `{"model":"m","stream":%v,"messages":[{"role":"system","content":%q},{"role":"user","content":"question %d"}]}`,
		m.stream, prompts[r.IntN(len(prompts))], r.IntN(100))
	if c.way.router == nil || slow && r.IntN(10) > 0 {
		return m
	}
	switch k := r.IntN(100); {
	case k < 4:
		m.leaves = time.Duration(1 + r.IntN(8_000_000))
	case k < 8:
		m.peeks = true
	case k < 10 && !slow:
		s := shapes[r.IntN(len(shapes))]
		m.path, m.body, m.hostile = s.Path, s.Bytes(4<<10), true
	}
	return m
}

// ask sends one request.
func (c *clients) ask(r *rand.Rand, slow bool) {
	m := c.manner(r, slow)
	name := "request-" + strconv.FormatUint(c.number.Add(1), 10)
	trace := c.book.begin(name)
	defer c.book.forget(name)
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	if m.leaves > 0 {
		defer time.AfterFunc(m.leaves, cancel).Stop()
	}
	in, err := http.NewRequestWithContext(ctx, http.MethodPost, behind+m.path, bytes.NewReader(m.body))
	if err != nil {
		panic(err)
	}
	in.Header.Set("Content-Type", "application/json")
	in.Header.Set(nameHeader, name)
	if c.way.router == nil {
		in.Header.Set(goodHeader, "yes")
	}
	if slow {
		in.Header.Set(paceHeader, strconv.FormatInt(c.pace.Milliseconds(), 10))
		t := &c.way.tally
		for n, most := t.streams.Add(1), t.most.Load(); n > most && !t.most.CompareAndSwap(most, n); most = t.most.Load() {
		}
		defer t.streams.Add(-1)
	}
	response, err := c.way.client.Do(in)
	s := seen{err: err}
	if err == nil {
		s.status = response.StatusCode
		if m.peeks {
			_, s.err = io.ReadFull(response.Body, make([]byte, 100))
			s.left = true
			cancel()
		} else {
			s.body, s.err = io.ReadAll(response.Body)
		}
		_ = response.Body.Close()
	}
	if m.leaves > 0 && ctx.Err() != nil {
		s.left = true
	}
	s.late = ctx.Err() == context.DeadlineExceeded
	c.settle(&m, &s, trace)
}

// seen is what a client has received.
type seen struct {
	status int // zero: nothing
	body   []byte
	err    error
	left   bool // the client left on purpose
	late   bool // nothing has arrived for a very long time
}

// whole reports whether the response is complete.
func (s *seen) whole(m *manner) bool {
	switch {
	case s.status != http.StatusOK || s.err != nil:
		return false
	case m.hostile:
		return bytes.HasSuffix(s.body, []byte(done)) || string(s.body) == answer
	case m.stream:
		return bytes.HasSuffix(s.body, []byte(finish+done)) && bytes.Count(s.body, []byte(`" work`)) == tokens
	}
	return string(s.body) == answer
}

// settle determines the fate of a request.
func (c *clients) settle(m *manner, s *seen, t *trace) {
	tally := &c.way.tally
	count := func(f fate) { tally.fates[f].Add(1) }
	if s.late {
		count(lost)
		tally.wrongly("%s: a client has waited for %v", c.way.name, 2*patience)
		return
	}
	if s.left {
		count(left)
		return
	}
	if s.whole(m) {
		count(answered)
		return
	}
	if s.err == nil && s.status >= 400 && s.status < 500 && s.status != http.StatusTooManyRequests {
		count(refused)
		if !m.hostile {
			tally.wrongly("%s: a good request is refused: %d %.200s", c.way.name, s.status, s.body)
			count(lost)
		}
		return
	}
	if !t.settle(patience) {
		tally.wrongly("%s: a request has ended, and %d leases are open and %d attempts under way", c.way.name, t.open, t.running)
	}
	cause, explained := c.cause(t)
	switch f := s.fate(); {
	case explained:
		count(f)
	case f == failed:
		tally.wrongly("%s: %+v: %d %.200s %v: %s", c.way.name, m.path, s.status, s.body, s.err, cause)
		count(lost)
	default:
		tally.wrongly("%s: %+v: %d …%.200s %v: %s", c.way.name, m.path, s.status, s.body[max(len(s.body)-200, 0):], s.err, cause)
		count(puzzled)
	}
}

// fate is the fate of an incomplete request, if there is an explanation.
func (s *seen) fate() fate {
	if s.status == http.StatusOK && len(s.body) > 0 && !errors.Is(s.err, http.ErrBodyReadAfterClose) {
		return broken
	}
	return failed
}

// cause describes a failed request from what servers and router know; true: each
// attempt failed.
func (c *clients) cause(t *trace) (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []string
	explained := len(t.leases) > 0
	reached := map[string]int{}
	for _, a := range t.attempts {
		all = append(all, about[a.fault].name)
		reached[a.server]++
		if about[a.fault].good && !c.servers[a.server].downSince(t.began) {
			explained = false
			if !a.whole {
				all[len(all)-1] += ", not to its end"
			}
		}
	}
	for id, n := range t.leases {
		for range n - reached[id] {
			all = append(all, "is down")
			explained = explained && c.servers[id].downSince(t.began)
		}
	}
	if len(t.leases) == 0 {
		all = append(all, "was never routed")
	}
	return strings.Join(all, ", then "), explained
}
