package sim

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// csvFormat is a format of comma-separated values.
type csvFormat struct {
	columns []string
	read    func(*fields) Record
}

var (
	azureTrace = csvFormat{
		columns: []string{"TIMESTAMP", "ContextTokens", "GeneratedTokens"},
		read: func(f *fields) Record {
			at := f.time(0)
			if f.start.IsZero() {
				f.start = at
			}
			return Record{ArrivalMillis: millis(at.Sub(f.start)), InputTokens: f.int(1), OutputTokens: f.int(2)}
		},
	}
	vllmTrace = csvFormat{
		columns: []string{"input_tokens", "output_tokens", "queued_s", "scheduled_s", "first_token_s", "last_token_s"},
		read: func(f *fields) Record {
			return Record{
				InputTokens: f.int(0), OutputTokens: f.int(1), ArrivalMillis: f.float(2) * 1000,
				FirstTokenMillis: f.float(4) * 1000, LastTokenMillis: f.float(5) * 1000,
			}
		},
	}
)

// azureTime is the format of times in the Azure traces: UTC, in units of 100 ns.
const azureTime = "2006-01-02 15:04:05.9999999"

func readCSV(name string, text []byte, format csvFormat) ([]Record, error) {
	reader := csv.NewReader(bytes.NewReader(text))
	reader.ReuseRecord = true
	reader.FieldsPerRecord = len(format.columns)
	var records []Record
	f := &fields{columns: format.columns}
	for header := true; ; header = false {
		row, err := reader.Read()
		if err == io.EOF {
			return records, nil
		}
		if err != nil {
			line := 0
			if parse, ok := err.(*csv.ParseError); ok {
				line, err = parse.Line, parse.Err
			}
			return nil, &TraceError{name, line, fmt.Errorf("is not a row: %w", err)}
		}
		line, _ := reader.FieldPos(0) // a row that was read has fields
		if header {
			for i, c := range format.columns {
				if strings.TrimSpace(row[i]) != c {
					return nil, &TraceError{name, line, fmt.Errorf("%s is missing, there is %q", c, row[i])}
				}
			}
			continue
		}
		f.row = row
		record := format.read(f)
		err = f.err
		if err == nil {
			err = record.check()
		}
		if err != nil {
			return nil, &TraceError{name, line, err}
		}
		records = append(records, record)
	}
}

// fields reads the fields of a row and keeps the first error.
type fields struct {
	row, columns []string
	start        time.Time // of the trace, where its times are absolute
	err          error
}

func (f *fields) wrong(i int, what string) {
	if f.err == nil {
		f.err = fmt.Errorf("%s %q is no %s", f.columns[i], f.row[i], what)
	}
}

func (f *fields) int(i int) int {
	n, err := strconv.Atoi(f.row[i])
	if err != nil {
		f.wrong(i, "whole number")
	}
	return n
}

func (f *fields) float(i int) float64 {
	x, err := strconv.ParseFloat(f.row[i], 64)
	if err != nil {
		f.wrong(i, "number")
	}
	return x
}

func (f *fields) time(i int) time.Time {
	t, err := time.Parse(azureTime, f.row[i])
	if err != nil {
		f.wrong(i, "time")
	}
	return t
}
