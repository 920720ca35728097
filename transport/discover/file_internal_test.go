package discover

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/endpick/endpick/transport/internal/host"
	"github.com/stretchr/testify/require"
)

// A file is closed when it has been read, also if it can't be.
func TestFilesAreClosed(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // collecting an open file closes it
	dir := t.TempDir()
	path := filepath.Join(dir, "servers")
	require.NoError(t, os.WriteFile(path, []byte("a:1\n"), 0o600))
	_, err := read(path)
	require.NoError(t, err)
	_, err = read(dir)
	require.Error(t, err)
	const open = "/proc/self/fd"
	all, err := os.ReadDir(open)
	if err != nil {
		t.Skip("this system does not say which files are open")
	}
	for _, file := range all {
		to, _ := os.Readlink(filepath.Join(open, file.Name()))
		require.NotContains(t, []string{dir, path}, to)
	}
}

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
			require.True(t, line >= 0 && line <= 1+bytes.Count(text, []byte("\n")), "line %d: %v", line, err)
			return
		}
		require.NotEmpty(t, list, "an empty list is an error")
		for _, e := range list {
			_, err := host.Parse(e.Address)
			require.NoError(t, err, e.Address)
		}
	})
}
