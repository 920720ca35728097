package scorertest

import (
	"flag"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// recorder is a rapid.TB that records the messages of a failing check.
type recorder struct {
	name   string
	failed bool
	said   string
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
func (r *recorder) Fail()                             { r.failed = true }
func (r *recorder) Failed() bool                      { return r.failed }
func (r *recorder) Error(args ...any)                 { r.Errorf("%s", fmt.Sprint(args...)) }
func (r *recorder) Fatal(args ...any)                 { r.Error(args...); r.FailNow() }
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); r.FailNow() }
func (r *recorder) Helper()                           {}
func (r *recorder) Name() string                      { return r.name }
func (r *recorder) Log(...any)                        {}
func (r *recorder) Logf(string, ...any)               {}
func (r *recorder) Skip(...any)                       { panic(stopped{}) }
func (r *recorder) SkipNow()                          { panic(stopped{}) }
func (r *recorder) Skipf(string, ...any)              { panic(stopped{}) }

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
