package main

import (
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/slo"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/transport"
)

// settings are what a gateway that serves is told, by its file or by its flags;
// docs/gateway.md explains them. Paths in the file count from where it is.
type settings struct {
	Listen string       `yaml:"listen"`
	Admin  string       `yaml:"admin"`
	TLS    *tlsSettings `yaml:"tls"`
	H2C    bool         `yaml:"h2c"`

	Endpoints []endpointSettings `yaml:"endpoints"`
	Discover  *discoverSettings  `yaml:"discover"`
	EngineKey string             `yaml:"engine_key"`

	Policy string                   `yaml:"policy"`
	Models map[string]modelSettings `yaml:"models"`

	Tenants      map[string]tenantSettings `yaml:"tenants"`
	TrustHeaders bool                      `yaml:"trust_headers"`
	SharedCache  bool                      `yaml:"shared_cache"`

	DenyUnknown         bool `yaml:"deny_unknown"`
	AllowAdministration bool `yaml:"allow_administration"`

	HashKey  string           `yaml:"hash_key"`
	Seed     uint64           `yaml:"seed"`
	Replicas *replicaSettings `yaml:"replicas"`

	Queue    *queueSettings  `yaml:"queue"`
	Limits   limitSettings   `yaml:"limits"`
	Timeouts timeoutSettings `yaml:"timeouts"`
	Record   *recordSettings `yaml:"record"`
	Price    priceSettings   `yaml:"price"`
	Log      logSettings     `yaml:"log"`

	document *document // where the fields stand; nil: they come from flags
	hashKey  prefix.Key
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
	KVTokens  int               `yaml:"kv_tokens"`
	Sequences int               `yaml:"max_sequences"`
	Rank      *int              `yaml:"rank"`
	Labels    map[string]string `yaml:"labels"`
	Events    string            `yaml:"events"`
	Replay    string            `yaml:"replay"`
	Drain     bool              `yaml:"drain"`
}

// discoverSettings say where a list of endpoints is kept; one of File, DNS and SRV.
type discoverSettings struct {
	File     string           `yaml:"file"`
	DNS      string           `yaml:"dns"`
	Port     int              `yaml:"port"`
	Network  string           `yaml:"network"`
	SRV      string           `yaml:"srv"`
	Scheme   string           `yaml:"scheme"`
	Interval time.Duration    `yaml:"interval"`
	Endpoint endpointSettings `yaml:"endpoint"` // what all have in common
}

type modelSettings struct {
	Policy string          `yaml:"policy"`
	Tokens *tokensSettings `yaml:"tokens"`
}

type tenantSettings struct {
	Keys  []string      `yaml:"keys"`
	SLO   sloSettings   `yaml:"slo"`
	Quota quotaSettings `yaml:"quota"`
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

// defaultSettings are those that a file need not say.
func defaultSettings() *settings {
	return &settings{
		Listen: "127.0.0.1:8080", Admin: "127.0.0.1:0", Policy: "marginal-delay",
		Limits:   limitSettings{Header: 64 << 10, Connections: 4096},
		Timeouts: timeoutSettings{Header: 10 * time.Second, Body: time.Minute, Idle: 2 * time.Minute, Grace: 30 * time.Second},
		Price:    priceSettings{Cached: 0.25},
		Log:      logSettings{Format: "text", Level: "info", Requests: "failed"},
	}
}

// Defaults of parts that need not be there.
const (
	defaultRecordBytes = 256 << 20
	defaultRecordFiles = 4
)

// readSettings reads a file. The error names the file, the line and the field.
func readSettings(path string) (*settings, []byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	s, err := parseSettings(path, text)
	return s, text, err
}

func parseSettings(path string, text []byte) (*settings, error) {
	s := defaultSettings()
	var err error
	if s.document, err = readStrict(path, text, s); err != nil {
		return nil, err
	}
	here := filepath.Dir(path)
	for _, p := range s.paths() {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(here, *p)
		}
	}
	if err := s.validate(); err != nil {
		return nil, err
	}
	return s, nil
}

// paths are the names of files in the settings.
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
	for _, m := range s.Models {
		if m.Tokens != nil {
			all = append(all, &m.Tokens.Files)
		}
	}
	return all
}

// bad is an error in a field.
func (s *settings) bad(field, format string, args ...any) error {
	return s.document.at(field, format, args...)
}

// validate checks what the kinds of the fields don't say, and resolves secrets.
func (s *settings) validate() error {
	for _, check := range []func() error{
		s.validateListeners, s.validateEndpoints, s.validatePolicies, s.validateTenants, s.validateEvents, s.validateNumbers, s.validateRest, s.validateReplicas,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (s *settings) validateListeners() error {
	if s.Listen == "" {
		return s.bad("listen", "is empty")
	}
	if s.Admin == "" {
		return s.bad("admin", "is empty")
	}
	if s.TLS == nil {
		return nil
	}
	switch {
	case s.TLS.Cert == "":
		return s.bad("tls.cert", "is missing")
	case s.TLS.Key == "":
		return s.bad("tls.key", "is missing")
	case s.H2C:
		return s.bad("h2c", "is HTTP/2 in the clear, and there is TLS")
	}
	if _, err := tls.LoadX509KeyPair(s.TLS.Cert, s.TLS.Key); err != nil {
		return s.bad("tls", "%v", err)
	}
	return nil
}

func (s *settings) validateEndpoints() error {
	if s.Discover != nil {
		return s.validateDiscover()
	}
	if len(s.Endpoints) == 0 {
		return s.bad("endpoints", "names no server: list one or more, or say with discover where to find them")
	}
	for i, e := range s.Endpoints {
		at := fmt.Sprintf("endpoints[%d]", i)
		if e.URL == "" {
			return s.bad(at+".url", "is missing")
		}
		if err := checkBackend(e.URL); err != nil {
			return s.bad(at+".url", "%v", err)
		}
		if e.KVTokens < 0 {
			return s.bad(at+".kv_tokens", "%d is negative", e.KVTokens)
		}
		if e.Sequences < 0 {
			return s.bad(at+".max_sequences", "%d is negative", e.Sequences)
		}
	}
	// A router knows what else can't be, such as the same one twice.
	for i := range s.Endpoints {
		if _, err := endpick.New(endpick.Config{Endpoints: s.endpoints()[:i+1]}); err != nil {
			return s.bad(fmt.Sprintf("endpoints[%d]", i), "%v", err)
		}
	}
	return nil
}

func (e *endpointSettings) endpoint() endpick.Endpoint {
	own := endpick.Endpoint{
		ID: e.ID, Address: e.URL, Models: e.Models, Adapters: e.Adapters, Variant: e.Variant,
		KVTokens: e.KVTokens, MaxSequences: e.Sequences, Labels: e.Labels,
	}
	if e.Rank != nil {
		own.Ranked, own.Rank = true, *e.Rank
	}
	return own
}

// endpoints are those that the settings list.
func (s *settings) endpoints() (all []endpick.Endpoint) {
	for _, e := range s.Endpoints {
		all = append(all, e.endpoint())
	}
	return all
}

// warnings are sentences about what is valid and can hardly be meant.
func (s *settings) warnings() (all []string) {
	if s.Discover != nil {
		return nil // what the servers serve is not known yet
	}
	served := map[string]bool{}
	for _, e := range s.Endpoints {
		if len(e.Models)+len(e.Adapters) == 0 {
			return nil // it is taken to serve any
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
	return all
}

// summary says in a line what there is.
func (s *settings) summary() string {
	servers := count(len(s.Endpoints), "endpoint")
	if s.Discover != nil {
		servers = "endpoints to be discovered"
	}
	return fmt.Sprintf("%s, policy %s, %s with settings, %s", servers, s.Policy, count(len(s.Models), "model"), count(len(s.Tenants), "tenant"))
}

func (s *settings) validatePolicies() error {
	if _, err := preset.ByName(s.Policy); err != nil {
		return s.bad("policy", "%v", err)
	}
	for _, model := range slices.Sorted(maps.Keys(s.Models)) {
		at := "models." + model + ".policy"
		if s.Models[model].Policy == "" {
			if s.Models[model].Tokens == nil {
				return s.bad(at, "is missing")
			}
			continue
		}
		if _, err := preset.ByName(s.Models[model].Policy); err != nil {
			return s.bad(at, "%v", err)
		}
	}
	return nil
}

// maxTenantName is what the router takes for a name.
const maxTenantName = 256

func (s *settings) validateTenants() error {
	if len(s.Tenants) > 0 && s.TrustHeaders {
		return s.bad("trust_headers", "takes tenants from headers, and tenants from keys: there can be one of the two")
	}
	owners := map[[32]byte]string{}
	for _, name := range slices.Sorted(maps.Keys(s.Tenants)) {
		t, at := s.Tenants[name], "tenants."+name
		if len(name) > maxTenantName {
			return s.bad(at, "is longer than %d bytes", maxTenantName)
		}
		if len(t.Keys) == 0 {
			return s.bad(at+".keys", "is missing")
		}
		for i, key := range t.Keys {
			sum, err := keySum(key)
			if err != nil {
				return s.bad(fmt.Sprintf("%s.keys[%d]", at, i), "%v", err) // the key itself is not shown
			}
			if owner, taken := owners[sum]; taken {
				return s.bad(fmt.Sprintf("%s.keys[%d]", at, i), "is a key of tenant %s already", owner)
			}
			owners[sum] = name
		}
		for field, v := range map[string]float64{"tokens_per_second": t.Quota.Rate, "burst": t.Quota.Burst, "requests": float64(t.Quota.Requests)} {
			if v < 0 {
				return s.bad(at+".quota."+field, "%v is negative", v)
			}
		}
		if t.Quota.Burst > 0 && t.Quota.Rate == 0 {
			return s.bad(at+".quota.burst", "needs tokens_per_second")
		}
		for field, v := range map[string]time.Duration{"ttft": t.SLO.TTFT, "tpot": t.SLO.TPOT} {
			if v != 0 && (v < slo.MinTarget || v > slo.MaxTarget) {
				return s.bad(at+".slo."+field, "%v is not within %v and %v", v, slo.MinTarget, slo.MaxTarget)
			}
		}
	}
	return nil
}

func (s *settings) validateNumbers() error {
	numbers := map[string]int64{
		"limits.body": int64(s.Limits.Body), "limits.header": int64(s.Limits.Header), "limits.items": int64(s.Limits.Items),
		"limits.connections": int64(s.Limits.Connections), "limits.attempts": int64(s.Limits.Attempts),
		"timeouts.header": int64(s.Timeouts.Header), "timeouts.body": int64(s.Timeouts.Body), "timeouts.idle": int64(s.Timeouts.Idle),
		"timeouts.first_byte": int64(s.Timeouts.FirstByte), "timeouts.stall": int64(s.Timeouts.Stall),
		"timeouts.response": int64(s.Timeouts.Response), "timeouts.grace": int64(s.Timeouts.Grace),
	}
	if q := s.Queue; q != nil {
		numbers["queue.requests"], numbers["queue.tokens"] = int64(q.Requests), int64(q.Tokens)
		numbers["queue.bytes"], numbers["queue.timeout"] = int64(q.Bytes), int64(q.Timeout)
	}
	if r := s.Record; r != nil {
		numbers["record.max_bytes"], numbers["record.files"] = int64(r.Bytes), int64(r.Files)
	}
	for _, field := range slices.Sorted(maps.Keys(numbers)) {
		if numbers[field] < 0 {
			return s.bad(field, "is negative")
		}
	}
	return nil
}

func (s *settings) validateRest() error {
	if key := s.HashKey; key != "" {
		var err error
		if s.hashKey, err = prefix.ParseKey(key); err != nil {
			return s.bad("hash_key", "is not 64 hexadecimal digits, as openssl rand -hex 32 makes them")
		}
	}
	if s.Price.Prompt < 0 {
		return s.bad("price.prompt", "%v is negative", s.Price.Prompt)
	}
	if s.Price.Cached < 0 || s.Price.Cached > 1 {
		return s.bad("price.cached", "%v is not within 0 and 1", s.Price.Cached)
	}
	if s.Record != nil && s.Record.File == "" {
		return s.bad("record.file", "is missing")
	}
	if _, err := s.Log.level(); err != nil {
		return s.bad("log.level", "%q is none of debug, info, warn, error", s.Log.Level)
	}
	if s.Log.Format != "text" && s.Log.Format != "json" {
		return s.bad("log.format", "%q is neither text nor json", s.Log.Format)
	}
	if !slices.Contains([]string{"all", "failed", "none"}, s.Log.Requests) {
		return s.bad("log.requests", "%q is none of all, failed, none", s.Log.Requests)
	}
	return nil
}

// keySum is what is kept of a client's key: its hash, or the hash that stands in its
// place as "sha256:" and 64 hexadecimal digits.
func keySum(key string) (sum [32]byte, err error) {
	digits, hashed := strings.CutPrefix(key, "sha256:")
	if !hashed {
		if len(key) < minKey {
			return sum, fmt.Errorf("is shorter than %d bytes", minKey)
		}
		return sumOf(key), nil
	}
	b, err := hex.DecodeString(digits)
	if err != nil || len(b) != len(sum) {
		return sum, errors.New("is not sha256: and 64 hexadecimal digits")
	}
	return [32]byte(b), nil
}

// minKey keeps out what can be guessed, or was forgotten to be filled in.
const minKey = 16

// hold is the gateway queue; nil: there is none.
func (s *settings) hold() *transport.QueueConfig {
	q := s.Queue
	if q == nil {
		return nil
	}
	return &transport.QueueConfig{Bounds: queue.Config{
		MaxRequests: q.Requests, MaxTokens: int64(q.Tokens), MaxBytes: int64(q.Bytes), Timeout: q.Timeout,
	}}
}
