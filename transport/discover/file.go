package discover

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/host"
)

// File returns a source that reads the file at a path, which is rewritten when the servers change. It has
// the address of a server on each line; empty lines, and lines that begin with #, are
// skipped. Or, if it begins with a bracket, it is a list in JSON:
//
//	[
//	  {"address": "10.0.0.1:8000", "models": ["llama"], "variant": "h100", "max_context": 32768, "max_in_flight": 64, "tier": 2, "weight": 0.5},
//	  {"address": "http://10.0.0.2:8000", "id": "gpu-2", "rank": 0, "adapters": ["sql"],
//	   "labels": {"zone": "a"}, "max_sequences": 256, "kv_tokens": 512000}
//	]
//
// All members except address are optional; unknown ones are an error.
//
// A changed file is used once two polls in a row have found the same content, so that
// it is not read half-written. It may be replaced by renaming. At most 16 MiB are
// read.
func File(path string) Source { return &file{path: path} }

type file struct {
	path    string
	list    []endpick.Endpoint // of text
	text    []byte             // as last used; nil: none yet
	pending []byte             // what the file said last, if different
}

// fileError says what is wrong with a file, and where. It matches the cause.
type fileError struct {
	Path string
	Line int // from 1; 0: not in any line
	Err  error
}

func (e *fileError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("%s:%d: %v", e.Path, e.Line, e.Err)
}

func (e *fileError) Unwrap() error { return e.Err }

// maxFile is the most bytes that are read.
const maxFile = 16 << 20

// Endpoints implements [Source]. The error says in which line a mistake is.
func (f *file) Endpoints(context.Context) ([]endpick.Endpoint, error) {
	text, err := read(f.path)
	if err != nil {
		f.pending = nil
		return nil, &fileError{Path: f.path, Err: err}
	}
	if f.text != nil {
		if bytes.Equal(text, f.text) {
			f.pending = nil
			return copied(f.list), nil
		}
		if f.pending == nil || !bytes.Equal(text, f.pending) {
			f.pending = text
			return copied(f.list), nil
		}
	}
	list, line, err := parse(text)
	if err != nil {
		return nil, &fileError{Path: f.path, Line: line, Err: err}
	}
	f.list, f.text = list, text
	return copied(list), nil
}

// read returns the file's content, which is never nil without an error.
func read(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, errors.Unwrap(err) // without the path
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("is longer than %d bytes", maxFile)
	}
	return bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")), err // a mark of UTF-8
}

// parse parses a file. line is the line of an error.
func parse(text []byte) (list []endpick.Endpoint, line int, err error) {
	var at []int64
	if bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("[")) {
		list, at, line, err = parseJSON(text)
	} else {
		list, at, line, err = parseLines(string(text))
	}
	switch {
	case err != nil:
		return nil, line, err
	case len(list) == 0:
		return nil, 0, ErrEmpty
	}
	if i, err := refused(list); err != nil {
		return nil, lineOf(text, at[i]), err
	}
	return list, 0, nil
}

// refused returns the first endpoint that a router refuses in this list, and why.
func refused(list []endpick.Endpoint) (int, error) {
	router, err := endpick.New(endpick.Config{})
	if err != nil {
		return 0, err
	}
	whole := router.SetEndpoints(list)
	if whole == nil {
		return 0, nil
	}
	seen := map[string]bool{}
	for i := range list {
		if err := router.SetEndpoints(list[i : i+1]); err != nil {
			return i, err
		}
		id := router.Endpoints()[0].Candidate.Endpoint.ID
		if seen[id] {
			return i, whole
		}
		seen[id] = true
	}
	return 0, whole
}

// lineOf returns the line of what comes next at an offset.
func lineOf(text []byte, offset int64) int {
	head := text[:min(offset, int64(len(text)))]
	rest := text[len(head):]
	space := len(rest) - len(bytes.TrimLeft(rest, " \t\r\n,"))
	return 1 + bytes.Count(text[:len(head)+space], []byte("\n"))
}

// parseLines returns a list and where in the text each endpoint is.
func parseLines(text string) (list []endpick.Endpoint, at []int64, line int, err error) {
	next := 0
	for one := range strings.Lines(text) {
		line++
		from := next
		next += len(one)
		one, _, _ = strings.Cut(one, " #")
		one = strings.TrimSpace(one)
		if one == "" || one[0] == '#' {
			continue
		}
		e := endpick.Endpoint{Address: one}
		if err := checkAddress(&e); err != nil {
			return nil, nil, line, err
		}
		list, at = append(list, e), append(at, int64(from))
	}
	return list, at, 0, nil
}

// described is an endpoint in a file.
type described struct {
	ID           string            `json:"id"`
	Address      string            `json:"address"`
	Rank         *int              `json:"rank"`
	Models       []string          `json:"models"`
	Adapters     []string          `json:"adapters"`
	Labels       map[string]string `json:"labels"`
	Variant      string            `json:"variant"`
	MaxSequences int               `json:"max_sequences"`
	KVTokens     int               `json:"kv_tokens"`
	MaxInFlight  int               `json:"max_in_flight"`
	MaxContext   int               `json:"max_context"`
	Tier         int               `json:"tier"`
	Weight       float64           `json:"weight"`
}

func (d *described) endpoint() endpick.Endpoint {
	e := endpick.Endpoint{
		ID: d.ID, Address: d.Address, Models: d.Models, Adapters: d.Adapters, Labels: d.Labels, Variant: d.Variant,
		MaxSequences: d.MaxSequences, KVTokens: d.KVTokens,
		MaxInFlight: d.MaxInFlight, MaxContext: d.MaxContext, Tier: d.Tier, Weight: d.Weight,
	}
	if d.Rank != nil {
		e.Ranked, e.Rank = true, *d.Rank
	}
	return e
}

// parseJSON returns a list and where in the text each endpoint is.
func parseJSON(text []byte) (list []endpick.Endpoint, at []int64, line int, err error) {
	var syntax *json.SyntaxError
	if err := json.Unmarshal(text, new([]json.RawMessage)); errors.As(err, &syntax) {
		return nil, nil, lineOf(text, syntax.Offset-1), err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	_, _ = decoder.Token() // the bracket
	for decoder.More() {
		from := decoder.InputOffset()
		var d described
		err := decoder.Decode(&d)
		var mismatch *json.UnmarshalTypeError
		if errors.As(err, &mismatch) {
			err = fmt.Errorf("unexpected %s for %s", mismatch.Value, cmp.Or(mismatch.Field, "an endpoint"))
		}
		e := d.endpoint()
		if err = cmp.Or(err, checkAddress(&e)); err != nil {
			return nil, nil, lineOf(text, from), err
		}
		list, at = append(list, e), append(at, from)
	}
	return list, at, 0, nil
}

// checkAddress refuses endpoints that can't be reached; refused finds other mistakes.
func checkAddress(e *endpick.Endpoint) error {
	if e.Address == "" {
		return errors.New("an endpoint without an address")
	}
	if _, err := host.Parse(e.Address); err != nil {
		return errors.New("the address is neither a host nor a URL of http, https or h2c")
	}
	return nil
}
