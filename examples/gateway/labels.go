package main

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Clients name models, and what they call them is shown and counted.
const (
	maxNameBytes   = 256 // of a name; longer ones are cut, or not counted apart
	maxModelLabels = 64  // models that metrics tell apart
	otherModels    = "other"
)

// labels are the models that metrics tell apart. A model gets a label when a
// request for it has succeeded, so that invented names take no places; with all
// places taken, the model whose last success is the longest ago gives up its own.
// The zero value is ready. Its owner locks.
type labels struct {
	used []string // by last success, the newest last
}

// of is the name under which a model is counted.
func (l *labels) of(model string) string {
	if slices.Contains(l.used, model) {
		return model
	}
	return otherModels
}

// succeeded says that a model is real. It returns the label that is given up for
// it, empty if none is.
func (l *labels) succeeded(model string) (gone string) {
	if model == "" || model == otherModels || len(model) > maxNameBytes || !utf8.ValidString(model) {
		return ""
	}
	if i := slices.Index(l.used, model); i >= 0 {
		known := l.used[i]
		l.used = append(slices.Delete(l.used, i, i+1), known)
		return ""
	}
	if len(l.used) == maxModelLabels {
		gone = l.used[0]
		l.used = slices.Delete(l.used, 0, 1)
	}
	l.used = append(l.used, strings.Clone(model)) // it may be part of a request's body
	return gone
}

// clip makes a name fit to be kept and shown: valid UTF-8, and not much longer
// than maxNameBytes. The result does not hold on to what the name was part of.
func clip(name string) string {
	if len(name) > maxNameBytes {
		name = name[:maxNameBytes] + "…"
	}
	return strings.Clone(strings.ToValidUTF8(name, "\uFFFD"))
}
