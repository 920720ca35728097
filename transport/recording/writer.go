package recording

import (
	"bufio"
	"encoding/json"
	"io"
	"sync"
)

// NewWriter returns a function that adds a request to the recording w, and suits
// Config.Record of package transport, and one that writes what is left in the buffer. The
// first error stops the recording and is returned by the latter. Both are safe for
// concurrent use. They don't close w.
func NewWriter(w io.Writer) (write func(Request), end func() error) {
	out := &writer{w: bufio.NewWriterSize(w, 64<<10)}
	return out.write, out.end
}

type writer struct {
	mu  sync.Mutex
	w   *bufio.Writer
	err error
}

func (w *writer) write(r Request) {
	line, err := json.Marshal(r)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return
	}
	if w.err = err; err == nil {
		_, w.err = w.w.Write(append(line, '\n'))
	}
}

func (w *writer) end() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	// Even after a request that could not be written: earlier ones could.
	if err := w.w.Flush(); w.err == nil {
		w.err = err
	}
	return w.err
}
