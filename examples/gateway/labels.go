package main

import (
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	maxNameBytes   = 256 // of a name that is counted apart
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
