package main

import (
	"bytes"
	"io"
	"os"
)

// output is where a verb writes: a file, or standard output.
type output struct {
	w    io.Writer
	file *os.File
}

// openOutput opens the file at once, so that a long run does not end with a
// file that can't be written. Its content remains until the new one is
// complete.
func openOutput(path string, stdout io.Writer) (*output, error) {
	if path == "" {
		return &output{w: stdout}, nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return nil, err
	}
	return &output{f, f}, nil
}

// write replaces the file's content by that of b.
func (o *output) write(b *bytes.Buffer) error {
	if o.file != nil {
		if info, err := o.file.Stat(); err == nil && info.Mode().IsRegular() {
			if err := o.file.Truncate(0); err != nil {
				return err
			}
		}
	}
	if _, err := b.WriteTo(o.w); err != nil || o.file == nil {
		return err
	}
	return o.file.Close()
}
