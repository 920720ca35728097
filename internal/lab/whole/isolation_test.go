package whole

import (
	"fmt"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"pgregory.net/rapid"
)

// attack is one request of a hostile tenant.
type attack struct {
	kind     string
	endpoint int
	blocks   int
	stream   bool
	first    bool
	status   endpick.Status
	output   int
	number   int
}

var attacks = rapid.Custom(func(t *rapid.T) attack {
	return attack{
		kind:     rapid.SampledFrom([]string{"names", "targets", "cached", "usage", "refused", "answers"}).Draw(t, "attack"),
		endpoint: rapid.IntRange(0, 2).Draw(t, "endpoint"),
		blocks:   rapid.IntRange(0, 100).Draw(t, "blocks"),
		stream:   rapid.Bool().Draw(t, "stream"),
		first:    rapid.Bool().Draw(t, "has a first token"),
		status:   endpick.Status(rapid.IntRange(0, 2).Draw(t, "status")),
		output:   rapid.IntRange(0, 50).Draw(t, "output"),
		number:   rapid.IntRange(0, 1_000_000).Draw(t, "number"),
	}
})

// round is what the attacker does between two steps of the others.
type round struct {
	attacks bool
	attack  attack
	ends    int // above zero: one of the attacker's requests ends
	step    step
}

var rounds = rapid.Custom(func(t *rapid.T) (r round) {
	if r.attacks = rapid.Bool().Draw(t, "attacks"); r.attacks {
		r.attack = attacks.Draw(t, "attack")
	}
	r.ends = rapid.IntRange(-20, 20).Draw(t, "ends")
	r.step = steps.Draw(t, "step")
	return r
})

// request returns what the attacker sends and its outcome, or those of a harmless
// tenant, whose requests have as many tokens and the same fate.
func (a *attack) request(harmless bool) (req endpick.Request, outcome endpick.Outcome) {
	req = endpick.Request{
		Model: "model-0", Tenant: "somebody", InputTokens: a.blocks*endpick.DefaultBlockTokens + 5, Stream: a.stream,
		Blocks:  fresh(a.number, a.blocks),
		Exclude: others(a.endpoint), // so that both load the same endpoint
	}
	outcome = endpick.Outcome{Status: a.status, OutputTokens: a.output}
	if harmless {
		return req, outcome
	}
	switch a.kind {
	case "names":
		req.Session, req.Tenant = fmt.Sprint("session ", a.number), fmt.Sprint("tenant ", a.number)
	case "targets":
		req.SLO = endpick.SLO{TTFT: time.Millisecond, TPOT: time.Millisecond}
		req.Priority = a.number % 3
	case "cached": // impossible: nothing was matched
		outcome.HasCachedTokens, outcome.CachedTokens = true, a.number
	case "usage":
		outcome.InputTokens = a.number
	case "refused": // more blocks than the prompt can have
		req.Blocks = fresh(a.number, 5000)
	case "answers": // which do not continue the prompt, if it has a block at all
		if a.blocks > 0 {
			outcome.Blocks = prompt(1, 40)
		}
	}
	return req, outcome
}

// fresh returns blocks of no other request.
func fresh(number, n int) []uint64 {
	blocks := make([]uint64, n)
	for i := range blocks {
		blocks[i] = endpick.Salt(fmt.Sprint("attack ", number, " ", i))
	}
	return blocks
}

func others(i int) (all []string) {
	for j, id := range ids {
		if j != i {
			all = append(all, id)
		}
	}
	return all
}

// One tenant affects another's decisions through load alone: in two worlds with the
// same events, except for a tenant that is hostile in one and sends as many tokens
// to the same endpoints in the other, all other requests are routed alike, with the
// same matches, predictions and scores.
func TestInvariantIsolation(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		o := options{seed: rapid.Uint64Range(1, 100).Draw(rt, "seed"), healthy: true}
		one, other := newWorld(rt, o), newWorld(rt, o)
		open := [2][]endpick.Lease{}
		var held []attack
		end := func(i int) {
			for k, w := range []*world{one, other} {
				_, outcome := held[i].request(k == 1)
				l := open[k][i]
				if held[i].first {
					l.FirstToken()
				}
				if held[i].output > 0 && held[i].status == endpick.Completed {
					l.Tokens(held[i].output)
				}
				l.Done(outcome)
				open[k] = append(open[k][:i:i], open[k][i+1:]...)
				w.notice()
			}
			held = append(held[:i:i], held[i+1:]...)
		}
		for i, r := range rapid.SliceOfN(rounds, 1, 40).Draw(rt, "rounds") {
			if a := r.attack; r.attacks {
				a.number = a.number*64 + i // never sent before
				if a.kind == "refused" {
					a.first, a.status, a.output = false, endpick.Failed, 0
				}
				var chosen [2]string
				for k, w := range []*world{one, other} {
					req, _ := a.request(k == 1)
					l, err := w.router.Route(req)
					if err != nil {
						rt.Fatalf("the attacker is refused: %v", err)
					}
					if k == 0 {
						w.did("attack by %s: %+v", a.kind, a)
					}
					chosen[k] = l.Endpoint().ID
					open[k] = append(open[k], l)
					w.unlisted++
				}
				if chosen[0] != chosen[1] {
					rt.Fatalf("the attacker is at %v", chosen)
				}
				held = append(held, a)
			}
			if len(held) > 0 && r.ends > 0 {
				end(r.ends % len(held))
			}
			s := r.step
			switch s.kind {
			case "add", "set", "update", "drain", "resume", "remove": // so that the attacker's load stays where it is
				s.kind = "pass"
			}
			if s.request.Tenant == "somebody" {
				s.request.Tenant = ""
			}
			same(one, one.apply(s), other.apply(s), "without the attacker")
		}
	})
}
