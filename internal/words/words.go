// Package words classifies the words that differ between two texts: dates,
// identifiers, numbers, or white space only.
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

// Common is the length of the common head of two texts, in bytes.
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

// At returns the word around byte i, which may be within a character: letters, digits
// and what joins them in dates and identifiers.
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

// Class is the role of a character in words.
type Class uint8

// The classes. Words begin with a letter or a digit, and continue with these and joints.
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

// ClassAt returns the class of the character at a byte of a text, and advances past
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

// Timestamp reports whether a word is like 2025-01-15, 10:30,
// 2025-01-15T10:30:00Z, or seconds or milliseconds since the epoch between 2001
// and 2286.
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

// Number reports whether a word consists of digits and what joins them in numbers.
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

// Identifier reports whether a word is like a UUID, a hash or a name such as
// req_8f3a2b: at least six characters with a digit among them.
func Identifier(w string) bool {
	return len(w) >= 6 && strings.ContainsAny(w, "0123456789")
}

// DateName reports whether a word is an English name of a month or a day of the
// week, or AM or PM.
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
