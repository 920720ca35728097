package recording

import (
	"bufio"
	"encoding/json"
	"io"
	"sync"
)

// Writer writes a recording. Make one with [NewWriter]. It is safe for
// concurrent use.
type Writer struct {
	mu  sync.Mutex
	w   *bufio.Writer
	err error
}

// NewWriter returns a writer to w. Close it, or the last requests stay in its
// buffer.
func NewWriter(w io.Writer) *Writer {
	return &Writer{w: bufio.NewWriterSize(w, 64<<10)}
}

// Write adds a request. The first error stops the recording and is returned by
// Close.
func (w *Writer) Write(r Request) {
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

// Close writes what is left. The underlying writer stays open.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	// Even after a request that could not be written: earlier ones could.
	if err := w.w.Flush(); w.err == nil {
		w.err = err
	}
	return w.err
}
