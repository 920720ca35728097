package prometheus

import (
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	maxNameBytes = 256     // of a name with its own label
	other        = "other" // label of all others
)

// names are those with labels, by their last success, the newest last. The zero
// value has room for none. Its owner locks.
type names struct {
	most int
	used []string
}

// of is the label of a name.
func (n *names) of(name string) string {
	if slices.Contains(n.used, name) {
		return name
	}
	return other
}

// add gives a name a label, or notes that it has succeeded again. It returns the name that has lost
// its label for that, which is none of keep, or an empty string.
func (n *names) add(name string, keep ...string) (gone string) {
	if name == "" || name == other || len(name) > maxNameBytes || !utf8.ValidString(name) {
		return ""
	}
	if i := slices.Index(n.used, name); i >= 0 {
		known := n.used[i]
		n.used = append(slices.Delete(n.used, i, i+1), known)
		return ""
	}
	if len(n.used) >= n.most {
		oldest := slices.IndexFunc(n.used, func(old string) bool { return !slices.Contains(keep, old) })
		if oldest < 0 {
			return ""
		}
		gone = n.used[oldest]
		n.used = slices.Delete(n.used, oldest, oldest+1)
	}
	n.used = append(n.used, strings.Clone(name)) // it may be a part of a request's body
	return gone
}
