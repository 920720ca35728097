package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/sim"
)

// oracle searches for the best assignment of requests to servers, by simulated annealing. In an open
// loop, the assignment determines the whole outcome. The search begins with that of the best policy,
// moves requests, alone or with all later ones of their conversation, and replays exactly what
// each move changes.
type oracle struct {
	requests []sim.Request
	session  []uint64 // by request: what identifies its conversation
	lines    []line   // by server
	e2e      []float64
	ttft     []float64
	gains    []gain
}

// line is the requests of a server, in order of arrival, with the engine's state before some.
type line struct {
	config engine.Config
	queue  []int
	states []state
}

type state struct {
	before int // index into the queue
	engine *engine.Engine
}

// between is how many requests are between two states.
const between = 12

// gain is a move that was made, and how much it gained.
type gain struct {
	ms    float64
	words string
}

// replayed is what replaying a line has changed.
type replayed struct {
	line  line
	times map[int][2]float64 // by request: E2E and TTFT, in milliseconds
}

// replay plays a queue from the first request that differs.
func (o *oracle) replay(l *line, queue []int, differs int) (replayed, error) {
	r := replayed{line{config: l.config, queue: queue}, map[int][2]float64{}}
	var e *engine.Engine
	at := 0
	for _, s := range l.states {
		if s.before > differs {
			break
		}
		r.line.states = append(r.line.states, s)
		e, at = s.engine, s.before
	}
	if e == nil {
		var err error
		if e, err = engine.New(l.config); err != nil {
			return r, err
		}
		r.line.states = append(r.line.states, state{0, e})
	}
	e = e.Clone()
	var events []engine.Event
	hear := func() {
		for _, ev := range events {
			id := int(ev.ID)
			t, ms := r.times[id], float64(ev.At-o.requests[id].Arrival)/1e6
			if ev.Kind == engine.FirstToken {
				t[1] = ms
			} else if ev.Kind == engine.Completed {
				t[0] = ms
			}
			r.times[id] = t
		}
		events = events[:0]
	}
	for i := at; i < len(queue); i++ {
		q := &o.requests[queue[i]]
		if i > at && i%between == 0 {
			r.line.states = append(r.line.states, state{i, e.Clone()})
		}
		events = e.Advance(q.Arrival, events)
		hear()
		err := e.Submit(q.Arrival, engine.Request{ID: uint64(queue[i]), PromptTokens: q.InputTokens, OutputTokens: q.OutputTokens, Blocks: q.Blocks})
		if err != nil {
			return r, err
		}
	}
	events = e.Advance(engine.MaxTime/2, events)
	hear()
	return r, nil
}

// start plays an assignment.
func (o *oracle) start(fleet []sim.Server, assigned []int) error {
	o.lines = make([]line, len(fleet))
	for i := range fleet {
		o.lines[i].config = fleet[i].Engine
	}
	for i, s := range assigned {
		o.lines[s].queue = append(o.lines[s].queue, i)
	}
	o.e2e, o.ttft = make([]float64, len(assigned)), make([]float64, len(assigned))
	for i := range o.lines {
		r, err := o.replay(&o.lines[i], o.lines[i].queue, 0)
		if err != nil {
			return err
		}
		o.accept(i, &r)
	}
	return nil
}

func (o *oracle) accept(server int, r *replayed) {
	o.lines[server] = r.line
	for id, t := range r.times {
		o.e2e[id] = t[0]
		if t[1] > 0 { // otherwise its first token was before the replay
			o.ttft[id] = t[1]
		}
	}
}

// change is by how much everybody's E2E changes.
func (o *oracle) change(r *replayed) (sum float64) {
	for id, t := range r.times {
		sum += t[0] - o.e2e[id]
	}
	return sum
}

// move tries to move a request, or it and the later ones of its conversation on its server.
func (o *oracle) move(random *rand.Rand, temperature float64) (moved bool, err error) {
	from := random.IntN(len(o.lines))
	to := random.IntN(len(o.lines))
	if from == to || len(o.lines[from].queue) == 0 {
		return false, nil
	}
	old := o.lines[from].queue
	at := random.IntN(len(old))
	first, all := old[at], random.IntN(2) == 0
	var stay, leave []int
	for i, id := range old {
		if id == first || all && i > at && o.session[id] == o.session[first] {
			leave = append(leave, id)
		} else {
			stay = append(stay, id)
		}
	}
	joined := slices.Clone(o.lines[to].queue)
	place, _ := slices.BinarySearch(joined, first)
	joined = append(joined, leave...)
	slices.Sort(joined)
	left, err := o.replay(&o.lines[from], stay, at)
	if err != nil {
		return false, err
	}
	right, err := o.replay(&o.lines[to], joined, place)
	if err != nil {
		return false, nil // it does not fit there
	}
	// Those that moved are in the second result only, with their former times as before.
	change := o.change(&left) + o.change(&right)
	if change > 0 && random.Float64() >= math.Exp(-change/temperature) {
		return false, nil
	}
	if change < 0 {
		q := &o.requests[first]
		words := fmt.Sprintf("request %d at %.1f s (prompt %d, response %d) from server %d, which had %d, to %d, which had %d",
			first, q.Arrival.Seconds(), q.InputTokens, q.OutputTokens, from, o.there(from, q.Arrival), to, o.there(to, q.Arrival))
		if len(leave) > 1 {
			words += fmt.Sprintf(", with %d later ones of its conversation", len(leave)-1)
		}
		o.gains = append(o.gains, gain{-change, words})
	}
	o.accept(from, &left)
	o.accept(to, &right)
	return true, nil
}

// there is how many requests a server had.
func (o *oracle) there(server int, at time.Duration) (n int) {
	for _, id := range o.lines[server].queue {
		arrival := o.requests[id].Arrival
		if arrival < at && arrival+time.Duration(o.e2e[id]*1e6) > at {
			n++
		}
	}
	return n
}

// outcome describes an assignment by what its distance from another can consist of.
type outcome struct {
	e2e, ttft, late, computing, variance float64
}

func (o *oracle) outcome() (x outcome) {
	n := float64(len(o.requests))
	for i := range o.requests {
		x.e2e += o.e2e[i] / n
		x.ttft += o.ttft[i] / n
	}
	sorted := slices.Sorted(slices.Values(o.ttft))
	x.late = sorted[int(0.95*(n-1))]
	for i := range o.lines {
		if l := &o.lines[i]; len(l.states) > 0 {
			t := l.states[len(l.states)-1].engine.Totals()
			x.computing += t.PrefillBusy.Seconds() / max(t.Busy.Seconds(), 1e-9) / float64(len(o.lines))
		}
	}
	samples := 0.0
	for i := 0; i < len(o.requests); i += max(len(o.requests)/200, 1) {
		sum, squares := 0.0, 0.0
		for s := range o.lines {
			b := float64(o.there(s, o.requests[i].Arrival))
			sum, squares = sum+b, squares+b*b
		}
		k := float64(len(o.lines))
		x.variance += squares/k - sum/k*sum/k
		samples++
	}
	x.variance /= samples
	return x
}

// routes is a filter that leaves out nothing, and records where requests go.
type routes struct{ servers []int }

func (*routes) Name() string { return "routes" }

func (*routes) Filter(_ *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	return candidates
}

// Routed implements [endpick.RoutedObserver].
func (r *routes) Routed(ev *endpick.Event) { r.servers = append(r.servers, int(ev.Candidate.Ref.Slot)) }

// runOracle compares the policies of a comparison, in its first cell each, with the best
// assignment that a search finds.
func runOracle(args []string, stdout, stderr io.Writer) error {
	opts, err := readOptions(args, stderr)
	if err != nil {
		return err
	}
	o := &oracle{}
	tw := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(tw, "assignment\tE2E mean\tTTFT mean\tp95\tcomputing prompts\tvariance of load\t\n\tms\tms\tms\t% of steps' time\trequests²\t\n")
	write := func(name string) float64 {
		x := o.outcome()
		fmt.Fprintf(tw, "%s\t%.0f\t%.0f\t%.0f\t%.1f\t%.1f\t\n", name, x.e2e, x.ttft, x.late, 100*x.computing, x.variance)
		return x.e2e
	}
	var best []int
	var config sim.Config
	least := math.Inf(1)
	for _, p := range opts.policies {
		c := cell{&opts.sweeps[0], p, opts.sweeps[0].rates[0], opts.seeds[0]}
		if config, err = opts.config(c); err != nil {
			return err
		}
		if o.requests == nil {
			if err := o.take(config.Workload, c.seed); err != nil {
				return err
			}
		}
		r := &routes{}
		config.Workload = sim.Given(o.requests)
		config.Router = func() (endpick.Config, error) {
			c, err := newPolicy(p)
			c.Policy.Filters = append([]endpick.Filter{r}, c.Policy.Filters...)
			return c, err
		}
		if _, err := sim.Run(config); err != nil {
			return err
		}
		if len(r.servers) != len(o.requests) {
			return fmt.Errorf("%s: some requests were tried twice or refused; the search is for those that fit everywhere", p)
		}
		if err := o.start(config.Fleet, r.servers); err != nil {
			return err
		}
		if v := write(p); v < least {
			best, least = r.servers, v
		}
	}
	if err := o.start(config.Fleet, best); err != nil {
		return err
	}
	flattened, err := o.search(opts.seeds[0], opts.limit, opts.moves)
	if err != nil {
		return err
	}
	write("best found")
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "\nThe search, by tenths of its time: %s\n\nThe moves that gained most:\n", flattened)
	slices.SortStableFunc(o.gains, func(a, b gain) int { return cmp.Compare(b.ms, a.ms) })
	for _, g := range o.gains[:min(10, len(o.gains))] {
		fmt.Fprintf(stdout, "  %.1f s: %s\n", g.ms/1000, g.words)
	}
	return nil
}

// take takes all requests of a workload, as if they were answered at once.
func (o *oracle) take(w sim.Workload, seed uint64) error {
	source, err := w.Start(seed)
	if err != nil {
		return err
	}
	for {
		at, more := source.Next()
		if !more {
			break
		}
		r := source.Take()
		r.Arrival = at
		source.Done(&r, at)
		id := uint64(len(o.requests))
		if len(r.Blocks) > 0 {
			id = r.Blocks[min(len(r.Blocks)-1, r.SystemTokens/sim.BlockTokens)]
		}
		o.requests, o.session = append(o.requests, r), append(o.session, id)
	}
	if len(o.requests) < 2 {
		return fmt.Errorf("there is no more than a request")
	}
	return nil
}

// search anneals, and returns how E2E fell.
func (o *oracle) search(seed uint64, limit time.Duration, moves int) (string, error) {
	random := rand.New(rand.NewPCG(seed, 9))
	begun, tenth, text := time.Now(), -1, ""
	mean := o.outcome().e2e
	for n := 0; ; n++ {
		done := time.Since(begun).Seconds() / limit.Seconds()
		if moves > 0 {
			done = float64(n) / float64(moves)
		}
		if int(10*done) > tenth {
			tenth = int(10 * done)
			text += fmt.Sprintf("%.0f ", o.outcome().e2e)
		}
		if done >= 1 {
			return fmt.Sprintf("%sms after %d moves", text, n), nil
		}
		// From a tenth of a response down to nearly nothing.
		if _, err := o.move(random, mean/10*math.Pow(1e-3, done)); err != nil {
			return "", err
		}
	}
}
