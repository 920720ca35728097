package endpick_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Events at one endpoint, in order:
//
//	o  a request is routed there
//	f  the oldest request that waits for its first token gets it
//	d  the oldest request is done
//	m  a mark is taken
//	r  the report is made, with the mark if there is one
func play(t *testing.T, r *endpick.Router, story string, load endpick.Load) {
	var waiting, open []endpick.Lease
	for _, step := range story {
		switch step {
		case 'o':
			l := rig.Must(r.Route(endpick.Request{InputTokens: 100, Stream: true}))
			waiting, open = append(waiting, l), append(open, l)
		case 'f':
			waiting[0].FirstToken()
			waiting = waiting[1:]
		case 'd':
			open[0].Done(endpick.Outcome{})
			if len(waiting) > 0 && waiting[0] == open[0] {
				waiting = waiting[1:]
			}
			open = open[1:]
		case 'm':
			load.Snapshot = r.Snapshot("a")
		case 'r':
			require.NoError(t, r.Report("a", load))
		}
	}
}

func TestReportCorrection(t *testing.T) {
	const noWaiting, noRunning, noKV = endpick.WaitingSignal, endpick.RunningSignal, endpick.KVUsageSignal
	for _, c := range []struct {
		name             string
		story            string
		load             endpick.Load
		waiting, running float64
	}{
		{"no report: the account alone", "ooof", endpick.Load{}, 2, 1},
		{"a fresh report counts what is there already", "oofr", endpick.Load{Waiting: 1, Running: 1}, 1, 1},
		{"others' requests are in the report too", "or", endpick.Load{Waiting: 4, Running: 7}, 4, 7},
		// Two were opened since the mark, when there was one. Of the three the engine
		// counts one, two, all three, or requests of others as well.
		{"counted before both came", "omoor", endpick.Load{Waiting: 0, Running: 1}, 2, 1},
		{"counted between the two", "omoor", endpick.Load{Waiting: 1, Running: 1}, 2, 1},
		{"counted after both", "omoor", endpick.Load{Waiting: 2, Running: 1}, 2, 1},
		{"counted with others' requests", "omoor", endpick.Load{Waiting: 2, Running: 9}, 2, 9},
		// Of those that began to prefill since the mark, the engine counts as large a part: 2/3 of one is one, 1/3 is none.
		{"counted with two of three, one of which waits", "moooffr", endpick.Load{Waiting: 1, Running: 1}, 1, 2},
		{"counted with one of three, one of which waits", "moooffr", endpick.Load{Waiting: 1}, 2, 1},
		{"what is absent has not been counted", "mooor", endpick.Load{Waiting: 2, Running: nan, Absent: noRunning}, 3, 0},
		{"what is absent has not been counted either", "moooffr", endpick.Load{Waiting: 9, Running: 2, Absent: noWaiting}, 1, 3},
		{"counted before and after one was done", "ooffmdr", endpick.Load{Waiting: 0, Running: 1}, 0, 1},
		{"counted before one was done", "ooffmdr", endpick.Load{Waiting: 0, Running: 2}, 0, 1},
		{"opened since the report", "omroo", endpick.Load{Waiting: 1, Running: 1}, 3, 1},
		// BS = 3 + 1 − 2.
		{"opened and closed since the mark", "ooffmoddr", endpick.Load{Waiting: 1, Running: 2}, 2, 0},
		{"a request that came and went since the mark", "mofdr", endpick.Load{Waiting: 1, Running: 2}, 1, 2},
		{"moved from the queue to the batch", "oomfr", endpick.Load{Waiting: 2, Running: 0}, 1, 1},
		{"a report that knew nothing of those that closed", "oomddr", endpick.Load{}, 0, 0},
		{"more closed than reported", "ooofffmdddr", endpick.Load{Waiting: 1, Running: 1}, 0, 0},
		// The engine wrote its page before the first report, and not since.
		{"the same page again, before what came", "roor", endpick.Load{Waiting: 1, Running: 1}, 3, 1},
		{"and again", "roorofr", endpick.Load{Waiting: 1, Running: 1}, 3, 2},
		{"the same page again, with what has gone", "ooffrddr", endpick.Load{Running: 2}, 0, 0},
		{"the same page, of which a part is absent", "oorfrr", endpick.Load{Waiting: 2, Running: nan, Absent: noRunning}, 1, 1},
		// The sum, 1, is certain, but not its parts: W can't be 2 then.
		{"the queue is never more than the sum", "ooffmoddr", endpick.Load{Waiting: 1, Running: 1}, 1, 0},
		{"waiting only: running is the account", "oofmor", endpick.Load{Waiting: 5, Absent: noRunning}, 5, 1},
		{"running only: waiting is the account", "oofmofr", endpick.Load{Running: 5, Absent: noWaiting}, 1, 5},
		{"KV usage only: both are the account", "oof", endpick.Load{KVUsage: 0.5, Absent: noWaiting | noRunning}, 1, 1},
		{"nothing at all", "oofr", endpick.Load{Absent: noWaiting | noRunning | noKV}, 1, 1},
		{"absent fields are not read", "oofr", endpick.Load{Waiting: nan, Running: -4, Absent: noWaiting | noRunning}, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, _ := newRouter(endpick.Config{Endpoints: named("a")})
			play(t, r, c.story, c.load)
			got := status(t, r, "a").Candidate
			assert.Equal(t, c.waiting, got.Waiting, "waiting")
			assert.Equal(t, c.running, got.Running, "running")
			assert.Equal(t, c.waiting+c.running, got.BatchSize(), "batch size")
		})
	}
}

// Whatever a report says anew shows that the engine has counted again.
func TestNewReport(t *testing.T) {
	for _, load := range []endpick.Load{
		{Waiting: 3, Running: 4, KVUsage: 0.5},
		{Waiting: 2, Running: 5, KVUsage: 0.5},
		{Waiting: 2, Running: 4, KVUsage: 0.51},
		{Waiting: 2, Running: 4, Absent: endpick.KVUsageSignal},
	} {
		r, _ := newRouter(endpick.Config{Endpoints: named("a")})
		require.NoError(t, r.Report("a", endpick.Load{Waiting: 2, Running: 4, KVUsage: 0.5}))
		rig.Must(r.Route(endpick.Request{InputTokens: 100}))
		require.NoError(t, r.Report("a", load))
		got := status(t, r, "a").Candidate
		assert.Equal(t, load.Waiting+load.Running, got.BatchSize(), load)
	}
}

func TestAbsentIsNotZero(t *testing.T) {
	r, c := newRouter(endpick.Config{Endpoints: named("a", "b", "silent")})
	silent := func() *endpick.Candidate {
		c := status(t, r, "silent").Candidate
		return &c
	}

	assert.Equal(t, 0.5, silent().KVUsage, "nobody reports")
	assert.Zero(t, silent().BatchSize(), "nobody reports, nothing is in flight")
	assert.Nil(t, silent().Report)

	// (2 + 5)/2, (10 + 20)/2, (0.25 + 0.75)/2.
	require.NoError(t, r.Report("a", endpick.Load{Waiting: 2, Running: 10, KVUsage: 0.25}))
	require.NoError(t, r.Report("b", endpick.Load{Waiting: 5, Running: 20, KVUsage: 0.75}))
	got := silent()
	assert.Equal(t, []float64{3.5, 15, 0.5}, []float64{got.Waiting, got.Running, got.KVUsage})
	assert.Zero(t, got.Reported)

	// One absurd report counts like four times the next: (80 + 20)/2.
	require.NoError(t, r.Report("a", endpick.Load{Waiting: 2, Running: 1e9, KVUsage: 0.25}))
	assert.Equal(t, 50.0, silent().Running)

	// A reported zero is a zero.
	require.NoError(t, r.Report("silent", endpick.Load{}))
	got = silent()
	assert.Equal(t, []float64{0, 0, 0}, []float64{got.Waiting, got.Running, got.KVUsage})
	assert.Equal(t, endpick.WaitingSignal|endpick.RunningSignal|endpick.KVUsageSignal, got.Reported)

	// One signal is missing: only that is the mean of the others.
	require.NoError(t, r.Report("silent", endpick.Load{Waiting: 1, Running: 1, Absent: endpick.KVUsageSignal}))
	got = silent()
	assert.Equal(t, []float64{1, 1, 0.5}, []float64{got.Waiting, got.Running, got.KVUsage})
	var receipt endpick.Receipt
	rig.Must(r.Route(endpick.Request{Receipt: &receipt})).Done(endpick.Outcome{})
	assert.Contains(t, receipt.String(), "silent           W 1    R 1    K ~0.5")

	// A report counts for a minute, inclusive.
	require.NoError(t, r.Report("silent", endpick.Load{KVUsage: 0.125}))
	c.advance(time.Minute)
	assert.Equal(t, 0.125, silent().KVUsage)
	c.advance(1)
	assert.Equal(t, 0.5, silent().KVUsage, "out of date, like all others")

	// The mean does not override that the router knows of two requests there.
	require.NoError(t, r.Report("a", endpick.Load{}))
	require.NoError(t, r.Report("b", endpick.Load{}))
	for range 2 {
		rig.Must(r.Route(endpick.Request{Exclude: []string{"a", "b"}}))
	}
	assert.Equal(t, 2.0, silent().Waiting)

	// Without a prediction, there is no SLO.
	assert.False(t, endpick.SLO{}.Asked())
	assert.True(t, endpick.SLO{TPOT: 1}.Asked())
	assert.False(t, endpick.SLO{TTFT: -1}.Asked())
	assert.Zero(t, silent().Prediction.Has)
}

func TestEndpointValidation(t *testing.T) {
	with := func(r endpick.Resident) endpick.Endpoint {
		return endpick.Endpoint{ID: "a", Residents: []endpick.Resident{{Model: "first"}, r}}
	}
	for _, c := range []struct {
		endpoint endpick.Endpoint
		text     string
	}{
		{endpick.Endpoint{}, `endpick: endpoint "" has neither ID nor address`},
		{endpick.Endpoint{Address: "h:1", Ranked: true, Rank: -1}, `endpick: endpoint "h:1#-1" Rank is negative`},
		{endpick.Endpoint{Address: "h:1", Rank: 2}, `endpick: endpoint "h:1" has Rank 2, but is not Ranked`},
		{endpick.Endpoint{ID: "a", Models: []string{"m", ""}}, `endpick: endpoint "a" has an empty name at Models[1]`},
		{endpick.Endpoint{ID: "a", Adapters: strings.Split("", ",")}, `endpick: endpoint "a" has an empty name at Adapters[0]`},
		{endpick.Endpoint{ID: "a", MaxSequences: -1}, `endpick: endpoint "a" MaxSequences is negative`},
		{endpick.Endpoint{ID: "a", KVTokens: -1}, `endpick: endpoint "a" KVTokens is negative`},
		{endpick.Endpoint{ID: "a", MaxInFlight: -1}, `endpick: endpoint "a" MaxInFlight is negative`},
		{endpick.Endpoint{ID: "a", MaxContext: -1}, `endpick: endpoint "a" MaxContext is negative`},
		{endpick.Endpoint{ID: "a", Tier: -1}, `endpick: endpoint "a" Tier is negative`},
		{endpick.Endpoint{ID: "a", WakeTime: -1}, `endpick: endpoint "a" WakeTime is negative`},
		{endpick.Endpoint{ID: "a", Weight: math.NaN()}, `endpick: endpoint "a" Weight is negative or not finite`},
		{endpick.Endpoint{ID: "a", Weight: math.Inf(1)}, `endpick: endpoint "a" Weight is negative or not finite`},
		{endpick.Endpoint{ID: "a", MaxResidents: -1}, `endpick: endpoint "a" MaxResidents is negative`},
		{endpick.Endpoint{ID: "a\nb"}, `endpick: endpoint "a\nb" has an ID that is not printable UTF-8`},
		{endpick.Endpoint{ID: "\xff"}, `endpick: endpoint "\xff" has an ID that is not printable UTF-8`},
		{endpick.Endpoint{ID: "a", Address: "h h:80"}, `endpick: endpoint "a" has an address with spaces or control characters, or not in UTF-8`},
		{endpick.Endpoint{ID: "a", Address: "h\x00"}, `endpick: endpoint "a" has an address with spaces or control characters, or not in UTF-8`},
		{with(endpick.Resident{}), `endpick: endpoint "a" has a resident without a name, or one that is not printable UTF-8`},
		{with(endpick.Resident{Model: "\n"}), `endpick: endpoint "a" has a resident without a name, or one that is not printable UTF-8`},
		{with(endpick.Resident{Model: "m", State: endpick.InMemory + 1}), `endpick: endpoint "a" has resident "m" in an unknown state`},
		{with(endpick.Resident{Model: "m", Bytes: -1}), `endpick: endpoint "a" has resident "m" with negative Bytes or Context`},
		{with(endpick.Resident{Model: "m", Context: -1}), `endpick: endpoint "a" has resident "m" with negative Bytes or Context`},
	} {
		r, _ := newRouter(endpick.Config{})
		err := r.Add(c.endpoint)
		assert.EqualError(t, err, c.text)
		assert.ErrorIs(t, err, endpick.ErrBadEndpoint)
		assert.EqualError(t, r.Update(c.endpoint), c.text)
		assert.Empty(t, r.Endpoints())
		_, ok := r.Ref(c.endpoint.ID)
		assert.False(t, ok)
		assert.EqualError(t, rig.Err(endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{c.endpoint}})), c.text)
	}
}

// An ID made from the address has the rank, if there is one, and no credentials, because IDs appear in
// headers, logs and metrics.
func TestEndpointIDs(t *testing.T) {
	for address, want := range map[string]string{
		"host:8000":                       "host:8000",
		"http://ann:s3cret@host:8000/a@b": "http://host:8000/a@b",
		"ann:s3cret@host":                 "host",
		"https://ann:p@ss@host?x=@":       "https://host?x=@",
		"http://host/ann:s3cret@x":        "http://host/ann:s3cret@x",
	} {
		r, _ := newRouter(endpick.Config{Endpoints: []endpick.Endpoint{
			{Address: address}, {Address: address, Ranked: true}, {Address: address, Ranked: true, Rank: 2}, {ID: "x", Address: address},
		}})
		var ids []string
		for _, s := range r.Endpoints() {
			ids = append(ids, s.Candidate.Endpoint.ID)
		}
		assert.Equal(t, []string{want, want + "#0", want + "#2", "x"}, ids)
		assert.ErrorIs(t, r.Add(endpick.Endpoint{Address: "x"}), endpick.ErrDuplicateEndpoint)
	}
}

func TestNoEndpoints(t *testing.T) {
	r, _ := newRouter(endpick.Config{})
	_, err := r.Route(endpick.Request{Model: "m"})
	assert.EqualError(t, err, `endpick: no endpoint for model "m": 0 of 0 serve it, 0 excluded, 0 draining`)
	assert.ErrorAs(t, err, new(*endpick.NoEndpointError))

	for _, id := range []string{"a", "b", "c", "d"} {
		require.NoError(t, r.Add(endpick.Endpoint{ID: id, Models: []string{"m"}}))
	}
	require.NoError(t, r.Drain("c"))
	require.NoError(t, r.Remove("d"))
	_, err = r.Route(endpick.Request{Model: "m", Exclude: []string{"b", "a", "x"}})
	assert.EqualError(t, err, `endpick: no endpoint for model "m": 3 of 3 serve it, 2 excluded, 1 draining`)

	_, err = r.Route(endpick.Request{Model: "m", Adapter: "sql"})
	assert.EqualError(t, err, `endpick: no endpoint for model "sql": 0 of 3 serve it, 0 excluded, 0 draining; there are ["m"]`)
	assert.Equal(t, uint64(3), r.Stats().NoEndpoint)

	require.NoError(t, r.Resume("c"))
	assert.Equal(t, "c", rig.Must(r.Route(endpick.Request{Model: "m", Exclude: []string{"b", "a"}})).Endpoint().ID)
}
