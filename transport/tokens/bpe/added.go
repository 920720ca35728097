package bpe

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is a token that is found in a text before anything else, whatever stands
// around it.
type addedToken struct {
	text        string
	id          uint32
	left, right bool // white space on that side belongs to it
}

// added are those of a model, the longest first, by their first byte: of two that begin
// at the same place the longer one counts.
type added [256][]addedToken

func (a *added) add(t addedToken) {
	if t.text == "" {
		return
	}
	l := append(a[t.text[0]], t)
	slices.SortStableFunc(l, func(x, y addedToken) int { return len(y.text) - len(x.text) })
	a[t.text[0]] = l
}

// cut goes through a text: what is between added tokens, and these. It ends when yield
// says so.
func (a *added) cut(text string, yield func(part string, id uint32, special bool) bool) {
	from := 0
	for at := 0; at < len(text); at++ {
		for _, t := range a[text[at]] {
			if !strings.HasPrefix(text[at:], t.text) {
				continue
			}
			part := text[from:at]
			if t.left {
				part = strings.TrimRightFunc(part, unicode.IsSpace)
			}
			if part != "" && !yield(part, 0, false) || !yield("", t.id, true) {
				return
			}
			from = at + len(t.text)
			for t.right && from < len(text) {
				r, n := utf8.DecodeRuneInString(text[from:])
				if !unicode.IsSpace(r) {
					break
				}
				from += n
			}
			at = from - 1
			break
		}
	}
	if from < len(text) {
		yield(text[from:], 0, false)
	}
}
