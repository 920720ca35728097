package scrape

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

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

// page has the samples of a metrics page, by their names.
type page map[string][]sample

type sample struct {
	labels []label // sorted
	value  float64
}

type label struct{ name, value string }

// label returns the value of a label; false if there is none.
func (s *sample) label(name string) (value string, ok bool) {
	for i := range s.labels {
		if s.labels[i].name == name {
			return s.labels[i].value, true
		}
	}
	return "", false
}

// parse reads a page in the Prometheus text format or in OpenMetrics, whatever was asked for, in time
// linear in its length, whatever it says. A line that can't be read costs that line; a page without any
// that can is an error.
func parse(text string) (page, error) {
	p := page{}
	unread := false
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			unread = !p.add(line) || unread
		}
	}
	if unread && len(p) == 0 {
		return nil, ErrFormat
	}
	return p, nil
}

// add adds the sample of a line, unless it is a histogram's bucket; false if it is none. What follows
// the value is a time and an exemplar, which the formats write in several ways.
func (p page) add(line string) bool {
	name := nameOf(line)
	rest := line[len(name):]
	if name == "" || rest == "" || !utf8.ValidString(line) {
		return false
	}
	var s sample
	if rest[0] == '{' {
		var ok bool
		if s.labels, rest, ok = labelsOf(rest[1:]); !ok {
			return false
		}
	} else if rest[0] != ' ' && rest[0] != '\t' {
		return false
	}
	rest = strings.TrimLeft(rest, blank)
	if end := strings.IndexAny(rest, blank); end >= 0 {
		rest = rest[:end]
	}
	var err error
	if s.value, err = strconv.ParseFloat(rest, 64); err != nil {
		return false
	}
	if name = strings.ReplaceAll(name, ":", "_"); !strings.HasSuffix(name, "_bucket") {
		p[name] = append(p[name], s)
	}
	return true
}

const blank = " \t"

// nameOf returns the name with which a text begins, or nothing.
func nameOf(text string) string {
	for i, c := range []byte(text) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', c == '_', c == ':', i > 0 && ('0' <= c && c <= '9' || c == '.'):
		default:
			return text[:i]
		}
	}
	return text
}

// labelsOf reads labels, and returns what follows the brace that ends them; false if they are not well
// formed.
func labelsOf(text string) (labels []label, rest string, ok bool) {
	for {
		text = strings.TrimLeft(text, blank)
		if rest, ok = strings.CutPrefix(text, "}"); ok {
			break
		}
		l := label{name: nameOf(text)}
		text = strings.TrimLeft(text[len(l.name):], blank)
		if text, ok = strings.CutPrefix(text, "="); !ok || l.name == "" {
			return nil, "", false
		}
		if l.value, text, ok = quoted(strings.TrimLeft(text, blank)); !ok {
			return nil, "", false
		}
		labels = append(labels, l)
		text = strings.TrimLeft(text, blank)
		if text, ok = strings.CutPrefix(text, ","); !ok && !strings.HasPrefix(text, "}") {
			return nil, "", false
		}
	}
	slices.SortFunc(labels, func(a, b label) int { return strings.Compare(a.name, b.name) })
	n := len(labels)
	return labels, rest, len(slices.CompactFunc(labels, func(a, b label) bool { return a.name == b.name })) == n
}

var escapes = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n")

// quoted reads a text in quotes, and returns what follows it.
func quoted(text string) (value, rest string, ok bool) {
	for i := 1; i < len(text) && text[0] == '"'; i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return escapes.Replace(text[1:i]), text[i+1:], true
		}
	}
	return "", "", false
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
	l.Asleep = slices.ContainsFunc(p["vllm_engine_sleep_state"], func(s sample) bool {
		state, _ := s.label("sleep_state")
		return s.value == 1 && state != "awake" && (!e.Ranked || s.ofRank(e.Rank))
	})
	const all = endpick.WaitingSignal | endpick.RunningSignal | endpick.KVUsageSignal
	if l.Absent == all {
		return l, ErrNoSignal
	}
	return l, nil
}

// sum adds up the series that a selector finds for an endpoint: one for each
// rank and model, of copies the largest. It also returns their number.
func (p page) sum(s series, e *endpick.Endpoint) (float64, int) {
	largest := map[string]float64{}
	for i := range p[s.family] {
		m := &p[s.family][i]
		if value, _ := m.label(s.label); s.label != "" && value != s.value {
			continue
		}
		// SGLang repeats its gauges for each priority, with the total under an empty
		// one.
		if priority, _ := m.label("priority"); priority != "" || e.Ranked && !m.ofRank(e.Rank) {
			continue
		}
		v, key := m.value, m.group()
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

// ofRank reports whether series belong to a rank. A server with one rank does
// not name it.
func (s *sample) ofRank(rank int) bool {
	for _, name := range rankLabels {
		if v, ok := s.label(name); ok {
			return v == strconv.Itoa(rank)
		}
	}
	return rank == 0
}

// group identifies the copies of one series.
func (s *sample) group() string {
	var b strings.Builder
	for _, l := range s.labels {
		if !slices.Contains(copyLabels, l.name) {
			b.WriteString(strconv.Quote(l.name))
			b.WriteString(strconv.Quote(l.value))
		}
	}
	return b.String()
}

// adapters returns the newest list of loaded adapters; nil if the engine has none.
func (p page) adapters() []string {
	lists := p[adapters.family]
	if lists == nil {
		return nil
	}
	newest := slices.MaxFunc(lists, func(a, b sample) int { return cmp.Compare(a.value, b.value) })
	names, _ := newest.label(adapters.label)
	loaded := []string{}
	for name := range strings.SplitSeq(names, ",") {
		if name = strings.TrimSpace(name); name != "" && len(loaded) < maxNames {
			loaded = append(loaded, strings.Clone(name)) // not the whole page
		}
	}
	return loaded
}
