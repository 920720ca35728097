package main

import (
	"bytes"
	"io"
	"os"
)

// writable finds out early whether a file can be written, so that a long run does not end with
// one that can't. Its content remains until the new one is complete.
func writable(path string) error {
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	return f.Close()
}

// write writes to a file, or to standard output if there is none.
func write(path string, stdout io.Writer, b *bytes.Buffer) error {
	if path != "" {
		return os.WriteFile(path, b.Bytes(), 0o666)
	}
	_, err := b.WriteTo(stdout)
	return err
}
