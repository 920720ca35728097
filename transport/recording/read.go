package recording

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// LineError says which line of a recording could not be read. It matches its
// cause.
type LineError struct {
	Line  int    // from 1
	Field string // empty: the line as a whole
	Err   error
}

func (e *LineError) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("recording: line %d: %v", e.Line, e.Err)
	}
	return fmt.Sprintf("recording: line %d: %s %v", e.Line, e.Field, e.Err)
}

// Unwrap returns the cause.
func (e *LineError) Unwrap() error { return e.Err }

// Read calls f with every request and the number of its line, from 1, in the
// order of the file, until f returns an error, which it returns. Empty lines
// are skipped; any other line that is not a request, or has a negative length
// or time, is a [LineError], and so is an error from in. f may keep r.
func Read(in io.Reader, f func(line int, r *Request) error) error {
	lines := bufio.NewReaderSize(in, 64<<10)
	for n := 1; ; n++ {
		text, err := lines.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return &LineError{Line: n, Err: err}
		}
		if len(bytes.TrimSpace(text)) > 0 {
			r := new(Request)
			if bad := r.read(n, text); bad != nil {
				return bad
			}
			if stop := f(n, r); stop != nil {
				return stop
			}
		}
		if err == io.EOF {
			return nil
		}
	}
}

func (r *Request) read(line int, text []byte) error {
	if err := json.Unmarshal(text, r); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) && wrong.Field != "" {
			return &LineError{Line: line, Field: wrong.Field, Err: errors.New("is a " + wrong.Value)}
		}
		return &LineError{Line: line, Err: err}
	}
	if field, reason := r.check(); field != "" {
		return &LineError{Line: line, Field: field, Err: errors.New(reason)}
	}
	return nil
}
