package main

import (
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/transport"
)

// settings are the settings of a gateway that serves, from its file or its
// flags; docs/gateway.md explains them. Paths in the file are relative to its
// directory.
type settings struct {
	Listen string       `yaml:"listen"`
	Admin  string       `yaml:"admin"`
	TLS    *tlsSettings `yaml:"tls"`
	H2C    bool         `yaml:"h2c"`

	Endpoints []endpointSettings `yaml:"endpoints"`
	Discover  *discoverSettings  `yaml:"discover"`
	EngineKey secret             `yaml:"engine_key"`
	Poll      time.Duration      `yaml:"poll"`

	Policy string                   `yaml:"policy"`
	Models map[string]modelSettings `yaml:"models"`
	Names  map[string]nameSettings  `yaml:"names"`

	Tenants      map[string]tenantSettings `yaml:"tenants"`
	Open         bool                      `yaml:"open"`    // nobody needs a key
	Origins      []string                  `yaml:"origins"` // of pages that may call from a browser
	TrustHeaders bool                      `yaml:"trust_headers"`
	SharedCache  bool                      `yaml:"shared_cache"`
	ServerHeader bool                      `yaml:"endpoint_header"`
	NoResume     bool                      `yaml:"disable_resume"`
	Pass         []string                  `yaml:"pass"`

	HashKey  secret           `yaml:"hash_key"`
	Seed     uint64           `yaml:"seed"`
	Replicas *replicaSettings `yaml:"replicas"`

	Queue    *queueSettings  `yaml:"queue"`
	Limits   limitSettings   `yaml:"limits"`
	Timeouts timeoutSettings `yaml:"timeouts"`
	Record   *recordSettings `yaml:"record"`
	Price    priceSettings   `yaml:"price"`
	Log      logSettings     `yaml:"log"`

	document *document // lines of the fields; nil: from flags
	hashKey  prefix.Key
	stamps   []stamp // of the files of tls, before they were read
}

type tlsSettings struct {
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
}

type endpointSettings struct {
	URL       string            `yaml:"url"`
	ID        string            `yaml:"id"`
	Models    []string          `yaml:"models"`
	Adapters  []string          `yaml:"adapters"`
	Variant   string            `yaml:"variant"`
	Engine    string            `yaml:"engine"`
	KVTokens  int               `yaml:"kv_tokens"`
	Sequences int               `yaml:"max_sequences"`
	InFlight  int               `yaml:"max_in_flight"`
	Context   int               `yaml:"max_context"`
	Tier      int               `yaml:"tier"`
	Weight    float64           `yaml:"weight"`
	Wake      wakeSettings      `yaml:"wake"`
	Rank      *int              `yaml:"rank"`
	Labels    map[string]string `yaml:"labels"`
	Events    string            `yaml:"events"`
	Replay    string            `yaml:"replay"`
	Drain     bool              `yaml:"drain"`
	Unasked   bool              `yaml:"unasked"`
}

// discoverSettings say where the list of endpoints comes from: one of File, DNS and SRV.
type discoverSettings struct {
	File     string           `yaml:"file"`
	DNS      string           `yaml:"dns"`
	Port     int              `yaml:"port"`
	Network  string           `yaml:"network"`
	SRV      string           `yaml:"srv"`
	Scheme   string           `yaml:"scheme"`
	Interval time.Duration    `yaml:"interval"`
	Endpoint endpointSettings `yaml:"endpoint"` // common to all
}

type modelSettings struct {
	Policy string          `yaml:"policy"`
	Tokens *tokensSettings `yaml:"tokens"`
}

type tenantSettings struct {
	Keys     []secret      `yaml:"keys"`
	Priority signed        `yaml:"priority"`
	SLO      sloSettings   `yaml:"slo"`
	Quota    quotaSettings `yaml:"quota"`
}

type quotaSettings struct {
	Rate     float64 `yaml:"tokens_per_second"`
	Burst    float64 `yaml:"burst"`
	Requests int     `yaml:"requests"`
}

type priceSettings struct {
	Prompt float64 `yaml:"prompt"`
	Cached float64 `yaml:"cached"`
}

type sloSettings struct {
	TTFT time.Duration `yaml:"ttft"`
	TPOT time.Duration `yaml:"tpot"`
}

type queueSettings struct {
	Requests int           `yaml:"requests"`
	Tokens   int           `yaml:"tokens"`
	Bytes    byteSize      `yaml:"bytes"`
	Timeout  time.Duration `yaml:"timeout"`
}

type limitSettings struct {
	Body        byteSize `yaml:"body"`
	Header      byteSize `yaml:"header"`
	Items       int      `yaml:"items"`
	Connections int      `yaml:"connections"`
	Attempts    int      `yaml:"attempts"`
}

type timeoutSettings struct {
	Header    time.Duration `yaml:"header"`
	Body      time.Duration `yaml:"body"`
	Idle      time.Duration `yaml:"idle"`
	FirstByte time.Duration `yaml:"first_byte"`
	Stall     time.Duration `yaml:"stall"`
	Response  time.Duration `yaml:"response"`
	Upgrade   time.Duration `yaml:"upgrade"`
	KeepAlive time.Duration `yaml:"keep_alive"`
	Unread    time.Duration `yaml:"unread"`
	Drain     time.Duration `yaml:"drain"`
	Grace     time.Duration `yaml:"grace"`
}

type recordSettings struct {
	File  string   `yaml:"file"`
	Bytes byteSize `yaml:"max_bytes"`
	Files int      `yaml:"files"`
	Text  bool     `yaml:"text"`
}

type logSettings struct {
	Format   string `yaml:"format"`
	Level    string `yaml:"level"`
	Requests string `yaml:"requests"`
}

// defaultSettings are the defaults of the file.
func defaultSettings() *settings {
	return &settings{
		Listen: "127.0.0.1:8080", Admin: "127.0.0.1:0", Policy: "marginal-delay", Poll: 200 * time.Millisecond,
		Limits:   limitSettings{Header: 64 << 10, Connections: 4096},
		Timeouts: timeoutSettings{Header: 10 * time.Second, Body: time.Minute, Idle: 2 * time.Minute, Unread: 5 * time.Minute, Grace: 30 * time.Second},
		Price:    priceSettings{Cached: 0.25},
		Log:      logSettings{Format: "text", Level: "info", Requests: "failed"},
	}
}

// The defaults of optional parts.
const (
	defaultRecordBytes = 256 << 20
	defaultRecordFiles = 4
)

// readSettings reads a file. Errors name the file, the line and the field.
func readSettings(path string) (*settings, []byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	s, err := parseSettings(path, text)
	return s, text, err
}

// parseSettings returns settings with an error, too: they say in which files the mistake may be.
func parseSettings(path string, text []byte) (*settings, error) {
	s := defaultSettings()
	var err error
	s.document, err = readStrict(path, text, s)
	here := filepath.Dir(path)
	for _, p := range s.paths() {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(here, *p)
		}
	}
	s.stamps = s.stampsNow()
	if err == nil {
		err = s.validate()
	}
	return s, err
}

// paths are the file names in the settings.
func (s *settings) paths() (all []*string) {
	if s.Discover != nil {
		all = append(all, &s.Discover.File)
	}
	if s.TLS != nil {
		all = append(all, &s.TLS.Cert, &s.TLS.Key)
	}
	if s.Record != nil {
		all = append(all, &s.Record.File)
	}
	if r := s.Replicas; r != nil {
		all = append(all, &r.Credentials, &r.CA, &r.Cert, &r.Key)
	}
	return all
}

func (e *endpointSettings) endpoint() endpick.Endpoint {
	own := endpick.Endpoint{
		ID: e.ID, Address: e.URL, Models: e.Models, Adapters: e.Adapters, Variant: e.Variant, Engine: e.Engine,
		KVTokens: e.KVTokens, MaxSequences: e.Sequences, Labels: e.Labels,
		MaxInFlight: e.InFlight, MaxContext: e.Context, Tier: e.Tier, Weight: e.Weight, WakeTime: e.Wake.Takes,
	}
	if e.Rank != nil {
		own.Ranked, own.Rank = true, *e.Rank
	}
	return own
}

// endpoints are those listed in the settings.
func (s *settings) endpoints() (all []endpick.Endpoint) {
	for _, e := range s.Endpoints {
		all = append(all, e.endpoint())
	}
	return all
}

// warnings describes settings that are valid, but probably mistakes.
func (s *settings) warnings() (all []string) {
	if s.TLS != nil {
		if pair, err := tls.LoadX509KeyPair(s.TLS.Cert, s.TLS.Key); err == nil && time.Now().After(pair.Leaf.NotAfter) {
			all = append(all, "tls.cert: expired on "+pair.Leaf.NotAfter.Format(time.DateTime))
		}
	}
	if host, _, _ := net.SplitHostPort(s.Admin); everywhere(host) {
		all = append(all, "admin: is open to every network of this machine, and its pages tell who asks for what")
	}
	if host, _, _ := net.SplitHostPort(s.Listen); everywhere(host) && s.document != nil && s.Tenants == nil && !s.Open && !s.TrustHeaders {
		all = append(all, "listen: is open to every network of this machine, and nobody needs a key; say open: true if that is meant")
	}
	if strings.HasPrefix(string(s.EngineKey), "Bearer ") {
		all = append(all, "engine_key: begins with Bearer, which servers would get twice: leave it out")
	}
	for _, f := range s.least() {
		if s.document != nil && s.document.lines[f.field] > 0 && f.given < f.least {
			all = append(all, f.field+": is hardly enough; to have the default, leave it out")
		}
	}
	first := map[string]int{}
	for i := range s.Endpoints {
		own := s.Endpoints[i].endpoint()
		if to, err := transport.Target(&own, &url.URL{}); err == nil && strings.Contains(to.Path+"/", "/v1/") {
			all = append(all, fmt.Sprintf("endpoints[%d].url: has /v1, with which the paths of requests begin: leave it out", i))
		}
		if !slices.Contains([]string{"", "vllm", "sglang", "llama.cpp", "ollama"}, own.Engine) {
			all = append(all, fmt.Sprintf("endpoints[%d].engine: is none of vllm, sglang, llama.cpp and ollama, so streams that break off there end", i))
		}
		if w := s.Endpoints[i].Wake; w.given() {
			if _, err := exec.LookPath(w.Run[0]); err != nil {
				all = append(all, fmt.Sprintf("endpoints[%d].wake.run: %v", i, err))
			}
		}
		at := fmt.Sprint(strings.Replace(strings.ToLower(strings.TrimSuffix(own.Address, "/")), "://localhost", "://127.0.0.1", 1), own.Ranked, own.Rank)
		if other, twice := first[at]; twice {
			all = append(all, fmt.Sprintf("endpoints[%d]: is the same server as endpoints[%d]", i, other))
		} else {
			first[at] = i
		}
	}
	return all
}

// leastSetting is a field with less than which hardly anything is served: one that has another unit,
// or is meant to be no limit.
type leastSetting struct {
	field        string
	given, least int64
}

func (s *settings) least() []leastSetting {
	t, second := &s.Timeouts, int64(time.Second)
	all := []leastSetting{
		{"timeouts.first_byte", int64(t.FirstByte), second}, {"timeouts.stall", int64(t.Stall), second},
		{"timeouts.response", int64(t.Response), second}, {"timeouts.upgrade", int64(t.Upgrade), second},
		{"limits.body", int64(s.Limits.Body), 1 << 10}, {"limits.header", int64(s.Limits.Header), 1 << 10},
		{"limits.items", int64(s.Limits.Items), 16}, {"limits.attempts", int64(s.Limits.Attempts), 1},
	}
	if q := s.Queue; q != nil {
		all = append(all, leastSetting{"queue.requests", int64(q.Requests), 1}, leastSetting{"queue.bytes", int64(q.Bytes), 1 << 10},
			leastSetting{"queue.timeout", int64(q.Timeout), 1})
	}
	if r := s.Record; r != nil {
		all = append(all, leastSetting{"record.max_bytes", int64(r.Bytes), 1 << 10}, leastSetting{"record.files", int64(r.Files), 1})
	}
	for i, e := range s.Endpoints {
		at := fmt.Sprintf("endpoints[%d].", i)
		all = append(all, leastSetting{at + "max_context", int64(e.Context), 256}, leastSetting{at + "kv_tokens", int64(e.KVTokens), 256})
	}
	return all
}

// unserved warns of models that none of the endpoints serves, as far as is known.
func (s *settings) unserved(endpoints []endpick.Endpoint) (all []string) {
	if len(endpoints) == 0 {
		return nil
	}
	served := map[string]bool{}
	for _, e := range endpoints {
		if len(e.Models)+len(e.Adapters) == 0 {
			return nil // it serves any model, or has not said which
		}
		for _, name := range slices.Concat(e.Models, e.Adapters) {
			served[name] = true
		}
	}
	for _, model := range slices.Sorted(maps.Keys(s.Models)) {
		if !served[model] {
			all = append(all, fmt.Sprintf("models.%s: no endpoint serves this model", model))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Names)) {
		for _, model := range s.Names[name].Models {
			if !served[model] {
				all = append(all, fmt.Sprintf("names.%s: no endpoint serves the model %s", name, model))
			}
		}
	}
	return all
}

// summary describes the settings in one line.
func (s *settings) summary() string {
	servers := count(len(s.Endpoints), "endpoint")
	if s.Discover != nil {
		servers = "endpoints to be discovered"
	}
	return fmt.Sprintf("%s, policy %s, %s with settings, %s", servers, s.Policy, count(len(s.Models), "model"), count(len(s.Tenants), "tenant"))
}

// hold is the gateway queue; nil: none.
func (s *settings) hold() *transport.QueueConfig {
	q := s.Queue
	if q == nil {
		return nil
	}
	return &transport.QueueConfig{Bounds: queue.Config{
		MaxRequests: q.Requests, MaxTokens: int64(q.Tokens), MaxBytes: int64(q.Bytes), Timeout: q.Timeout,
	}}
}
