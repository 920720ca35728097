package discover

import (
	"bytes"
	"testing"

	"github.com/endpick/endpick/internal/target"
)

// Any file is either read or refused with the number of a line in it, and every
// endpoint read has an address.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"a:1\nb:1\n", "# x\n\nhttps://u:p@h/base\n", `[{"address":"a:1","rank":0}]`, "[\n{\"address\":\"a\"},\n{}]", "[[", "[null]", "[1]", "\xff", "[{\"address\":\"a\"}] x",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		list, line, err := parse(text)
		if err != nil {
			if lines := 1 + bytes.Count(text, []byte("\n")); line < 0 || line > lines {
				t.Fatalf("line %d of %d: %v", line, lines, err)
			}
			return
		}
		if len(list) == 0 {
			t.Fatal("an empty list is an error")
		}
		for _, e := range list {
			if _, err := target.Parse(e.Address); err != nil {
				t.Fatalf("%q: %v", e.Address, err)
			}
		}
	})
}
