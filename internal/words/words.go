// Package words tells what kind of word differs between two texts: a date, an
// identifier, a number, or white space alone.
package words

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Same reports whether two texts differ in white space only.
func Same(a, b string) bool {
	for {
		a, b = strings.TrimLeftFunc(a, unicode.IsSpace), strings.TrimLeftFunc(b, unicode.IsSpace)
		if a == "" || b == "" {
			return a == b
		}
		x, n := utf8.DecodeRuneInString(a)
		y, m := utf8.DecodeRuneInString(b)
		if x != y || n != m || a[0] != b[0] {
			return false
		}
		a, b = a[n:], b[m:]
	}
}

// Common is how many bytes two texts have in common at their heads.
func Common(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

func inWord(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("-_:.+", r)
}

// At returns the word around byte i, which may be within a letter: letters, digits and
// what joins them in dates and identifiers.
func At(s string, i int) string {
	i = min(i, len(s))
	for i > 0 && i < len(s) && !utf8.RuneStart(s[i]) {
		i--
	}
	from := i
	for from > 0 {
		r, n := utf8.DecodeLastRuneInString(s[:from])
		if !inWord(r) {
			break
		}
		from -= n
	}
	to := strings.IndexFunc(s[i:], func(r rune) bool { return !inWord(r) })
	if to < 0 {
		to = len(s) - i
	}
	return strings.Trim(s[from:i+to], ":.")
}

// Class is what a character may be part of.
type Class uint8

// The classes. Words begin with a letter or a digit, and go on with these and joints.
const (
	Other Class = iota
	Space
	Letter
	Digit
	Joint // -_:.+
)

var ascii = func() (t [utf8.RuneSelf]Class) {
	for i := range t {
		switch r := rune(i); {
		case unicode.IsSpace(r):
			t[i] = Space
		case unicode.IsDigit(r):
			t[i] = Digit
		case unicode.IsLetter(r):
			t[i] = Letter
		case strings.ContainsRune("-_:.+", r):
			t[i] = Joint
		}
	}
	return t
}()

// ClassAt returns the class of the character at a byte of a text, and moves on behind
// it.
func ClassAt(s string, at *int) Class {
	if c := s[*at]; c < utf8.RuneSelf {
		*at++
		return ascii[c]
	}
	r, n := utf8.DecodeRuneInString(s[*at:])
	*at += n
	switch {
	case unicode.IsSpace(r):
		return Space
	case unicode.IsLetter(r) || unicode.IsDigit(r):
		return Letter
	}
	return Other
}

// Timestamp recognises 2025-01-15, 10:30, 2025-01-15T10:30:00Z and seconds or
// milliseconds since the epoch between 2001 and 2286.
func Timestamp(w string) bool {
	if len(w) > 64 {
		return false
	}
	shape := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return '0'
		}
		return r
	}, w)
	if strings.HasPrefix(shape, "0000-00-00") || strings.HasPrefix(shape, "00:00") {
		return true
	}
	whole, _, _ := strings.Cut(shape, ".")
	return w[:min(1, len(w))] != "0" && (whole == "0000000000" || whole == "0000000000000")
}

// Number recognises digits and what stands between them in numbers.
func Number(w string) bool {
	digits := 0
	for _, r := range w {
		switch {
		case r >= '0' && r <= '9':
			digits++
		case !strings.ContainsRune("+-.:", r):
			return false
		}
	}
	return digits > 0
}

// Identifier recognises UUIDs, hashes and names such as req_8f3a2b: at least six
// characters in one word with a digit among them.
func Identifier(w string) bool {
	return len(w) >= 6 && strings.ContainsAny(w, "0123456789")
}

// DateName recognises the English names of months and days of the week, and AM and
// PM, as dates have them.
func DateName(w string) bool {
	if len(w) > len("Wednesday") || len(w) < 2 || w[0] < 'A' || w[0] > 'Z' {
		return false
	}
	for _, name := range [...]string{
		"January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December",
		"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday",
	} {
		if w == name || len(w) == 3 && w == name[:3] {
			return true
		}
	}
	return w == "AM" || w == "PM" || w == "UTC"
}
