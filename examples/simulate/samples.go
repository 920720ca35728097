package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/endpick/endpick/predict"
)

// sample is a row of the file: a finished request.
type sample struct {
	predict.Sample
	regime string
	share  float64 // of the prompt that was cached
}

// The columns by name. Optional ones may be missing from the file; an empty cell is an absent
// value.
var sampleColumns = []struct {
	name     string
	optional bool
	set      func(s *sample, v float64)
}{
	{"t_s", false, func(s *sample, v float64) { s.At = time.Unix(0, int64(v*1e9)) }},
	{"kv_usage_pct", false, func(s *sample, v float64) { s.Candidate.KVUsage = v / 100 }},
	{"input_tokens", false, func(s *sample, v float64) { s.Request.InputTokens = tokens(v) }},
	{"queue_depth", false, func(s *sample, v float64) { s.Candidate.Waiting = v }},
	{"running_requests", false, func(s *sample, v float64) { s.Candidate.Running = v }},
	{"prefix_match_pct", false, func(s *sample, v float64) { s.share = v / 100 }},
	{"inflight_prefill_tokens", false, func(s *sample, v float64) { s.Candidate.InFlight.PrefillTokens = tokens(v) }},
	{"prefill_tokens_per_s", true, func(s *sample, v float64) { s.PrefillRate = v }},
	{"expected_output_tokens", true, func(s *sample, v float64) { s.Request.ExpectedOutputTokens = tokens(v) }},
	{"ttft_ms", false, func(s *sample, v float64) { s.TTFT = v }},
	{"tpot_ms", false, func(s *sample, v float64) { s.TPOT = v }},
}

// tokens is v as a number of tokens, 0 if it is none.
func tokens(v float64) int {
	if !(v >= 0 && v <= 1<<40) {
		return 0
	}
	return int(math.Round(v))
}

// shipped are 4,500 synthetic requests to eight servers, in the middle of which the traffic changes
// from chats to long prompts. Labels are those of a formula for an engine, with lognormal noise of
// 4.5 % and 3 %.
//
//go:embed samples.csv.gz
var shipped []byte

// readSamples reads a CSV file, gzipped or not, or without a path what is shipped. Errors name the
// file, line and column.
func readSamples(path string) ([]sample, error) {
	var file io.Reader = bytes.NewReader(shipped)
	if path != "" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		file = f
	}
	var r io.Reader = bufio.NewReaderSize(file, 1<<16)
	if magic, _ := r.(*bufio.Reader).Peek(2); len(magic) == 2 && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		defer z.Close()
		r = z
	}
	samples, err := parseSamples(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return samples, nil
}

func parseSamples(r io.Reader) ([]sample, error) {
	c := csv.NewReader(r)
	c.ReuseRecord = true
	header, err := c.Read()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("line 1: no header")
	} else if err != nil {
		return nil, err
	}
	place := map[string]int{}
	for i, name := range header {
		place[name] = i
	}
	for _, col := range sampleColumns {
		if _, ok := place[col.name]; !ok && !col.optional {
			return nil, fmt.Errorf("line 1: no column %q", col.name)
		}
	}
	regime, hasRegime := place["regime"]
	var samples []sample
	for {
		record, err := c.Read()
		if errors.Is(err, io.EOF) {
			return samples, nil
		}
		if err != nil {
			return nil, err
		}
		nan := math.NaN()
		s := sample{Sample: predict.Sample{PrefillRate: nan}}
		for _, col := range sampleColumns {
			i, ok := place[col.name]
			if !ok {
				continue
			}
			v := nan
			if cell := record[i]; cell != "" {
				if v, err = strconv.ParseFloat(cell, 64); err != nil {
					line, _ := c.FieldPos(i)
					return nil, fmt.Errorf("line %d: column %q: %q is not a number", line, col.name, cell)
				}
			}
			if col.name == "t_s" && !(math.Abs(v) < 9e9) {
				line, _ := c.FieldPos(i)
				return nil, fmt.Errorf("line %d: column %q: %q is not a time in seconds", line, col.name, record[i])
			}
			col.set(&s, v)
		}
		if hasRegime {
			s.regime = string([]byte(record[regime]))
		}
		s.Candidate.PrefixTokens = tokens(s.share * float64(s.Request.InputTokens))
		samples = append(samples, s)
	}
}
