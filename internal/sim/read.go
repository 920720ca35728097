package sim

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// MooncakeTick is the resolution of the times in Mooncake's conversation trace.
const MooncakeTick = 3 * time.Second

// Format is the format of a trace file.
type Format string

// The formats.
const (
	// MooncakeFormat is JSON lines of timestamp (ms), input_length, output_length and
	// hash_ids (chained, 512 tokens each).
	MooncakeFormat Format = "mooncake"
	// AzureFormat is CSV of TIMESTAMP, ContextTokens, GeneratedTokens.
	AzureFormat Format = "azure"
	// RecordFormat is JSON lines, each a [Record].
	RecordFormat Format = "record"
	// GatewayFormat is JSON lines, each a record of package transport.
	GatewayFormat Format = "gateway"
	// VLLMFormat is CSV of input_tokens, output_tokens, queued_s, scheduled_s,
	// first_token_s, last_token_s, as LLMServingSim records vLLM.
	VLLMFormat Format = "vllm"
)

// TraceError says what in a trace can't be read.
type TraceError struct {
	File   string
	Line   int    // from 1; 0: the file as a whole
	Field  string // empty: the line as a whole
	Reason string
}

func (e *TraceError) Error() string {
	var b strings.Builder
	b.WriteString("sim: ")
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	b.WriteString(": ")
	if e.Field != "" {
		b.WriteString(e.Field)
		b.WriteString(" ")
	}
	b.WriteString(e.Reason)
	return b.String()
}

// OpenTrace reads a trace file, which may be gzipped. Its format is told from its
// first line.
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
	buffered := bufio.NewReaderSize(r, 1<<16)
	if magic, _ := buffered.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		unzipped, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, &TraceError{File: name, Reason: err.Error()}
		}
		defer unzipped.Close()
		buffered = bufio.NewReaderSize(unzipped, 1<<16)
	}
	format, err := sniff(name, buffered)
	if err != nil {
		return nil, err
	}
	t := &Trace{Name: name}
	switch format {
	case MooncakeFormat, RecordFormat:
		t.Records, err = readLines(name, buffered, format)
	case GatewayFormat:
		t.Records, err = readRecording(name, buffered)
	default:
		t.Records, err = readCSV(name, buffered, format)
	}
	if err != nil {
		return nil, err
	}
	if len(t.Records) == 0 {
		return nil, &TraceError{File: name, Reason: "has no requests"}
	}
	if format == MooncakeFormat && coarse(t.Records) {
		t.Spread = MooncakeTick
	}
	return t, nil
}

func coarse(records []Record) bool {
	tick := millis(MooncakeTick)
	for i := range records {
		at := records[i].ArrivalMillis
		if math.Abs(at-math.Round(at/tick)*tick) > 1 { // some lie one millisecond off
			return false
		}
	}
	return len(records) > 1
}

func sniff(name string, r *bufio.Reader) (Format, error) {
	head, _ := r.Peek(4096)
	line, _, _ := strings.Cut(string(head), "\n")
	switch {
	case strings.HasPrefix(line, "TIMESTAMP,"):
		return AzureFormat, nil
	case strings.HasPrefix(line, "input_tokens,"):
		return VLLMFormat, nil
	case strings.HasPrefix(line, "{") && strings.Contains(line, `"input_length"`):
		return MooncakeFormat, nil
	case strings.HasPrefix(line, "{") && strings.Contains(line, `"e2e_ms"`):
		return GatewayFormat, nil
	case strings.HasPrefix(line, "{"):
		return RecordFormat, nil
	}
	return "", &TraceError{File: name, Line: 1, Reason: "is of no known format (mooncake, azure, record, gateway, vllm)"}
}

// mooncakeLine is one line of a Mooncake trace.
type mooncakeLine struct {
	Timestamp    *float64 `json:"timestamp"`
	InputLength  *int     `json:"input_length"`
	OutputLength *int     `json:"output_length"`
	HashIDs      []uint64 `json:"hash_ids"`
}

// mooncakeNames are the names of fields in a Mooncake trace, by those of a Record.
var mooncakeNames = map[string]string{
	"arrival_ms": "timestamp", "input_tokens": "input_length", "output_tokens": "output_length", "blocks": "hash_ids",
}

func readLines(name string, r io.Reader, format Format) ([]Record, error) {
	var records []Record
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 64<<20)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		var record Record
		decoder := json.NewDecoder(bytes.NewReader(line))
		bad := func(field, reason string) error {
			if format == MooncakeFormat && mooncakeNames[field] != "" {
				field = mooncakeNames[field]
			}
			return &TraceError{name, n, field, reason}
		}
		var err error
		if format == MooncakeFormat {
			var m mooncakeLine
			err = decoder.Decode(&m)
			for _, f := range []struct {
				name   string
				absent bool
			}{{"timestamp", m.Timestamp == nil}, {"input_length", m.InputLength == nil}, {"output_length", m.OutputLength == nil}} {
				if err == nil && f.absent {
					return nil, bad(f.name, "is missing")
				}
			}
			if err == nil {
				record = Record{
					ArrivalMillis: *m.Timestamp, InputTokens: *m.InputLength, OutputTokens: *m.OutputLength,
					Blocks: m.HashIDs, BlockTokens: 512,
				}
			}
		} else {
			decoder.DisallowUnknownFields()
			err = decoder.Decode(&record)
		}
		if err != nil {
			var wrong *json.UnmarshalTypeError
			if errors.As(err, &wrong) {
				return nil, bad(wrong.Field, "is a "+wrong.Value)
			}
			return nil, bad("", "is no JSON object of this format: "+err.Error())
		}
		if decoder.More() {
			return nil, bad("", "has more than one JSON object")
		}
		if field, reason := record.check(); field != "" {
			return nil, bad(field, reason)
		}
		records = append(records, record)
	}
	if err := lines.Err(); err != nil {
		return nil, &TraceError{File: name, Reason: err.Error()}
	}
	return records, nil
}

// azureTime is the form of times in the Azure traces: UTC, in units of 100 ns.
const azureTime = "2006-01-02 15:04:05.9999999"

func readCSV(name string, r io.Reader, format Format) ([]Record, error) {
	columns := []string{"TIMESTAMP", "ContextTokens", "GeneratedTokens"}
	if format == VLLMFormat {
		columns = []string{"input_tokens", "output_tokens", "queued_s", "scheduled_s", "first_token_s", "last_token_s"}
	}
	reader := csv.NewReader(r)
	reader.ReuseRecord = true
	reader.FieldsPerRecord = len(columns)
	var records []Record
	var start time.Time
	for {
		row, err := reader.Read()
		if err == io.EOF {
			return records, nil
		}
		line, _ := reader.FieldPos(0)
		if err != nil {
			var parse *csv.ParseError
			if errors.As(err, &parse) {
				return nil, &TraceError{name, parse.Line, "", parse.Err.Error()}
			}
			return nil, &TraceError{File: name, Reason: err.Error()}
		}
		if line == 1 {
			for i, c := range columns {
				if strings.TrimSpace(row[i]) != c {
					return nil, &TraceError{name, 1, c, fmt.Sprintf("is missing, there is %q", row[i])}
				}
			}
			continue
		}
		var record Record
		p := fields{row: row, columns: columns}
		if format == VLLMFormat {
			record = Record{
				InputTokens: p.int(0), OutputTokens: p.int(1), ArrivalMillis: p.float(2) * 1000,
				FirstTokenMillis: p.float(4) * 1000, LastTokenMillis: p.float(5) * 1000,
			}
		} else {
			at := p.time(0)
			if len(records) == 0 {
				start = at
			}
			record = Record{ArrivalMillis: millis(at.Sub(start)), InputTokens: p.int(1), OutputTokens: p.int(2)}
		}
		if p.field == "" {
			p.field, p.reason = record.check()
			if i, ok := csvColumns[p.field]; ok {
				p.field = columns[i[format]]
			}
		}
		if p.field != "" {
			return nil, &TraceError{name, line, p.field, p.reason}
		}
		records = append(records, record)
	}
}

// csvColumns are the columns of the fields of a Record.
var csvColumns = map[string]map[Format]int{
	"arrival_ms":     {AzureFormat: 0, VLLMFormat: 2},
	"input_tokens":   {AzureFormat: 1, VLLMFormat: 0},
	"output_tokens":  {AzureFormat: 2, VLLMFormat: 1},
	"first_token_ms": {VLLMFormat: 4},
	"last_token_ms":  {VLLMFormat: 5},
}

// fields reads the fields of a row and keeps the first thing that is wrong.
type fields struct {
	row, columns  []string
	field, reason string
}

func (p *fields) wrong(i int, what string) {
	if p.field == "" {
		p.field, p.reason = p.columns[i], fmt.Sprintf("%q is no %s", p.row[i], what)
	}
}

func (p *fields) int(i int) int {
	n, err := strconv.Atoi(p.row[i])
	if err != nil {
		p.wrong(i, "whole number")
	}
	return n
}

func (p *fields) float(i int) float64 {
	x, err := strconv.ParseFloat(p.row[i], 64)
	if err != nil {
		p.wrong(i, "number")
	}
	return x
}

func (p *fields) time(i int) time.Time {
	t, err := time.Parse(azureTime, p.row[i])
	if err != nil {
		p.wrong(i, "time")
	}
	return t
}

// WriteTrace writes records as JSON lines in [RecordFormat].
func WriteTrace(w io.Writer, records []Record) error {
	encoder := json.NewEncoder(w)
	for i := range records {
		if err := encoder.Encode(&records[i]); err != nil {
			return err
		}
	}
	return nil
}
