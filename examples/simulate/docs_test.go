package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var checkDocs = flag.Bool("docs", false, "run the commands of ../../docs and compare what they print; with -update, write it there")

const (
	fence   = "```"
	console = fence + "console\n$ go run ./examples/simulate"
)

// Every table in the docs stands below the command that made it. The commands
// take many minutes, so they run on demand only.
func TestDocs(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	commands := 0
	for _, page := range pages {
		page, err := filepath.Abs(page)
		require.NoError(t, err)
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		var made strings.Builder
		rest := string(text)
		for {
			before, block, ok := strings.Cut(rest, console)
			made.WriteString(before)
			if !ok {
				break
			}
			block, after, ok := strings.Cut(block, "\n"+fence)
			require.True(t, ok, "%s: a block without an end", page)
			command, output, _ := strings.Cut(block, "\n")
			commands++
			args := strings.Fields(command)
			if *checkDocs {
				t.Log(command)
				output = docsOutput(t, args)
			} else if len(args) > 0 && strings.HasPrefix(args[0], "-") {
				checkCommand(t, args)
			}
			made.WriteString(console + command + "\n" + strings.TrimRight(output, "\n") + "\n" + fence)
			rest = after
		}
		switch {
		case *checkDocs && *update:
			require.NoError(t, os.WriteFile(page, []byte(made.String()), 0o666))
		case *checkDocs:
			require.Equal(t, string(text), made.String(), "%s: run with -docs -update and look at the difference", page)
		}
	}
	require.Greater(t, commands, 5)
}

// docsOutput runs a command from the docs where they say: in the repository's root.
func docsOutput(t *testing.T, args []string) string {
	t.Chdir("../..")
	defer t.Chdir("examples/simulate")
	return simulate(t, args...)
}

// checkCommand checks that the command is valid, without running it.
func checkCommand(t *testing.T, args []string) {
	root := filepath.Join("..", "..")
	for i, arg := range args {
		if strings.HasPrefix(arg, "../shared/") {
			args[i] = filepath.Join(root, arg)
			if _, err := os.Stat(args[i]); err != nil {
				t.Logf("no %s beside the repository: not checked", arg)
				return
			}
		}
	}
	_, err := readOptions(args, &bytes.Buffer{})
	require.NoError(t, err, "%v", args)
}
