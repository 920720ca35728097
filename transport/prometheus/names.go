package prometheus

import (
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	maxNameBytes = 256     // of a name that is counted apart
	other        = "other" // those that are not
)

// names are those that are counted apart, by their last success, the newest last.
// The zero value has room for none. Its owner locks.
type names struct {
	most int
	used []string
}

// of is the name under which something is counted.
func (n *names) of(name string) string {
	if slices.Contains(n.used, name) {
		return name
	}
	return other
}

// succeeded says that a name is real. It returns the one that gives way to it,
// empty if none does.
func (n *names) succeeded(name string) (gone string) {
	if name == "" || name == other || len(name) > maxNameBytes || !utf8.ValidString(name) {
		return ""
	}
	if i := slices.Index(n.used, name); i >= 0 {
		known := n.used[i]
		n.used = append(slices.Delete(n.used, i, i+1), known)
		return ""
	}
	if len(n.used) >= n.most {
		gone = n.used[0]
		n.used = slices.Delete(n.used, 0, 1)
	}
	n.used = append(n.used, strings.Clone(name)) // it may be part of a request's body
	return gone
}
