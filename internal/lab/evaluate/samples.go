package evaluate

import (
	"bufio"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/endpick/endpick/internal/learn"
)

// Sample is a completed request. Latencies are in milliseconds, NaN if there is none.
type Sample struct {
	at         time.Time
	regime     string
	row        [learn.FeatureCount]float64
	ttft, tpot float64
	output     float64
}

// labelledAt is when the latencies become known: at the first token, and at the end of the
// response.
func (s *Sample) labelledAt() (ttft, tpot time.Time) {
	ms := func(v float64) time.Duration {
		if math.IsNaN(v) || v < 0 {
			return 0
		}
		return time.Duration(min(v, 1e12) * float64(time.Millisecond))
	}
	ttft = s.at.Add(ms(s.ttft))
	tokens := 1.0
	if s.output > 1 {
		tokens = s.output - 1
	}
	return ttft, ttft.Add(ms(s.tpot * tokens))
}

// The columns by name. Optional ones may be missing from the file; an empty cell is an absent
// value.
var columns = []struct {
	name     string
	optional bool
	set      func(s *Sample, f *learn.Features, v float64)
}{
	{"t_s", false, func(s *Sample, _ *learn.Features, v float64) { s.at = time.Unix(0, int64(v*1e9)) }},
	{"kv_usage_pct", false, func(_ *Sample, f *learn.Features, v float64) { f.KVUsage = v / 100 }},
	{"input_tokens", false, func(_ *Sample, f *learn.Features, v float64) { f.InputTokens = v }},
	{"queue_depth", false, func(_ *Sample, f *learn.Features, v float64) { f.Waiting = v }},
	{"running_requests", false, func(_ *Sample, f *learn.Features, v float64) { f.Running = v }},
	{"prefix_match_pct", false, func(_ *Sample, f *learn.Features, v float64) { f.PrefixShare = v / 100 }},
	{"inflight_prefill_tokens", false, func(_ *Sample, f *learn.Features, v float64) { f.PrefillTokens = v }},
	{"prefill_tokens_per_s", true, func(_ *Sample, f *learn.Features, v float64) { f.PrefillRate = v }},
	{"expected_output_tokens", true, func(s *Sample, f *learn.Features, v float64) {
		s.output, f.ExpectedOutputTokens = v, v
	}},
	{"ttft_ms", false, func(s *Sample, _ *learn.Features, v float64) { s.ttft = v }},
	{"tpot_ms", false, func(s *Sample, _ *learn.Features, v float64) { s.tpot = v }},
}

// Read reads a CSV file, gzipped or not. Errors name the file, line and column.
func Read(path string) ([]Sample, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var r io.Reader = bufio.NewReaderSize(f, 1<<16)
	if magic, _ := r.(*bufio.Reader).Peek(2); len(magic) == 2 && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		defer z.Close()
		r = z
	}
	samples, err := parse(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return samples, nil
}

func parse(r io.Reader) ([]Sample, error) {
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
	for _, col := range columns {
		if _, ok := place[col.name]; !ok && !col.optional {
			return nil, fmt.Errorf("line 1: no column %q", col.name)
		}
	}
	regime, hasRegime := place["regime"]
	var samples []Sample
	for {
		record, err := c.Read()
		if errors.Is(err, io.EOF) {
			return samples, nil
		}
		if err != nil {
			return nil, err
		}
		s := Sample{output: math.NaN()}
		nan := math.NaN()
		f := learn.Features{ResidentTokens: nan, PrefillRate: nan, ExpectedOutputTokens: nan, Variant: nan}
		for _, col := range columns {
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
			col.set(&s, &f, v)
		}
		if hasRegime {
			s.regime = string([]byte(record[regime]))
		}
		f.Row(s.row[:])
		samples = append(samples, s)
	}
}
