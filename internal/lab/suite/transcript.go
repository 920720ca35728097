package suite

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// Transcript is what client and servers saw of a scenario.
type Transcript struct {
	Answers  []*Answer
	Attempts []*Attempt
	// Late is what did not happen in time.
	Late []string
}

// Absent stands for a fact that one of two transcripts lacks.
const Absent = "–"

// Difference is a fact that differs from the direct way.
type Difference struct {
	What             string // such as "response header Via"
	Directly, Passed string // Absent if there is none
}

func (d Difference) String() string {
	return fmt.Sprintf("%s: %s, but directly %s", d.What, short(d.Passed), short(d.Directly))
}

// short shortens a value to fit a line, leaving out its middle.
func short(v string) string {
	if v == Absent {
		return "none"
	}
	if len(v) > 400 {
		v = fmt.Sprintf("%s … %s (%d bytes)", v[:200], v[len(v)-150:], len(v))
	}
	return fmt.Sprintf("%q", v)
}

// Differences are the facts in which t differs from direct, sorted.
func (t *Transcript) Differences(direct *Transcript) (all []Difference) {
	here, there := t.facts(), direct.facts()
	names := maps.Clone(here)
	maps.Copy(names, there)
	for _, what := range slices.Sorted(maps.Keys(names)) {
		d := Difference{What: what, Directly: Absent, Passed: Absent}
		if v, ok := there[what]; ok {
			d.Directly = v
		}
		if v, ok := here[what]; ok {
			d.Passed = v
		}
		if d.Directly != d.Passed {
			all = append(all, d)
		}
	}
	return all
}

// facts are everything that is compared, by name. A fact that differs between
// attempts has each value once.
func (t *Transcript) facts() map[string]string {
	f := map[string]string{}
	for i, a := range t.Answers {
		prefix := "response "
		if i > 0 {
			prefix = fmt.Sprintf("response %d ", i+1)
		}
		a.facts(prefix, f)
	}
	asked := map[int]bool{}
	for _, a := range t.Attempts {
		asked[a.Server] = true
		one := map[string]string{}
		a.facts(one)
		for what, v := range one {
			if had, ok := f[what]; !ok {
				f[what] = v
			} else if !slices.Contains(strings.Split(had, " | "), v) {
				f[what] = had + " | " + v
			}
		}
	}
	f["requests"] = fmt.Sprint(len(t.Attempts))
	if len(t.Answers) == 1 && len(asked) < len(t.Attempts) {
		f["requests"] += fmt.Sprintf(" to %d servers", len(asked))
	}
	if t.Late != nil {
		f["in vain"] = strings.Join(t.Late, "; ")
	}
	return f
}

func (a *Answer) facts(prefix string, f map[string]string) {
	f[prefix+"end"] = a.End
	if a.Interim != nil {
		f[prefix+"interim"] = strings.Join(a.Interim, ", ")
	}
	if a.Status == "" {
		return
	}
	f[prefix+"status"], f[prefix+"framing"], f[prefix+"body"] = a.Status, a.Framing, a.Body
	headerFacts(prefix+"header ", a.Header, len(a.Body), f)
	headerFacts(prefix+"trailer ", a.Trailer, 0, f)
}

func (a *Attempt) facts(f map[string]string) {
	f["request line"], f["request host"], f["request framing"] = a.Method+" "+a.Target, a.Host, a.Framing
	f["request body"], f["request end"] = a.Body, a.End
	headerFacts("request header ", a.Header, len(a.Body), f)
	headerFacts("request trailer ", a.Trailer, 0, f)
}

// headerFacts leaves out correct lengths, since the framing covers them, and the
// values of dates.
func headerFacts(prefix string, h http.Header, length int, f map[string]string) {
	for name, values := range h {
		v := strings.Join(values, " ‖ ")
		switch name {
		case "Date":
			v = "a date"
		case "Content-Length":
			if v == fmt.Sprint(length) {
				continue
			}
		}
		f[prefix+name] = v
	}
}
