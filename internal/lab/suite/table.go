package suite

import (
	"fmt"
	"slices"
	"strings"
)

// Markdown is the table of scenarios and ways, and the list of what its cells mean.
func (r *Report) Markdown() string {
	var b strings.Builder
	b.WriteString("| scenario | what happens |")
	for _, w := range r.Ways {
		b.WriteString(" " + w.Name + " |")
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(r.Ways)) + "\n")
	ofWay := map[string]bool{}
	for _, m := range Meant() {
		ofWay[m.Name] = m.Scenarios == nil
	}
	for i, s := range r.Scenarios {
		fmt.Fprintf(&b, "| %s | %s |", s.Name, s.About)
		for k := range r.Ways {
			b.WriteString(" " + r.Results[i*len(r.Ways)+k].cell(ofWay) + " |")
		}
		b.WriteString("\n")
	}
	b.WriteString("\n| difference | where | what | why |\n|---|---|---|---|\n")
	for _, m := range Meant() {
		ways := "everywhere"
		if m.Ways != nil {
			ways = strings.Join(m.Ways, "; ")
		}
		name := m.Name
		if m.Scenarios == nil {
			name = "(" + name + ")"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, ways, m.What, m.Why)
	}
	for _, w := range r.Ways {
		why := map[string][]string{}
		for _, s := range r.Scenarios {
			if reason := w.Without[s.Name]; reason != "" {
				why[reason] = append(why[reason], s.Name)
			}
		}
		for reason, names := range why {
			fmt.Fprintf(&b, "| – | %s | not tried: %s | %s |\n", w.Name, strings.Join(names, "; "), reason)
		}
	}
	return b.String()
}

// cell says which meanings apply to the scenario, or what is wrong.
func (one *Result) cell(ofWay map[string]bool) string {
	names := slices.DeleteFunc(slices.Clone(one.Meant), func(name string) bool { return ofWay[name] })
	switch {
	case one.Without != "":
		return "–"
	case one.Err != nil:
		return "**fails**"
	case one.Unexplained != nil:
		return "**differs**"
	case len(names) == 0:
		return "same"
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
