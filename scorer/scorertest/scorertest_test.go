package scorertest_test

import (
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/scorer/scorertest"
)

func TestScorersConform(t *testing.T) {
	for _, newScorer := range []func() endpick.Scorer{
		func() endpick.Scorer { return scorer.QueueDepth{} },
		func() endpick.Scorer { return scorer.KVUsage{} },
		func() endpick.Scorer { return scorer.LoadBalance{} },
		func() endpick.Scorer { return scorer.LeastLoaded{} },
		func() endpick.Scorer { return scorer.PrefixAffinity{} },
		func() endpick.Scorer { return scorer.LMetric{} },
		func() endpick.Scorer { return scorer.Linear{} },
		func() endpick.Scorer { return scorer.Dynamo{} },
		func() endpick.Scorer { return &scorer.RoundRobin{} },
		func() endpick.Scorer { return &scorer.NoHitLRU{} },
		func() endpick.Scorer { return scorer.SessionAffinity{} },
		func() endpick.Scorer { return scorer.AdapterAffinity{} },
	} {
		name := newScorer().(interface{ Name() string }).Name()
		t.Run(name, func(t *testing.T) {
			scorertest.RunWeighted(t, func(*testing.T) endpick.Scorer { return newScorer() })
		})
	}
}

func TestPoliciesConform(t *testing.T) {
	for name, p := range map[string]func() endpick.Policy{
		"zero": func() endpick.Policy { return endpick.Policy{} },
		"weighted": func() endpick.Policy {
			return endpick.Policy{
				Filters: []endpick.Filter{scorer.MatchGate{Range: 8}},
				Scorers: []endpick.Weighted{{Scorer: &scorer.NoHitLRU{}, Weight: 1}, {Scorer: scorer.QueueDepth{}, Weight: 2}},
				Picker:  endpick.WeightedRandom{},
			}
		},
		"power of two": func() endpick.Policy {
			return endpick.Policy{
				Scorers: []endpick.Weighted{{Scorer: scorer.LMetric{}, Weight: 1}},
				Picker:  endpick.PowerOfTwo{},
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			scorertest.RunPolicy(t, func(*testing.T) endpick.Policy { return p() })
		})
	}
}

// broken holds scorers that each break one promise.
var broken = map[string]func(req *endpick.Request, cs []endpick.Candidate, dst []float64){
	"not written": func(_ *endpick.Request, cs []endpick.Candidate, dst []float64) {
		for i := range cs[:len(cs)-1] {
			dst[i] = 0
		}
	},
	"infinite": func(_ *endpick.Request, cs []endpick.Candidate, dst []float64) {
		for i := range cs {
			dst[i] = 1 / cs[i].KVUsage
		}
	},
	"above one": func(_ *endpick.Request, cs []endpick.Candidate, dst []float64) {
		for i := range cs {
			dst[i] = cs[i].Waiting
		}
	},
	"below zero": func(_ *endpick.Request, cs []endpick.Candidate, dst []float64) {
		for i := range cs {
			dst[i] = -cs[i].KVUsage
		}
	},
	"not a number": func(_ *endpick.Request, cs []endpick.Candidate, dst []float64) {
		for i := range cs {
			dst[i] = 0
			if cs[i].KVUsage > 0 && cs[i].KVUsage < 1 {
				dst[i] = math.NaN()
			}
		}
	},
	"changes the request": func(req *endpick.Request, cs []endpick.Candidate, dst []float64) {
		req.Priority++
		clear(dst)
	},
	"by place": func(_ *endpick.Request, cs []endpick.Candidate, dst []float64) {
		for i := range cs {
			dst[i] = 1 / float64(1+i)
		}
	},
	"changes its input": func(_ *endpick.Request, cs []endpick.Candidate, dst []float64) {
		for i := range cs {
			cs[i].PrefixTokens++
			dst[i] = 0
		}
	},
}

type brokenScorer struct{ name string }

func (s brokenScorer) Score(req *endpick.Request, cs []endpick.Candidate, dst []float64) {
	broken[s.name](req, cs, dst)
}

// firstPicker picks by place.
type firstPicker struct{}

func (firstPicker) Pick(*endpick.Request, []endpick.Candidate, []float64) int { return 0 }

// kits are the checks, each with what it has to find.
var kits = map[string]struct {
	run func(t *testing.T, name string)
	all []string
}{
	"any scorer": {func(t *testing.T, name string) {
		scorertest.Run(t, func(*testing.T) endpick.Scorer { return brokenScorer{name} })
	}, []string{"not written", "infinite", "not a number", "by place", "changes its input", "changes the request"}},
	"weighted": {func(t *testing.T, name string) {
		scorertest.RunWeighted(t, func(*testing.T) endpick.Scorer { return brokenScorer{name} })
	}, []string{"not written", "infinite", "not a number", "by place", "changes its input", "changes the request", "above one", "below zero"}},
	"policy": {func(t *testing.T, name string) {
		scorertest.RunPolicy(t, func(*testing.T) endpick.Policy { return endpick.Policy{Picker: firstPicker{}} })
	}, []string{"by place"}},
}

// brokenEnv names the kit, and the broken scorer, that a run of this test binary
// is to check.
const brokenEnv = "ENDPICK_BROKEN_SCORER"

func TestKitFindsWhatIsBroken(t *testing.T) {
	if named := os.Getenv(brokenEnv); named != "" {
		kit, name, _ := strings.Cut(named, "/")
		kits[kit].run(t, name)
		return
	}
	for kit, k := range kits {
		for _, name := range k.all {
			t.Run(kit+"/"+name, func(t *testing.T) {
				t.Parallel()
				cmd := exec.Command(os.Args[0], "-test.run", "^TestKitFindsWhatIsBroken$", "-rapid.nofailfile")
				cmd.Env = append(os.Environ(), brokenEnv+"="+kit+"/"+name)
				out, err := cmd.CombinedOutput()
				var exit *exec.ExitError
				require.ErrorAs(t, err, &exit, "the kit let it pass:\n%s", out)
				assert.Contains(t, string(out), "[rapid] failed")
			})
		}
	}
}
