package words

import "testing"

// A position may be within a letter, as where two letters with the same first byte differ.
func TestAt(t *testing.T) {
	for _, tc := range []struct {
		s    string
		i    int
		want string
	}{
		{"one two-3 four", 5, "two-3"}, {"one two", 3, "one"}, {"one two", 4, "two"}, {"one", 9, "one"}, {"", 0, ""},
		{"вот слово тут", len("вот сло") + 1, "слово"}, {"ä", 1, "ä"}, {"a\xb3b", 1, "a"}, {"\xb3", 1, ""}, {"at 10:30.", 4, "10:30"},
	} {
		if got := At(tc.s, tc.i); got != tc.want {
			t.Errorf("At(%q, %d) = %q, want %q", tc.s, tc.i, got, tc.want)
		}
	}
}
