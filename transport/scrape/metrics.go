package scrape

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/endpick/endpick"
)

// series selects the series of a family with this value of a label, or all of
// them.
type series struct{ family, label, value string }

// For each signal, the first family that the engine has is used. Names are those of vLLM (the
// second KV usage is that of version 0.9 and before), SGLang, trtllm-serve, llama.cpp (new versions
// have no KV usage) and Triton's TensorRT-LLM backend. Colons in names are written as underscores
// here, because exporters in between change them so.
var (
	waiting = []series{
		{family: "vllm_num_requests_waiting"},
		{family: "sglang_num_queue_reqs"},
		{family: "trtllm_num_requests_waiting"},
		{family: "llamacpp_requests_deferred"},
		{"nv_trt_llm_request_metrics", "request_type", "waiting"},
	}
	running = []series{
		{family: "vllm_num_requests_running"},
		{family: "sglang_num_running_reqs"},
		{family: "trtllm_num_requests_running"},
		{family: "llamacpp_requests_processing"},
		{"nv_trt_llm_request_metrics", "request_type", "scheduled"},
	}
	kvUsage = []series{
		{family: "vllm_kv_cache_usage_perc"},
		{family: "vllm_gpu_cache_usage_perc"},
		{family: "sglang_token_usage"},
		{family: "trtllm_kv_cache_utilization"},
		{family: "llamacpp_kv_cache_usage_ratio"},
		{"nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "fraction"},
	}
)

// adapters is vLLM's list of adapters that are running, in a label. Its value is
// the time of the list; old lists remain among the series.
var adapters = series{family: "vllm_lora_requests_info", label: "running_lora_adapters"}

// rankLabels name the data-parallel rank: vLLM's engine, SGLang's dp_rank.
var rankLabels = []string{"engine", "dp_rank"}

// copyLabels distinguish processes that report the same requests.
var copyLabels = []string{"tp_rank", "pp_rank", "moe_ep_rank", "pid"}

// The errors of a metrics page, for errors.Is.
var (
	// ErrFormat: the page is not in the Prometheus text format.
	ErrFormat = errors.New("scrape: not in the Prometheus text format")
	// ErrNoSignal: the page has no metric of a known engine, or none for the
	// endpoint's data-parallel rank.
	ErrNoSignal = errors.New("scrape: no known metric")
	// ErrTooLong: the page is longer than Config.MaxBytes.
	ErrTooLong = errors.New("scrape: page too long")
)

// page is a parsed metrics page.
type page map[string]*dto.MetricFamily

// parse reads a page in the Prometheus text format or in OpenMetrics, whatever was asked for. A
// line that can't be read costs that line; a page without any that can is an error.
func parse(r io.Reader, most int64) (page, error) {
	text, err := io.ReadAll(io.LimitReader(r, most+1))
	switch {
	case int64(len(text)) > most:
		return nil, ErrTooLong
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	p := page{}
	var good bytes.Buffer
	foreign := false
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) == 0 || line[0] == '#' {
			continue
		}
		sample, ok := sampleOf(line)
		foreign = foreign || !ok
		good.Write(sample)
	}
	if p.read(good.Bytes()) != nil { // rare: labels that only the parser finds wrong
		clear(p)
		for line := range bytes.Lines(good.Bytes()) {
			foreign = p.read(line) != nil || foreign
		}
	}
	if foreign && len(p) == 0 {
		return nil, ErrFormat
	}
	return p, nil
}

// read adds samples without types.
func (p page) read(text []byte) error {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return err
	}
	for name, f := range families {
		name = strings.ReplaceAll(name, ":", "_")
		if had := p[name]; had != nil {
			f.Metric = append(had.Metric, f.Metric...)
		}
		p[name] = f
	}
	return nil
}

// sampleOf returns a line without its time and its exemplar, which the formats write in several
// ways, or nothing if it is a histogram's bucket; false if it is not a sample.
func sampleOf(line []byte) (sample []byte, ok bool) {
	end := bytes.IndexAny(line, "{ \t")
	if end <= 0 {
		return nil, false
	}
	name := line[:end]
	if line[end] == '{' {
		end += endOfLabels(line[end:])
	}
	value, _, _ := bytes.Cut(bytes.TrimLeft(line[end:], " \t"), []byte{' '})
	if _, err := strconv.ParseFloat(string(bytes.TrimSpace(value)), 64); err != nil {
		return nil, false
	}
	if bytes.HasSuffix(name, []byte("_bucket")) {
		return nil, true
	}
	return fmt.Appendf(nil, "%s %s\n", line[:end], value), true
}

// endOfLabels returns the index after the brace that ends the labels; 0 if there is none.
func endOfLabels(labels []byte) int {
	quoted := false
	for i := 0; i < len(labels); i++ {
		switch c := labels[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == '}' && !quoted:
			return i + 1
		}
	}
	return 0
}

// load reads the load of an endpoint: of its rank if it has one, otherwise of
// the whole server. Signals that are not on the page are absent.
func (p page) load(e *endpick.Endpoint, from *signals) (endpick.Load, error) {
	var l endpick.Load
	read := func(names []series, signal endpick.Signals, to *float64) int {
		for _, s := range names {
			if v, n := p.sum(s, e); n > 0 {
				*to = v
				return n
			}
		}
		l.Absent |= signal
		return 1
	}
	read(from.waiting, endpick.WaitingSignal, &l.Waiting)
	read(from.running, endpick.RunningSignal, &l.Running)
	n := read(from.kvUsage, endpick.KVUsageSignal, &l.KVUsage)
	l.KVUsage /= float64(n) // mean over the ranks
	l.Adapters = p.adapters()
	const all = endpick.WaitingSignal | endpick.RunningSignal | endpick.KVUsageSignal
	if l.Absent == all {
		return l, ErrNoSignal
	}
	return l, nil
}

// sum adds up the series that a selector finds for an endpoint: one for each
// rank and model, of copies the largest. It also returns their number.
func (p page) sum(s series, e *endpick.Endpoint) (float64, int) {
	f := p[s.family]
	if f == nil {
		return 0, 0
	}
	largest := map[string]float64{}
	for _, m := range f.Metric {
		labels := labelsOf(m)
		if s.label != "" && labels[s.label] != s.value {
			continue
		}
		// SGLang repeats its gauges for each priority, with the total under an empty
		// one.
		if labels["priority"] != "" || (e.Ranked && !ofRank(labels, e.Rank)) {
			continue
		}
		v := m.GetUntyped().GetValue()
		key := groupOf(m)
		if old, seen := largest[key]; seen {
			v = max(old, v) // NaN if either is
		}
		largest[key] = v
	}
	total := 0.0
	for _, v := range largest {
		total += v
	}
	return total, len(largest)
}

func labelsOf(m *dto.Metric) map[string]string {
	labels := make(map[string]string, len(m.Label))
	for _, l := range m.Label {
		labels[l.GetName()] = l.GetValue()
	}
	return labels
}

// ofRank reports whether series belong to a rank. A server with one rank does
// not name it.
func ofRank(labels map[string]string, rank int) bool {
	for _, name := range rankLabels {
		if v, ok := labels[name]; ok {
			return v == strconv.Itoa(rank)
		}
	}
	return rank == 0
}

// groupOf identifies the copies of one series.
func groupOf(m *dto.Metric) string {
	var b strings.Builder
labels:
	for _, l := range m.Label { // sorted by the parser
		for _, name := range copyLabels {
			if l.GetName() == name {
				continue labels
			}
		}
		b.WriteString(strconv.Quote(l.GetName()))
		b.WriteString(strconv.Quote(l.GetValue()))
	}
	return b.String()
}

// adapters returns the newest list of loaded adapters; nil if the engine has none.
func (p page) adapters() []string {
	f := p[adapters.family]
	if f == nil {
		return nil
	}
	newest, at := "", -1.0
	for _, m := range f.Metric {
		if v := m.GetUntyped().GetValue(); v > at {
			newest, at = labelsOf(m)[adapters.label], v
		}
	}
	loaded := []string{}
	for name := range strings.SplitSeq(newest, ",") {
		if name = strings.TrimSpace(name); name != "" {
			loaded = append(loaded, name)
		}
	}
	return loaded
}
