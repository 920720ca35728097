package main

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress is a bar of finished runs, shown only on a terminal. Its methods are
// safe for concurrent use.
type progress struct{ bar *progressbar.ProgressBar }

func newProgress(w io.Writer, runs int) progress {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return progress{}
	}
	bar := progressbar.NewOptions(runs,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetDescription("runs"),
		progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
	)
	bar.RenderBlank()
	return progress{bar}
}

func (p progress) add() {
	if p.bar != nil {
		p.bar.Add(1)
	}
}

// end removes the bar from the terminal.
func (p progress) end() {
	if p.bar != nil {
		p.bar.Clear()
	}
}
