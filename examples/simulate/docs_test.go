package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The docs' commands are valid. Those that replay a trace need it beside the repository.
func TestDocs(t *testing.T) {
	const command = "\n$ go run ./examples/simulate -"
	pages, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	commands := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, rest := range strings.Split(string(text), command)[1:] {
			line, _, _ := strings.Cut(rest, "\n")
			commands++
			args := strings.Fields("-" + line)
			for i, arg := range args {
				if strings.HasPrefix(arg, "../shared/") {
					args[i] = filepath.Join("..", "..", arg)
				}
			}
			if _, err := readOptions(args, &bytes.Buffer{}); !os.IsNotExist(err) {
				assert.NoError(t, err, "%s: -%s", page, line)
			}
		}
	}
	require.Positive(t, commands)
}
