package transport

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/endpick/endpick"
)

// Record is what was seen of one request: lengths, hashes and times, never
// text. A recording is a file of them, one JSON object a line, in the order in
// which the requests ended.
type Record struct {
	// Time is when the request arrived; the durations count from there, in
	// milliseconds.
	Time time.Time `json:"time"`
	// TTFTMillis is nil for a response without a first token: one that did not
	// stream, or failed before.
	TTFTMillis *float64 `json:"ttft_ms,omitempty"`
	E2EMillis  float64  `json:"e2e_ms"`

	Model    string `json:"model,omitempty"`
	Endpoint string `json:"endpoint,omitempty"` // the last that it was sent to; none: never sent
	Status   string `json:"status"`             // as endpick.Status spells it
	HTTP     int    `json:"http,omitempty"`     // status of the response; 0: there was none
	Attempts int    `json:"attempts"`

	Stream bool `json:"stream,omitempty"`
	// InputTokens and OutputTokens are the engine's figures; without them,
	// Estimated says so.
	InputTokens  int  `json:"input_tokens"`
	OutputTokens int  `json:"output_tokens"`
	Estimated    bool `json:"estimated,omitempty"`
	// CachedTokens is nil where the engine did not say.
	CachedTokens *int `json:"cached_tokens,omitempty"`
	MaxTokens    int  `json:"max_tokens,omitempty"` // the client's limit; 0: none

	// Blocks are the chained hashes of the prompt, each standing for
	// BlockTokens tokens.
	Blocks      []Hash  `json:"blocks,omitempty"`
	BlockTokens float64 `json:"block_tokens,omitempty"`
	// Tenant and Session are hashes of their names.
	Tenant  Hash `json:"tenant,omitzero"`
	Session Hash `json:"session,omitzero"`

	Priority      int     `json:"priority,omitempty"`
	SLOTTFTMillis float64 `json:"slo_ttft_ms,omitempty"`
	SLOTPOTMillis float64 `json:"slo_tpot_ms,omitempty"`
}

// Hash is a hash of 64 bits, in JSON a string of hexadecimal digits, because
// numbers of that size do not survive every reader. Zero: none.
type Hash uint64

// MarshalText writes hexadecimal digits.
func (h Hash) MarshalText() ([]byte, error) {
	return strconv.AppendUint(make([]byte, 0, 16), uint64(h), 16), nil
}

// UnmarshalText reads hexadecimal digits.
func (h *Hash) UnmarshalText(b []byte) error {
	v, err := strconv.ParseUint(string(b), 16, 64)
	*h = Hash(v)
	return err
}

func hashOf(s string) Hash {
	if s == "" {
		return 0
	}
	return Hash(xxhash.Sum64String(s))
}

// RecordWriter writes a recording. It is safe for concurrent use.
type RecordWriter struct {
	mu  sync.Mutex
	w   *bufio.Writer
	err error
}

// NewRecordWriter returns a writer to w. Close it, or the last records stay in
// its buffer.
func NewRecordWriter(w io.Writer) *RecordWriter {
	return &RecordWriter{w: bufio.NewWriterSize(w, 64<<10)}
}

// Write adds a record; it suits Config.Record. The first error stops the
// recording and is returned by Close.
func (w *RecordWriter) Write(r Record) {
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
func (w *RecordWriter) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = w.w.Flush()
	}
	return w.err
}

// RecordError says which line of a recording could not be read. It matches
// ErrRecord and the cause.
type RecordError struct {
	Line int // from 1
	Err  error
}

func (e *RecordError) Error() string {
	return fmt.Sprintf("transport: recording, line %d: %v", e.Line, e.Err)
}

// Unwrap returns ErrRecord and the cause.
func (e *RecordError) Unwrap() []error { return []error{ErrRecord, e.Err} }

// ReadRecords calls f with every record, in the order of the file, until f
// returns an error, which it returns. Empty lines are skipped; any other line
// that is no record, or has a negative length or time, is a [RecordError].
func ReadRecords(r io.Reader, f func(*Record) error) error {
	in := bufio.NewReaderSize(r, 64<<10)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return &RecordError{Line: n, Err: err}
		}
		if skipSpace(line, 0) < len(line) {
			var rec Record
			if bad := rec.unmarshal(line); bad != nil {
				return &RecordError{Line: n, Err: bad}
			}
			if stop := f(&rec); stop != nil {
				return stop
			}
		}
		if err == io.EOF {
			return nil
		}
	}
}

func (r *Record) unmarshal(line []byte) error {
	if err := json.Unmarshal(line, r); err != nil {
		return err
	}
	switch {
	case r.Time.IsZero():
		return errors.New("time is missing")
	case r.InputTokens < 0:
		return errors.New("input_tokens is negative")
	case r.OutputTokens < 0:
		return errors.New("output_tokens is negative")
	case r.CachedTokens != nil && *r.CachedTokens < 0:
		return errors.New("cached_tokens is negative")
	case r.E2EMillis < 0:
		return errors.New("e2e_ms is negative")
	case r.TTFTMillis != nil && *r.TTFTMillis < 0:
		return errors.New("ttft_ms is negative")
	case r.BlockTokens < 0:
		return errors.New("block_tokens is negative")
	}
	return nil
}

// record hands over the record of a request that has ended; x is nil if it was
// never sent.
func (tr *trip) record(x *exchange, status endpick.Status, code int) {
	if tr.t.config.Record == nil {
		return
	}
	millis := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	end := tr.t.config.Clock()
	r := Record{
		Time: tr.start, Model: tr.model, Status: status.String(), HTTP: code, Attempts: tr.attempts,
		Stream: tr.req.Stream, InputTokens: tr.req.InputTokens, Estimated: true, MaxTokens: tr.maxTokens,
		BlockTokens: tr.req.BlockTokens, Tenant: hashOf(tr.req.Tenant), Session: hashOf(tr.req.Session),
		Priority: tr.req.Priority, SLOTTFTMillis: millis(tr.slo.TTFT), SLOTPOTMillis: millis(tr.slo.TPOT),
	}
	for _, b := range tr.req.Blocks {
		r.Blocks = append(r.Blocks, Hash(b))
	}
	if x != nil {
		x.mu.Lock()
		u, counted, first := x.usage, x.counted, x.firstAt
		if x.ended {
			end = x.endAt
		}
		x.mu.Unlock()
		r.Endpoint = x.lease.Endpoint().ID
		r.OutputTokens = counted
		if u.hasPrompt && u.hasCompletion {
			r.InputTokens, r.OutputTokens, r.Estimated = u.prompt, u.completion, false
		}
		if u.hasCached {
			r.CachedTokens = &u.cached
		}
		if !first.IsZero() {
			ttft := millis(first.Sub(tr.start))
			r.TTFTMillis = &ttft
		}
	}
	r.E2EMillis = millis(end.Sub(tr.start))
	tr.t.config.Record(r)
}
