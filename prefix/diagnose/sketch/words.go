package sketch

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// class is the role of a character in words, which begin with a letter or a digit, and go on
// with these and joints.
type class uint8

const (
	other class = iota
	space
	joint // -_:.+
	letter
	digit
)

// ascii are the classes of most characters.
var ascii = func() (all [utf8.RuneSelf]class) {
	for r := range all {
		all[r] = classify(rune(r))
	}
	return all
}()

func classOf(r rune) class {
	if r >= 0 && r < utf8.RuneSelf {
		return ascii[r]
	}
	return classify(r)
}

func classify(r rune) class {
	switch {
	case r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z':
		return letter
	case r >= '0' && r <= '9':
		return digit
	case r == '-' || r == '_' || r == ':' || r == '.' || r == '+':
		return joint
	case unicode.IsSpace(r):
		return space
	case unicode.IsLetter(r) || unicode.IsDigit(r):
		return letter
	}
	return other
}

// Word returns the word that a text begins with, without the colons and dots at its end, and
// whether it has digits; empty: the text begins with something else.
func Word(text string) (word string, digits bool) {
	end := 0
	for end < len(text) {
		r, n := utf8.DecodeRuneInString(text[end:])
		c := classOf(r)
		if c < joint || end == 0 && c == joint {
			break
		}
		digits = digits || c == digit
		end += n
	}
	for end > 0 && (text[end-1] == ':' || text[end-1] == '.') {
		end--
	}
	return text[:end], digits
}

// kindOf is the kind of a word that probably changes; empty: it does not.
func kindOf(word string, digits bool) string {
	switch {
	case isDateName(word) || digits && isTimestamp(word):
		return "timestamp"
	case !digits:
		return ""
	case strings.Trim(word, "0123456789+-.:") == "":
		return "number"
	}
	return "identifier"
}

// isTimestamp reports whether a word is like 2025-01-15, 10:30, 2025-01-15T10:30:00Z, or
// seconds or milliseconds since the epoch between 2001 and 2286.
func isTimestamp(w string) bool {
	like := func(pattern string) bool {
		i := 0
		for i < min(len(pattern), len(w)) && (w[i] == pattern[i] || pattern[i] == '0' && classOf(rune(w[i])) == digit) {
			i++
		}
		return i == len(pattern)
	}
	whole, _, _ := strings.Cut(w, ".")
	seconds := w[0] != '0' && (len(whole) == 10 || len(whole) == 13) && like("0000000000000"[:len(whole)])
	return seconds || like("0000-00-00") || like("00:00")
}

const dateNames = "January February March April May June July August September October November December " +
	"Monday Tuesday Wednesday Thursday Friday Saturday Sunday UTC"

// isDateName reports whether a word is an English name of a month or a day of the week, or the
// beginning of one, or AM, PM or UTC.
func isDateName(w string) bool {
	return w == "AM" || w == "PM" || len(w) > 2 && w[0] >= 'A' && w[0] <= 'Z' && strings.Contains(dateNames, w)
}
