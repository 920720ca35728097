package suite

import (
	"fmt"
	"slices"
	"strings"
)

// Markdown is the table of scenarios and ways, with a row for those of equal results, and
// the list of what its cells mean.
func (r *Report) Markdown() string {
	var b strings.Builder
	b.WriteString("| scenarios |")
	for _, w := range r.Ways {
		b.WriteString(" " + w.Name + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(r.Ways)) + "\n")
	ofWay := map[string]bool{}
	for _, m := range Meant() {
		ofWay[m.Name] = m.Scenarios == nil
	}
	names := map[string][]string{} // the scenarios of each row
	var rows []string
	for i, s := range r.Scenarios {
		row := ""
		for k := range r.Ways {
			row += " " + r.Results[i*len(r.Ways)+k].cell(ofWay) + " |"
		}
		if names[row] == nil {
			rows = append(rows, row)
		}
		names[row] = append(names[row], s.Name)
	}
	for _, row := range rows {
		fmt.Fprintf(&b, "| %s |%s\n", strings.Join(names[row], "; "), row)
	}
	b.WriteString("\n| difference | what | why |\n|---|---|---|\n")
	for _, m := range Meant() {
		name := m.Name
		if m.Scenarios == nil {
			name = "(" + strings.Join(append([]string{m.Name}, m.Ways...), "; ") + ")"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, m.What, m.Why)
	}
	return b.String()
}

// cell says which meanings apply to the scenario, or what is wrong.
func (one *Result) cell(ofWay map[string]bool) string {
	names := slices.DeleteFunc(slices.Clone(one.Meant), func(name string) bool { return ofWay[name] })
	switch {
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
