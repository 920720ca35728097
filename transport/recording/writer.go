package recording

import (
	"bufio"
	"cmp"
	"encoding/json"
	"io"
	"sync"
)

// NewWriter returns a function that adds a request to the recording w, and suits
// Config.Record of package transport, and one that writes what is left in the buffer. The
// first error stops the recording and is returned by the latter. Both are safe for
// concurrent use. They don't close w.
func NewWriter(w io.Writer) (write func(Request), end func() error) {
	var mu sync.Mutex
	var failed error
	buffer := bufio.NewWriterSize(w, 64<<10)
	write = func(r Request) {
		line, err := json.Marshal(r)
		mu.Lock()
		defer mu.Unlock()
		if failed != nil {
			return
		}
		if failed = err; err == nil {
			_, failed = buffer.Write(append(line, '\n'))
		}
	}
	return write, func() error {
		mu.Lock()
		defer mu.Unlock()
		// Even after a request that could not be written: earlier ones could.
		return cmp.Or(failed, buffer.Flush())
	}
}
