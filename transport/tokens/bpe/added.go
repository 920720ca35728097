package bpe

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is a token that is recognized in a text before anything else, whatever
// surrounds it.
type addedToken struct {
	text        string
	id          uint32
	left, right bool // includes white space on that side
}

// added are a model's tokens by first byte, the longest first, because the longest one
// at a place wins.
type added [256][]addedToken

func (a *added) add(t addedToken) {
	if t.text == "" {
		return
	}
	l := append(a[t.text[0]], t)
	slices.SortStableFunc(l, func(x, y addedToken) int { return len(y.text) - len(x.text) })
	a[t.text[0]] = l
}

// cut calls yield with the added tokens in a text, and with what is between them,
// until it returns false.
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
