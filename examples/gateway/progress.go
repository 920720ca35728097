package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// bar shows the progress of a policy: a bar on a terminal, otherwise a line at
// the start.
type bar struct {
	bar *progressbar.ProgressBar // nil: not a terminal
}

func newBar(w io.Writer, policy string, requests int) bar {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		fmt.Fprintf(w, "%s: %d requests\n", policy, requests)
		return bar{}
	}
	return bar{progressbar.NewOptions(requests,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetDescription(fmt.Sprintf("%-14s", policy)),
		progressbar.OptionShowCount(),
		progressbar.OptionSetWidth(40),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionOnCompletion(func() { fmt.Fprintln(w) }),
	)}
}

func (b bar) step() {
	if b.bar != nil {
		_ = b.bar.Add(1) // errors only concern drawing
	}
}

func (b bar) end() {
	if b.bar != nil {
		_ = b.bar.Finish()
	}
}
