//go:build linux || darwin

package dialect

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Nothing is read beyond either end of the input: it lies between pages without access. A
// slice's bounds do not restrict vector and word reads.
func TestNothingIsReadBesideTheText(t *testing.T) {
	page := syscall.Getpagesize()
	pages, err := syscall.Mmap(-1, 0, 3*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	defer func() { require.NoError(t, syscall.Munmap(pages)) }()
	require.NoError(t, syscall.Mprotect(pages[:page], syscall.PROT_NONE))
	require.NoError(t, syscall.Mprotect(pages[2*page:], syscall.PROT_NONE))
	readable := pages[page : 2*page : 2*page]
	read := func(text []byte) {
		for i := range text {
			skipValue(text, i)
			if text[i] == '"' {
				skipString(text, i)
				readString(text, i)
			}
		}
		skipSpace(text, 0)
		stringLen(text)
		stringBytes(text)
		field(text, "a")
		isNull(text)
		m := startedMeter(t)
		m.Feed(nil, text)
		_, _ = m.End(nil)
		_, _ = parse(chat, nil, text, manyItems)
	}
	pieces := []string{`"`, `\"`, `\\`, `{"a":"`, `[`, `]`, `}`, `,`, "x", `\u00e9`, "   ", "data: {\"choices\":", "\n", "\r"}
	for length := range 140 {
		for _, piece := range pieces {
			text := fmt.Appendf(nil, "%*s", length, "")
			for i := range text {
				text[i] = piece[i%len(piece)]
			}
			if length > 0 {
				text[0] = `"{[`[length%3]
			}
			behind := readable[page-length:]
			copy(behind, text)
			read(behind)
			before := readable[:length:length]
			copy(before, text)
			read(before)
		}
	}
}
