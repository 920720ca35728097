package endpick_test

import (
	"cmp"
	"errors"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// machine drives a router and its twin side by side.
type machine struct {
	twin
	router   *endpick.Router
	clock    *clock
	shift    time.Duration // from the clock to the router's time
	spies    []*spy
	current  int
	marks    []pairedMark
	ttft     time.Duration // predicted by the policies; negative: nothing
	rejected int
	reaped   int
	routed   int
	mirrored int
}

type pairedMark struct {
	id   string
	real endpick.Snapshot
	twin twinMark
}

var errNotToday = errors.New("not today")

// policy is one of three, with the spy that observes it.
func (m *machine) policy(i int) endpick.Policy {
	p := endpick.Policy{
		Name:    "policy",
		Matcher: matchFunc(func(req *endpick.Request, c *endpick.Candidate) int { return held(req, c.Endpoint.ID) }),
		Predictor: predictFunc(func(*endpick.Request, *endpick.Candidate) endpick.Prediction {
			if m.ttft < 0 {
				return endpick.Prediction{}
			}
			return endpick.Prediction{Has: endpick.TTFT, TTFT: m.ttft, TTFTUpper: 2 * m.ttft}
		}),
		Scorers: []endpick.Weighted{{Scorer: m.spies[i], Weight: 1}, {Scorer: scoreFunc(leastLoaded), Weight: 2}},
	}
	switch i {
	case 1:
		p.Filters = []endpick.Filter{keepIf(func(c *endpick.Candidate) bool { return c.Waiting < 2 })}
		p.Picker = endpick.WeightedRandom{}
	case 2:
		p.Admitters = []endpick.Admitter{admitFunc(func(req *endpick.Request) error {
			if req.Priority < 0 {
				return errNotToday
			}
			return nil
		})}
		p.Picker = endpick.PowerOfTwo{}
	}
	return p
}

var (
	someID    = rapid.SampledFrom([]string{"a", "b", "c", "d", "e"})
	someModel = rapid.SampledFrom([]string{"", "llama", "qwen", "lora"})
)

func (m *machine) endpoint(t *rapid.T) endpick.Endpoint {
	e := endpick.Endpoint{ID: someID.Draw(t, "id")}
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 1:
		e.Models = []string{"llama"}
	case 2:
		e.Models, e.Adapters = []string{"llama", "qwen"}, []string{"lora"}
	case 3:
		e.Models, e.Adapters = []string{"qwen"}, []string{"qwen"}
	}
	if rapid.Bool().Draw(t, "limited") {
		e.MaxInFlight = rapid.IntRange(0, 2).Draw(t, "most")
		e.MaxContext = rapid.SampledFrom([]int{0, 1000, 2000}).Draw(t, "context")
		e.Tier = rapid.IntRange(0, 2).Draw(t, "tier")
		e.Weight = rapid.SampledFrom([]float64{0, 0.5, 3}).Draw(t, "weight")
	}
	return e
}

func (m *machine) add(t *rapid.T) {
	e := m.endpoint(t)
	err := m.router.Add(e)
	if m.endpoints[e.ID] != nil {
		require.ErrorIs(t, err, endpick.ErrDuplicateEndpoint)
		return
	}
	require.NoError(t, err)
	m.endpoints[e.ID] = &twinEndpoint{Endpoint: e}
}

// known reports whether the endpoint exists, after checking the router's error.
func (m *machine) known(t *rapid.T, id string, err error) bool {
	if m.endpoints[id] == nil {
		require.ErrorIs(t, err, endpick.ErrUnknownEndpoint)
		return false
	}
	require.NoError(t, err)
	return true
}

// set sets a list of old and new endpoints, some of them invalid.
func (m *machine) set(t *rapid.T) {
	list := map[string]endpick.Endpoint{}
	for range rapid.IntRange(0, 4).Draw(t, "endpoints") {
		e := m.endpoint(t)
		list[e.ID] = e
	}
	endpoints := slices.SortedFunc(maps.Values(list), func(a, b endpick.Endpoint) int { return cmp.Compare(a.ID, b.ID) })
	switch rapid.IntRange(0, 5).Draw(t, "mistake") {
	case 0:
		require.ErrorIs(t, m.router.SetEndpoints(append(endpoints, endpick.Endpoint{})), endpick.ErrBadEndpoint)
		return
	case 1:
		if len(endpoints) > 0 {
			require.ErrorIs(t, m.router.SetEndpoints(append(endpoints, endpoints[0])), endpick.ErrDuplicateEndpoint)
			return
		}
	}
	before := len(m.spies[m.current].gone)
	require.NoError(t, m.router.SetEndpoints(endpoints))
	gone := 0
	for id, e := range m.endpoints {
		if _, stays := list[id]; !stays {
			m.departed = append(m.departed, e)
			delete(m.endpoints, id)
			gone++
		}
	}
	for id, e := range list {
		if m.endpoints[id] == nil {
			m.endpoints[id] = new(twinEndpoint)
		}
		m.endpoints[id].Endpoint = e
	}
	require.Len(t, m.spies[m.current].gone, before+gone)
}

func (m *machine) update(t *rapid.T) {
	e := m.endpoint(t)
	if m.known(t, e.ID, m.router.Update(e)) {
		m.endpoints[e.ID].Endpoint = e
	}
}

func (m *machine) drain(t *rapid.T) {
	id := someID.Draw(t, "id")
	if m.known(t, id, m.router.Drain(id)) {
		m.endpoints[id].draining = true
	}
}

func (m *machine) resume(t *rapid.T) {
	id := someID.Draw(t, "id")
	if m.known(t, id, m.router.Resume(id)) {
		m.endpoints[id].draining = false
	}
}

func (m *machine) remove(t *rapid.T) {
	id := someID.Draw(t, "id")
	before := len(m.spies[m.current].gone)
	if m.known(t, id, m.router.Remove(id)) {
		m.departed = append(m.departed, m.endpoints[id])
		delete(m.endpoints, id)
		require.Len(t, m.spies[m.current].gone, before+1)
	}
}

func (m *machine) mark(t *rapid.T) {
	id := someID.Draw(t, "id")
	m.marks = append(m.marks, pairedMark{id: id, real: m.router.Snapshot(id), twin: m.twin.mark(id)})
}

func (m *machine) report(t *rapid.T) {
	// Multiples of 1/64, so that the twin's sums are exact in any order.
	fraction := func(most int, name string) float64 { return float64(rapid.IntRange(0, 64*most).Draw(t, name)) / 64 }
	load := endpick.Load{
		Waiting: fraction(10, "waiting"),
		Running: fraction(10, "running"),
		KVUsage: fraction(1, "KV usage"),
		Asleep:  rapid.IntRange(0, 3).Draw(t, "asleep") == 0,
		Absent:  endpick.Signals(rapid.SampledFrom([]int{0, 0, 0, 1, 2, 3, 4, 5, 6, 7}).Draw(t, "absent")),
	}
	id := someID.Draw(t, "id")
	if e := m.endpoints[id]; e != nil && e.report != nil && rapid.Bool().Draw(t, "again") {
		load = e.report.Load
		load.Snapshot = endpick.Snapshot{}
	}
	mark := m.twin.mark(id)
	if n := len(m.marks); n > 0 && rapid.Bool().Draw(t, "marked") {
		paired := m.marks[rapid.IntRange(0, n-1).Draw(t, "mark")]
		id, load.Snapshot, mark = paired.id, paired.real, paired.twin
	}
	broken := rapid.SampledFrom([]float64{0, 0, 0, nan, inf, -inf, -1, 1e300}).Draw(t, "broken")
	signals := []struct {
		name   string
		signal endpick.Signals
		value  *float64
	}{
		{"waiting", endpick.WaitingSignal, &load.Waiting},
		{"running", endpick.RunningSignal, &load.Running},
		{"KV usage", endpick.KVUsageSignal, &load.KVUsage},
	}
	which := signals[rapid.IntRange(0, 2).Draw(t, "which")]
	if broken != 0 {
		*which.value = broken
	}
	refused := broken != 0 && load.Absent&which.signal == 0
	err := m.router.Report(id, load)
	e := m.endpoints[id]
	if e == nil || mark.endpoint != e {
		require.ErrorIs(t, err, endpick.ErrUnknownEndpoint)
		return
	}
	var bad *endpick.LoadError
	require.Equal(t, refused, errors.As(err, &bad), "%v", err)
	if refused {
		require.Equal(t, which.name, bad.Signal)
		load.Absent |= which.signal
	}
	before := e.report
	if before != nil && before.mark.at.After(mark.at) {
		return // the current one is newer
	}
	e.report = m.counted(load, mark)
	if before != nil && before.says() == e.report.says() { // it is the same page
		e.report.requests, e.report.prefills = before.requests, before.prefills
	}
}

func (m *machine) route(t *rapid.T) {
	var receipt endpick.Receipt
	req := endpick.Request{
		Model:       someModel.Draw(t, "model"),
		InputTokens: rapid.IntRange(0, 5000).Draw(t, "input"),
		Session:     rapid.SampledFrom([]string{"x", "y"}).Draw(t, "session"),
		Stream:      rapid.Bool().Draw(t, "stream"),
		Priority:    rapid.IntRange(-1, 1).Draw(t, "priority"),
		Exclude:     rapid.SliceOfN(someID, 0, 2).Draw(t, "exclude"),
		Avoid:       rapid.SliceOfN(someID, 0, 3).Draw(t, "avoid"),
		Receipt:     &receipt,
	}
	m.ttft = rapid.SampledFrom([]time.Duration{-1, 0, time.Second, time.Hour}).Draw(t, "predicted TTFT")

	lease, err := m.router.Route(req)
	m.notice(t) // Route reaps before it looks
	candidates, full, longest := m.candidates(&req)
	expected := m.view(candidates)
	require.Equal(t, err, receipt.Err)
	if longest > 0 {
		require.Equal(t, &endpick.ContextError{Model: req.Model, InputTokens: req.InputTokens, MaxContext: longest}, err)
		return
	}
	if len(expected) == 0 {
		var none *endpick.NoEndpointError
		require.ErrorAs(t, err, &none)
		serving, draining, excluded := 0, 0, 0
		for id, e := range m.endpoints {
			if !e.serves(req.Model) {
				continue
			}
			serving++
			switch {
			case e.draining:
				draining++
			case slices.Contains(req.Exclude, id):
				excluded++
			}
		}
		want := endpick.NoEndpointError{Model: req.Model, Endpoints: len(m.endpoints), Serving: serving, Excluded: excluded, Draining: draining, Full: full}
		if serving == 0 {
			for _, e := range m.endpoints {
				want.Others = append(want.Others, slices.Concat(e.Models, e.Adapters)...)
			}
			slices.Sort(want.Others)
			want.Others = slices.Compact(want.Others)
		}
		require.Equal(t, want, *none)
		require.Equal(t, endpick.Lease{}, lease)
		return
	}
	require.Len(t, receipt.Verdicts, len(expected))
	serving := 0
	for _, e := range m.endpoints {
		if e.serves(req.Model) && !e.draining {
			serving++
		}
	}
	require.Equal(t, serving, len(expected)+receipt.Excluded+len(receipt.Avoided)+receipt.TooShort+receipt.Full+receipt.Later)
	for _, v := range receipt.Verdicts {
		c := v.Candidate
		want, ok := expected[c.Endpoint.ID]
		require.True(t, ok, c.Endpoint.ID)
		requireSeen(t, want, c)
		require.Equal(t, held(&req, c.Endpoint.ID), c.PrefixTokens)
	}
	if m.current == 2 && req.Priority < 0 {
		require.ErrorAs(t, err, new(*endpick.RejectedError))
		require.ErrorIs(t, err, errNotToday)
		require.Equal(t, -1, receipt.Chosen)
		m.rejected++
		return
	}
	require.NoError(t, err)
	chosen := receipt.Verdicts[receipt.Chosen]
	id := chosen.Candidate.Endpoint.ID
	require.Same(t, lease.Endpoint(), chosen.Candidate.Endpoint)
	require.Empty(t, chosen.RemovedBy)
	require.GreaterOrEqual(t, receipt.Regret, 0.0)
	if m.current == 0 {
		require.Zero(t, receipt.Regret)
	}
	m.opened(t, lease, &req, held(&req, id))
}

// adopt routes a request that its endpoint has already, whether or not that takes any.
func (m *machine) adopt(t *rapid.T) {
	id := someID.Draw(t, "id")
	a := &endpick.Adopted{Endpoint: id, Mirrored: rapid.Bool().Draw(t, "mirrored"), ExpectedCached: rapid.IntRange(-1, 6000).Draw(t, "cached")}
	req := endpick.Request{
		Model: someModel.Draw(t, "model"), InputTokens: rapid.IntRange(0, 5000).Draw(t, "input"), Stream: rapid.Bool().Draw(t, "stream"),
		Priority: -1, Exclude: []string{id}, Adopted: a,
	}
	m.ttft = -1
	lease, err := m.router.Route(req)
	m.notice(t)
	if !m.known(t, id, err) {
		return
	}
	require.Equal(t, id, lease.Endpoint().ID)
	matched := held(&req, id)
	if a.Mirrored {
		m.mirrored++
		matched = min(max(a.ExpectedCached, 0), max(req.InputTokens-1, 0))
	}
	m.opened(t, lease, &req, matched)
}

// opened keeps account of a lease.
func (m *machine) opened(t *rapid.T, lease endpick.Lease, req *endpick.Request, matched int) {
	m.routed++
	l := &twinLease{
		lease: lease, spy: m.spies[m.current], endpoint: m.endpoints[lease.Endpoint().ID],
		input: req.InputTokens, matched: matched, stream: req.Stream, prefilling: true, heard: m.now,
	}
	switch {
	case m.ttft < 0:
	case req.Stream:
		l.again = 3 * max(min(2*m.ttft, m.timeout/3), time.Millisecond)
		l.prefillEnd = m.now.Add(l.again)
	default:
		l.prefillEnd = m.now.Add(min(m.ttft, m.timeout))
	}
	l.endpoint.requests = append(l.endpoint.requests, 1)
	l.endpoint.prefills = append(l.endpoint.prefills, 1)
	l.endpoint.leases = append(l.endpoint.leases, l)
	m.leases = append(m.leases, l)
	require.Contains(t, l.spy.open, lease.Ref())
}

// lease draws any lease there ever was: calls on a closed one must do nothing.
func (m *machine) lease(t *rapid.T) *twinLease {
	if len(m.leases) == 0 {
		t.Skip("no leases yet")
	}
	// The newest are most likely to be open.
	return m.leases[len(m.leases)-1-rapid.IntRange(0, len(m.leases)-1).Draw(t, "lease")]
}

func (m *machine) firstToken(t *rapid.T) {
	l := m.lease(t)
	l.lease.FirstToken()
	if !l.closed {
		m.hear(l)
		l.firstToken()
	}
}

func (m *machine) tokens(t *rapid.T) {
	l := m.lease(t)
	n := rapid.IntRange(-1, 50).Draw(t, "tokens")
	l.lease.Tokens(n)
	if l.closed {
		return
	}
	m.hear(l)
	if n > 0 {
		l.output += n
		if l.stream {
			l.firstToken()
		}
		l.endPrefill()
	}
}

func (m *machine) candidate(t *rapid.T) {
	l := m.lease(t)
	c, ok := l.lease.Candidate()
	require.Equal(t, !l.closed, ok)
	if ok {
		require.Same(t, l.lease.Endpoint(), c.Endpoint)
		require.Equal(t, l.matched, c.PrefixTokens)
	}
}

func (m *machine) done(t *rapid.T) {
	l := m.lease(t)
	o := endpick.Outcome{
		Status:       rapid.SampledFrom([]endpick.Status{endpick.Completed, endpick.Failed, endpick.Canceled}).Draw(t, "status"),
		InputTokens:  rapid.IntRange(-1, 6000).Draw(t, "engine's input"), // may differ from what was routed
		OutputTokens: rapid.IntRange(-1, 500).Draw(t, "usage"),
	}
	require.Equal(t, !l.closed, l.lease.Done(o))
	if l.closed {
		return
	}
	l.close()
	closed := l.spy.take()
	require.Len(t, closed, 1)
	require.Equal(t, l.lease.Ref(), closed[0].key)
	require.Equal(t, o.Status, closed[0].outcome.Status)
	require.Equal(t, l.first, closed[0].first)
	want := l.output
	if o.OutputTokens > 0 {
		want = o.OutputTokens
	}
	require.Equal(t, want, closed[0].event.OutputTokens)
}

// notice closes the twin's leases that the router has reaped, after checking
// that they were due.
func (m *machine) notice(t *rapid.T) (reaped int) {
	for _, s := range m.spies {
		for _, h := range s.take() {
			require.Equal(t, endpick.Lost, h.outcome.Status)
			i := slices.IndexFunc(m.leases, func(l *twinLease) bool { return l.lease.Ref() == h.key && !l.closed })
			require.GreaterOrEqual(t, i, 0)
			require.Same(t, s, m.leases[i].spy)
			require.True(t, m.lost(m.leases[i]), "reaped too early")
			m.leases[i].close()
			reaped++
		}
	}
	m.reaped += reaped
	return reaped
}

func (m *machine) sweep(t *rapid.T) {
	require.Equal(t, m.router.Sweep(m.clock.Now()), m.notice(t))
	for _, l := range m.leases {
		require.False(t, m.lost(l), "not reaped")
	}
}

func (m *machine) pass(t *rapid.T) {
	d := rapid.SampledFrom([]time.Duration{
		time.Millisecond, time.Second, 30 * time.Second, time.Minute, 11 * time.Minute, -time.Millisecond, -time.Second, -5 * time.Minute, -3 * time.Hour,
	}).Draw(t, "time")
	m.clock.advance(d)
	at := m.clock.Now().Add(m.shift)
	switch behind := m.now.Sub(at); {
	case behind >= time.Second: // it has been set back
		m.shift += behind
	case behind <= 0:
		m.now = at
	}
}

func (m *machine) setPolicy(t *rapid.T) {
	m.current = rapid.IntRange(0, 2).Draw(t, "policy")
	require.NoError(t, m.router.SetPolicy(m.policy(m.current)))
}

func requireSeen(t *rapid.T, want, got endpick.Candidate) {
	id := got.Endpoint.ID
	require.Equal(t, want.InFlight, got.InFlight, id)
	require.Equal(t, want.Reported, got.Reported, id)
	require.InDelta(t, want.Waiting, got.Waiting, 1e-9, "waiting of %s", id)
	require.InDelta(t, want.Running, got.Running, 1e-9, "running of %s", id)
	require.InDelta(t, want.KVUsage, got.KVUsage, 1e-9, "KV usage of %s", id)
	require.GreaterOrEqual(t, math.Min(got.Waiting, got.Running), 0.0, id)
}

// check compares all counts after every step.
func (m *machine) check(t *rapid.T) {
	m.tick()
	all := m.router.Endpoints()
	expected := m.view(m.endpoints)
	open, departing := 0, 0
	slots := map[uint32]bool{}
	for _, s := range all {
		c := s.Candidate
		require.False(t, slots[c.Ref.Slot], "two endpoints in slot %d", c.Ref.Slot)
		slots[c.Ref.Slot] = true
		open += c.InFlight.Requests
		if s.Removed {
			departing++
			continue
		}
		e := m.endpoints[c.Endpoint.ID]
		require.NotNil(t, e)
		require.Equal(t, e.Endpoint.Models, c.Endpoint.Models)
		require.Equal(t, e.draining, s.Draining)
		requireSeen(t, expected[c.Endpoint.ID], c)
	}
	require.Len(t, all, len(m.endpoints)+departing)
	wantDeparting, wantOpen, closed := 0, 0, 0
	for _, e := range m.departed {
		if e.inFlight().Requests > 0 {
			wantDeparting++
		}
	}
	for _, l := range m.leases {
		if l.closed {
			closed++
		} else {
			wantOpen++
		}
	}
	require.Equal(t, wantOpen, open, "conservation")
	require.Equal(t, endpick.Stats{
		Routed: uint64(m.routed), Closed: uint64(closed), Reaped: uint64(m.reaped), Rejected: uint64(m.rejected),
		NoEndpoint: m.router.Stats().NoEndpoint, Undecided: m.router.Stats().Undecided, OpenLeases: wantOpen,
		Seed: 7, Endpoints: len(m.endpoints), RemovedOpen: wantDeparting, Mirrored: uint64(m.mirrored),
	}, m.router.Stats())
	for _, s := range m.spies {
		require.Empty(t, s.faults)
	}
}

// The open leases are the sum of what is in flight, in requests and tokens,
// whatever happens in whatever order; after the last lease all counts are zero.
func TestConservation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := new(clock)
		m := &machine{
			twin:  twin{now: c.Now(), maxAge: time.Minute, timeout: 10 * time.Minute, endpoints: map[string]*twinEndpoint{}},
			clock: c, spies: []*spy{{}, {}, {}}, ttft: -1,
		}
		m.router = rig.Must(endpick.New(endpick.Config{Clock: c.Now, Policy: m.policy(0), Seed: 7}))
		actions := map[string]func(*rapid.T){
			"add": m.add, "set": m.set, "update": m.update, "drain": m.drain, "resume": m.resume, "remove": m.remove,
			"mark": m.mark, "report": m.report, "report again": m.report,
			"route": m.route, "route again": m.route, "route more": m.route, "adopt": m.adopt,
			"first token": m.firstToken, "tokens": m.tokens, "candidate": m.candidate,
			"done": m.done, "done again": m.done, "sweep": m.sweep, "pass": m.pass, "set policy": m.setPolicy,
			"": m.check,
		}
		for range 4 { // long stories, so that slots are reused
			t.Repeat(actions)
		}
		for _, l := range m.leases {
			require.Equal(t, !l.closed, l.lease.Done(endpick.Outcome{}))
			require.False(t, l.lease.Done(endpick.Outcome{}))
		}
		requireQuiet(t, m.router)
	})
}
