package scorertest

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write the golden files anew")

// recording is a suite that collects failures.
func recording(t *testing.T, tell func(check, fault string)) suite {
	return suite{
		property: func(name string, check func(*testing.T, *rapid.T)) {
			r := &recorder{name: name}
			r.run(func() { rapid.Check(r, func(rt *rapid.T) { check(t, rt) }) })
			if r.failed {
				tell(name, r.said)
			}
		},
		once: func(name string, check func(*testing.T) string) {
			if name == "concurrency" { // the race detector finds it, and would end everything
				return
			}
			if fault := check(t); fault != "" {
				tell(name, fault)
			}
		},
	}
}

type (
	scoreFunc   func(req *endpick.Request, cs []endpick.Candidate, dst []float64)
	filterFunc  func(req *endpick.Request, cs []endpick.Candidate) []endpick.Candidate
	pickFunc    func(req *endpick.Request, cs []endpick.Candidate, scores []float64) int
	matchFunc   func(req *endpick.Request, cs []endpick.Candidate)
	predictFunc func(req *endpick.Request, cs []endpick.Candidate)
	admitFunc   func(req *endpick.Request, cs []endpick.Candidate) error
	doneFunc    func(e *endpick.Event, o *endpick.Outcome)
	routedFunc  func(e *endpick.Event)
)

func (f scoreFunc) Score(req *endpick.Request, cs []endpick.Candidate, dst []float64) {
	f(req, cs, dst)
}
func (f filterFunc) Filter(req *endpick.Request, cs []endpick.Candidate) []endpick.Candidate {
	return f(req, cs)
}
func (f pickFunc) Pick(req *endpick.Request, cs []endpick.Candidate, scores []float64) int {
	return f(req, cs, scores)
}
func (f matchFunc) Match(req *endpick.Request, cs []endpick.Candidate)       { f(req, cs) }
func (f predictFunc) Predict(req *endpick.Request, cs []endpick.Candidate)   { f(req, cs) }
func (f admitFunc) Admit(req *endpick.Request, cs []endpick.Candidate) error { return f(req, cs) }
func (f doneFunc) Done(e *endpick.Event, o *endpick.Outcome)                 { f(e, o) }
func (f routedFunc) Routed(e *endpick.Event)                                 { f(e) }

// of is a kit for stages that are made anew each time.
func of[S any](check func(suite, func(*testing.T) S), newStage func() S) func(suite) {
	return func(s suite) { check(s, func(*testing.T) S { return newStage() }) }
}

func scorers(newScorer func() endpick.Scorer) func(suite) {
	return of(func(s suite, fresh func(*testing.T) endpick.Scorer) { checkScorer(s, fresh, 0, 1) }, newScorer)
}

func scoring(f scoreFunc) func(suite)    { return scorers(func() endpick.Scorer { return f }) }
func filtering(f filterFunc) func(suite) { return of(checkFilter, func() endpick.Filter { return f }) }
func picking(f pickFunc) func(suite)     { return of(checkPicker, func() endpick.Picker { return f }) }
func predicting(f predictFunc) func(suite) {
	return of(checkPredictor, func() endpick.Predictor { return f })
}
func matching(fresh func() endpick.Matcher) func(suite)   { return of(checkMatcher, fresh) }
func admitting(fresh func() endpick.Admitter) func(suite) { return of(checkAdmitter, fresh) }
func observing(fresh func() any) func(suite)              { return of(checkObserver, fresh) }
func policyOf(fresh func() endpick.Policy) func(suite)    { return of(checkPolicy, fresh) }

// labelled runs a kit with labels.
func labelled(kit func(suite)) func(suite) {
	return func(s suite) {
		s.labels = []map[string]string{{"kind": "old"}}
		kit(s)
	}
}

// each calls f for every slot.
func each(f func(req *endpick.Request, c *endpick.Candidate) float64) scoreFunc {
	return func(req *endpick.Request, cs []endpick.Candidate, dst []float64) {
		for i := range cs {
			dst[i] = f(req, &cs[i])
		}
	}
}

// onEach calls f for every candidate.
func onEach(f func(req *endpick.Request, c *endpick.Candidate)) func(*endpick.Request, []endpick.Candidate) {
	return func(req *endpick.Request, cs []endpick.Candidate) {
		for i := range cs {
			f(req, &cs[i])
		}
	}
}

// refusing refuses some requests.
func refusing(reason string, some func(req *endpick.Request, cs []endpick.Candidate) bool) endpick.Admitter {
	return admitFunc(func(req *endpick.Request, cs []endpick.Candidate) error {
		if some(req, cs) {
			return errors.New(reason)
		}
		return nil
	})
}

// closures are numbered in the order of this file.
var closures = regexp.MustCompile(`init\.func[0-9.]+`)

// Each kit finds what is broken, and says so in words, with the smallest case.
func TestKitsSayWhatIsBroken(t *testing.T) {
	rig.SkipUnderRace(t, "the words are the same, and take long to come")
	if testing.Short() {
		t.Skip("rapid tries a fifth of the cases, and one fault is not among them")
	}
	settled(t)
	const golden = "testdata/broken.txt"
	var b strings.Builder
	want := map[string]string{}
	if text, err := os.ReadFile(golden); !*update {
		require.NoError(t, err)
		for _, section := range strings.Split(string(text), "== ")[1:] {
			name, words, _ := strings.Cut(section, "\n")
			want[name] = strings.TrimSuffix(words, "\n")
		}
		assert.Len(t, want, len(broken))
	}
	kinds := map[string]int{}
	for _, x := range broken {
		kinds[strings.Fields(x.name)[1]]++
		words := closures.ReplaceAllString(said(t, x.kit), "init.func")
		assert.NotEmpty(t, words, "no kit finds %s", x.name)
		if !*update {
			assert.Equal(t, want[x.name], words, x.name)
		}
		fmt.Fprintf(&b, "== %s\n%s\n", x.name, words)
	}
	assert.GreaterOrEqual(t, len(broken), 60)
	for kind, n := range kinds {
		assert.GreaterOrEqual(t, n, 5, "stages of the kind %s", kind)
	}
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(golden, []byte(b.String()), 0o644))
	}
}

// A stage that rarely answers differently is known by being asked often.
func TestStagesByChance(t *testing.T) {
	n := 0
	assert.True(t, role{}.byChance(func() any { n++; return n%1000 == 0 }))
	assert.False(t, role{}.byChance(func() any { return 1 }))
}

// recorder is a rapid.TB that records the messages of a failing check.
type recorder struct {
	rapid.TB // nil, for what is never called
	name     string
	failed   bool
	said     string
	draws    []string
}

// failedRun matches rapid's report of a failure, smallest case last.
var failedRun = regexp.MustCompile(`(?s)^\[rapid\] (?:failed|panic) after \d+ tests: (.*)\nTo reproduce, `)

func (r *recorder) Errorf(format string, args ...any) {
	r.failed = true
	if m := failedRun.FindStringSubmatch(fmt.Sprintf(format, args...)); m != nil && r.said == "" {
		r.said = m[1]
	}
}

type stopped struct{}

func (r *recorder) FailNow()                          { r.failed = true; panic(stopped{}) }
func (r *recorder) Failed() bool                      { return r.failed }
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); r.FailNow() }
func (r *recorder) Helper()                           {}
func (r *recorder) Name() string                      { return r.name }

func (r *recorder) Logf(format string, args ...any) {
	if line := fmt.Sprintf(format, args...); strings.Contains(line, "draw ") {
		r.draws = append(r.draws, line)
	}
}

// run calls f with the recorder, which may end it.
func (r *recorder) run(f func()) {
	defer func() {
		if v := recover(); v != nil && v != (stopped{}) {
			panic(v)
		}
	}()
	f()
}

// settled makes rapid draw the same values in every run.
func settled(t *testing.T) {
	for name, value := range map[string]string{"rapid.seed": "1", "rapid.checks": "100", "rapid.nofailfile": "true", "rapid.shrinktime": "1h"} {
		old := flag.Lookup(name).Value.String()
		require.NoError(t, flag.Set(name, value))
		t.Cleanup(func() { require.NoError(t, flag.Set(name, old)) })
	}
}

// said is a kit's report on a stage: of the failing checks, the first in full.
func said(t *testing.T, kit func(suite)) string {
	var fault string
	var also []string
	kit(recording(t, func(check, words string) {
		if fault == "" {
			fault = fmt.Sprintf("[%s] %s\n", check, words)
		} else {
			also = append(also, check)
		}
	}))
	if len(also) > 0 {
		fault += fmt.Sprintf("It also fails: %s\n", strings.Join(also, ", "))
	}
	return fault
}

// What presumes that an earlier check holds is not asked for when it does not.
func TestAKitEndsWithTheFirstFailure(t *testing.T) {
	var asked []string
	run := untilOneFails(func(name string, _ func(*testing.T)) bool {
		asked = append(asked, name)
		return name != "repeated"
	})
	for _, name := range []string{"scores", "repeated", "order", "clock"} {
		run(name, nil)
	}
	assert.Equal(t, []string{"scores", "repeated"}, asked)
}
