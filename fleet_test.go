package endpick_test

import (
	"fmt"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Adding an endpoint only costs the change: what 10,000 additions allocate is
// proportional to their number. With a copy of the fleet for each it would be
// gigabytes.
func TestAddIsNoMoreThanTheChange(t *testing.T) {
	const n = 10_000
	for name, describe := range map[string]func(e *endpick.Endpoint, i int){
		"every model":         func(*endpick.Endpoint, int) {},
		"one model":           func(e *endpick.Endpoint, _ int) { e.Models = []string{"llama"} },
		"models of their own": func(e *endpick.Endpoint, i int) { e.Models = []string{fmt.Sprint("model-", i)} },
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := newRouter(endpick.Config{})
			endpoints := numbered(n)
			for i := range endpoints {
				describe(&endpoints[i], i)
			}
			assert.Less(t, rig.Allocated(func() {
				for _, e := range endpoints {
					require.NoError(t, r.Add(e))
				}
			}), n*16<<10)
			for _, e := range []endpick.Endpoint{endpoints[0], endpoints[n/2], endpoints[n-1]} {
				model := "x"
				if len(e.Models) > 0 {
					model = e.Models[0]
				}
				var receipt endpick.Receipt
				rig.Must(r.Route(endpick.Request{Model: model, Receipt: &receipt})).Done(endpick.Outcome{})
				assert.Contains(t, []int{1, n}, len(receipt.Verdicts))
			}
		})
	}
}

// A request never finds its pool empty while its only endpoint is updated, or
// while lists that contain it are set.
func TestChangesLeaveNoGap(t *testing.T) {
	r, _ := newRouter(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "a", Models: []string{"m", "x"}}, {ID: "b"}}})
	require.NoError(t, r.Drain("b"))
	stop := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			l, err := r.Route(endpick.Request{Model: "m"})
			if err != nil {
				done <- err
				return
			}
			l.Done(endpick.Outcome{})
		}
	}()
	for i := range 2000 {
		e := endpick.Endpoint{ID: "a", Models: []string{"m", fmt.Sprint("x", i)}}
		if i%2 == 0 {
			require.NoError(t, r.Update(e))
		} else {
			require.NoError(t, r.SetEndpoints([]endpick.Endpoint{{ID: fmt.Sprint("c", i), Models: []string{"y"}}, e}))
		}
	}
	close(stop)
	require.NoError(t, <-done)
}

// removals is an observer of removals.
type removals func(endpick.EndpointRef)

func (removals) Admit(*endpick.Request, []endpick.Candidate) error { return nil }
func (f removals) EndpointRemoved(ref endpick.EndpointRef)         { f(ref) }

// Observers hear of endpoints that leave together in the order in which these came, so that runs can be repeated.
func TestRemovedInOrder(t *testing.T) {
	var gone []uint32
	r, _ := newRouter(endpick.Config{Endpoints: named("c", "f", "a", "e", "b", "d", "h", "g"), Policy: endpick.Policy{
		Admitters: []endpick.Admitter{removals(func(ref endpick.EndpointRef) { gone = append(gone, ref.Slot) })},
	}})
	require.NoError(t, r.SetEndpoints(named("d")))
	assert.IsIncreasing(t, gone)
	assert.Len(t, gone, 7)
}

// Another endpoint gets the slot of one that has left when the observers know, not while they hear of it.
func TestSlotsAreFreeWhenObserversKnow(t *testing.T) {
	var r *endpick.Router
	var l endpick.Lease
	r, _ = newRouter(endpick.Config{Endpoints: named("a"), Policy: endpick.Policy{
		Admitters: []endpick.Admitter{removals(func(gone endpick.EndpointRef) {
			l.Done(endpick.Outcome{})
			assert.NoError(t, r.Add(endpick.Endpoint{ID: "b"}))
			assert.NotEqual(t, gone.Slot, r.AppendCandidates(nil)[0].Ref.Slot)
		})},
	}})
	l = rig.Must(r.Route(endpick.Request{}))
	require.NoError(t, r.Remove("a"))
}

// When observers hear that an endpoint is gone, no request can come to it any more: neither
// one that looks for candidates now, nor one that has it among its candidates.
func TestNothingComesToAnEndpointAfterItsRemoval(t *testing.T) {
	for name, remove := range map[string]func(*endpick.Router) error{
		"Remove":       func(r *endpick.Router) error { return r.Remove("a") },
		"SetEndpoints": func(r *endpick.Router) error { return r.SetEndpoints(named("b")) },
	} {
		var r *endpick.Router
		choosing, choose, routed := make(chan bool), make(chan bool), make(chan endpick.Lease)
		wait, picks, heard := false, 0, 0
		r, _ = newRouter(endpick.Config{Endpoints: named("a", "b"), Policy: endpick.Policy{
			Admitters: []endpick.Admitter{removals(func(endpick.EndpointRef) {
				heard++
				left := r.AppendCandidates(nil)
				if assert.Len(t, left, 1, name) {
					assert.Equal(t, "b", left[0].Endpoint.ID, name)
				}
				choose <- true
				l := <-routed
				assert.Equal(t, "b", l.Endpoint().ID, name)
				l.Done(endpick.Outcome{})
			})},
			Picker: pickFunc(func(_ *endpick.Request, candidates []endpick.Candidate, _ []float64) int {
				if wait {
					wait = false
					choosing <- true
					<-choose
				}
				if picks++; picks <= 2 {
					return 0 // a
				}
				return len(candidates) - 1
			}),
		}})
		open := rig.Must(r.Route(endpick.Request{}))
		require.Equal(t, "a", open.Endpoint().ID)
		wait = true
		go func() {
			l, err := r.Route(endpick.Request{})
			assert.NoError(t, err)
			routed <- l
		}()
		<-choosing
		require.NoError(t, remove(r))
		assert.Equal(t, 1, heard)
		open.Done(endpick.Outcome{})
		requireQuiet(t, r)
	}
}

// The router copies what a caller owns, however it is passed.
func TestChangesCopy(t *testing.T) {
	r, _ := newRouter(endpick.Config{Endpoints: named("a")})
	require.NoError(t, r.Update(endpick.Endpoint{ID: "a", Labels: map[string]string{"by": "nobody"}}), "before any request")
	for name, change := range map[string]func(endpick.Endpoint) error{
		"Add": func(e endpick.Endpoint) error {
			require.NoError(t, r.Remove("a"))
			return r.Add(e)
		},
		"Update":       r.Update,
		"SetEndpoints": func(e endpick.Endpoint) error { return r.SetEndpoints([]endpick.Endpoint{e}) },
	} {
		e := endpick.Endpoint{ID: "a", Models: []string{name}, Adapters: []string{"l"}, Labels: map[string]string{"by": name}, Residents: []endpick.Resident{{Model: name}}}
		require.NoError(t, change(e))
		e.Models[0], e.Adapters[0], e.Labels["by"], e.Residents[0].Model = "other", "other", "other", "other"
		got := rig.Must(r.Route(endpick.Request{Model: name})).Endpoint()
		assert.Equal(t, []string{name, name}, append(got.Models, got.Residents[0].Model))
		assert.Equal(t, []string{"l"}, got.Adapters)
		assert.Equal(t, map[string]string{"by": name}, got.Labels)
		assert.Same(t, got, status(t, r, "a").Candidate.Endpoint)
	}
	adapters := []string{"l"}
	require.NoError(t, r.Report("a", endpick.Load{Adapters: adapters}))
	adapters[0] = "other"
	assert.Equal(t, []string{"l"}, status(t, r, "a").Candidate.Report.Adapters)
}

func TestAppendCandidates(t *testing.T) {
	r, _ := newRouter(endpick.Config{Endpoints: named("a", "b", "c")})
	require.NoError(t, r.Drain("b"))
	require.NoError(t, r.Report("a", endpick.Load{Waiting: 3, KVUsage: 0.25}))
	l := rig.Must(r.Route(endpick.Request{Exclude: []string{"a"}, InputTokens: 7}))
	kept := r.AppendCandidates(make([]endpick.Candidate, 1, 8))
	require.Len(t, kept, 3)
	assert.Zero(t, kept[0])
	assert.Equal(t, []string{"a", "c"}, []string{kept[1].Endpoint.ID, kept[2].Endpoint.ID})
	assert.Equal(t, []float64{3, 1 + 3}, []float64{kept[1].Waiting, kept[2].Waiting}, "c is silent: its own, and of others as many as on a")
	assert.Equal(t, 0.25, kept[2].KVUsage)
	assert.Equal(t, 7, kept[2].InFlight.PrefillTokens)
	l.Done(endpick.Outcome{})
	kept[0].Prediction, kept[0].PrefixTokens = endpick.Prediction{Has: endpick.TTFT, TTFT: 1}, 5
	kept = r.AppendCandidates(kept[:0])
	assert.Equal(t, []string{"a", "c"}, []string{kept[0].Endpoint.ID, kept[1].Endpoint.ID}, "whatever dst held")
	assert.Zero(t, kept[0].Prediction)
	assert.Nil(t, kept[1].Report, "c is silent")
	assert.Zero(t, kept[0].PrefixTokens)
	assert.Zero(t, testing.AllocsPerRun(100, func() { kept = r.AppendCandidates(kept[:0]) }))
}

// keeper is a stage that belongs to one router.
type keeper struct {
	endpick.Exclusive
	spy
}

func TestAStageBelongsToOneRouter(t *testing.T) {
	k, other := new(keeper), new(keeper)
	policy := scoredBy(other, k)
	_, err := endpick.New(endpick.Config{Policy: policy, Endpoints: named("a", "a")})
	require.ErrorIs(t, err, endpick.ErrDuplicateEndpoint)

	r, _ := newRouter(endpick.Config{Policy: scoredBy(k), Endpoints: named("a")})
	require.NoError(t, r.SetPolicy(endpick.Policy{}))
	require.NoError(t, r.SetPolicy(scoredBy(k)), "the router's own")

	_, err = endpick.New(endpick.Config{Policy: policy})
	require.ErrorAs(t, err, new(*endpick.ConfigError))
	assert.EqualError(t, err, "endpick: config: Policy has stage spy, which is already in another router: make a policy for each")
	assert.NoError(t, rig.Err(endpick.New(endpick.Config{Policy: scoredBy(other)})), "a refusal takes nothing")

	// A policy that is refused because of one stage leaves the others with their routers.
	free := new(keeper)
	require.ErrorAs(t, r.SetPolicy(scoredBy(k, free, other)), new(*endpick.ConfigError))
	assert.ErrorAs(t, rig.Err(endpick.New(endpick.Config{Policy: scoredBy(k)})), new(*endpick.ConfigError), "it is in the first one still")
	assert.NoError(t, rig.Err(endpick.New(endpick.Config{Policy: scoredBy(free)})))
}
