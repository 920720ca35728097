package sim

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// MooncakeTick is the resolution of the times in Mooncake's conversation trace.
const MooncakeTick = 3 * time.Second

// TraceError says what is wrong with a trace, and where. It matches its cause.
type TraceError struct {
	File string
	Line int // from 1; 0: the file as a whole
	Err  error
}

func (e *TraceError) Error() string {
	where := e.File
	if e.Line > 0 {
		where += fmt.Sprintf(":%d", e.Line)
	}
	return "sim: " + where + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *TraceError) Unwrap() error { return e.Err }

// OpenTrace reads a trace file, which may be gzipped: JSON lines of Mooncake's (timestamp
// in ms, input_length, output_length, and hash_ids of 512 tokens each) or a gateway's
// recording (package transport/recording), or CSV of Azure's or of vLLM runs, as
// LLMServingSim records them. The first line tells which.
func OpenTrace(path string) (*Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	defer f.Close()
	return ReadTrace(filepath.Base(path), f)
}

// ReadTrace reads a trace; name is for errors. See [OpenTrace]. A trace whose times
// all lie on ticks of [MooncakeTick] gets that as its Spread.
func ReadTrace(name string, r io.Reader) (*Trace, error) {
	text, err := whole(name, r)
	if err == nil && bytes.HasPrefix(text, []byte{0x1f, 0x8b}) {
		unzipped, bad := gzip.NewReader(bytes.NewReader(text))
		if bad != nil {
			return nil, &TraceError{name, 0, fmt.Errorf("can't be unpacked: %w", bad)}
		}
		text, err = whole(name, unzipped)
	}
	if err != nil {
		return nil, err
	}
	t := &Trace{Name: name}
	head, _, _ := strings.Cut(string(text[:min(len(text), 4096)]), "\n")
	switch object := strings.HasPrefix(head, "{"); {
	case strings.HasPrefix(head, azureTrace.columns[0]+","):
		t.Records, err = readCSV(name, text, azureTrace)
	case strings.HasPrefix(head, vllmTrace.columns[0]+","):
		t.Records, err = readCSV(name, text, vllmTrace)
	case object && strings.Contains(head, `"input_length"`):
		t.Records, err = readMooncake(name, text)
		if coarse(t.Records) {
			t.Spread = MooncakeTick
		}
	case object && strings.Contains(head, `"e2e_ms"`):
		t.Records, err = readRecording(name, bytes.NewReader(text))
	default:
		err = &TraceError{name, 1, errors.New("is in no known format (mooncake, azure, recording, vllm)")}
	}
	if err != nil {
		return nil, err
	}
	if len(t.Records) == 0 {
		return nil, &TraceError{name, 0, errors.New("has no requests")}
	}
	return t, nil
}

// whole reads all of a trace: one that breaks off is no shorter trace.
func whole(name string, r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, &TraceError{name, bytes.Count(text, []byte{'\n'}) + 1, fmt.Errorf("breaks off: %w", err)}
	}
	return text, nil
}

func coarse(records []Record) bool {
	tick := millis(MooncakeTick)
	for i := range records {
		at := records[i].ArrivalMillis
		if math.Abs(at-math.Round(at/tick)*tick) > 1 { // some are off by a millisecond
			return false
		}
	}
	return len(records) > 1
}
