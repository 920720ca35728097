package main

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"
	"unicode"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/slo"
	"github.com/endpick/endpick/transport"
)

func (s *settings) bad(field, format string, args ...any) error {
	return s.document.at(field, format, args...)
}

// failed returns the error of what a field asks for, or the flag in its place.
func (s *settings) failed(field string, err error) error {
	if s.document != nil {
		return s.bad(field, "%v", err)
	}
	if field == "discover" {
		field = "backend-file"
	}
	return fmt.Errorf("-%s: %w", field, err)
}

// validate checks what the types of the fields don't, and resolves secrets.
func (s *settings) validate() error {
	for _, check := range []func() error{
		s.validateListeners, s.validateEndpoints, s.validateTiers, s.validateNames, s.validatePolicies, s.validateTenants, s.validateEvents, s.validateRest, s.validateReplicas,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (s *settings) validateListeners() error {
	for _, l := range [...]struct{ field, address string }{{"listen", s.Listen}, {"admin", s.Admin}} {
		if l.address == "" {
			return s.bad(l.field, "is empty")
		}
		host, port, err := net.SplitHostPort(l.address)
		if err == nil {
			_, err = net.LookupPort("tcp", port)
		}
		if strings.ContainsAny(host, "*/ ") {
			err = errors.New("is no address of this machine; without a host, as in :8080, it is all of them")
		}
		if err != nil {
			return s.bad(l.field, "%v", err)
		}
	}
	if sameListener(s.Listen, s.Admin) {
		return s.bad("admin", "is the address of listen")
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

// sameListener reports whether only one of two addresses can be listened on.
func sameListener(a, b string) bool {
	split := func(address string) (host string, port int) {
		host, name, _ := net.SplitHostPort(strings.Replace(address, "localhost", "127.0.0.1", 1))
		port, _ = net.LookupPort("tcp", name)
		return host, port
	}
	host, port := split(a)
	other, itsPort := split(b)
	return port == itsPort && port != 0 && (host == other || everywhere(host) || everywhere(other))
}

// everywhere reports whether a host is all addresses of this machine.
func everywhere(host string) bool { return host == "" || net.ParseIP(host).IsUnspecified() }

// validateFiles checks the files that a gateway needs when it starts.
func (s *settings) validateFiles() error {
	if s.Discover != nil && s.Discover.File != "" {
		list, err := s.source().Endpoints(context.Background())
		if err == nil {
			_, err = endpick.New(endpick.Config{Endpoints: list})
		}
		if err != nil {
			return s.failed("discover", err)
		}
	}
	if s.Record == nil {
		return nil
	}
	f, err := os.OpenFile(s.Record.File, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		return f.Close()
	}
	if errors.Is(err, fs.ErrNotExist) { // it will be made
		_, err = os.ReadDir(filepath.Dir(s.Record.File))
	}
	if err != nil {
		return s.failed("record", err)
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
		if err := s.validateEndpoint(at, &e); err != nil {
			return err
		}
	}
	// A router finds the other mistakes, such as duplicates; the first one that it does not
	// take has it.
	all := s.endpoints()
	router := func(n int) error {
		_, err := endpick.New(endpick.Config{Endpoints: all[:n]})
		return err
	}
	if router(len(all)) == nil {
		return nil
	}
	n := sort.Search(len(all), func(n int) bool { return router(n) != nil })
	at := fmt.Sprintf("endpoints[%d]", n-1)
	if i := slices.IndexFunc(all[:n-1], func(e endpick.Endpoint) bool { return e.ID == all[n-1].ID }); i >= 0 {
		return s.bad(at, "is listed twice: endpoints[%d] has the same id, or url if there is no id", i)
	}
	return s.bad(at, "%v", router(n))
}

// validateEndpoint checks what endpoints of a list, and discovered ones, may have.
func (s *settings) validateEndpoint(at string, e *endpointSettings) error {
	if i := slices.Index(e.Models, ""); i >= 0 {
		return s.bad(fmt.Sprintf("%s.models[%d]", at, i), "is empty")
	}
	if i := slices.Index(e.Adapters, ""); i >= 0 {
		return s.bad(fmt.Sprintf("%s.adapters[%d]", at, i), "is empty")
	}
	return nil
}

func (s *settings) validatePolicies() error {
	check := func(at, name string) error {
		var bad *endpick.ConfigError
		if _, err := all.ByName(name); errors.As(err, &bad) {
			return s.bad(at, "%q %s", name, bad.Reason)
		}
		return nil
	}
	if err := check("policy", s.Policy); err != nil {
		return err
	}
	for _, model := range slices.Sorted(maps.Keys(s.Models)) {
		at := "models." + model + ".policy"
		if s.Models[model].Policy == "" {
			if s.Models[model].Tokens == nil {
				return s.bad(at, "is missing")
			}
			continue
		}
		if err := check(at, s.Models[model].Policy); err != nil {
			return err
		}
	}
	return nil
}

// maxTenantName is the longest name that the transport accepts.
const maxTenantName = 256

func (s *settings) validateTenants() error {
	switch {
	case len(s.Tenants) > 0 && s.TrustHeaders:
		return s.bad("trust_headers", "takes tenants from headers, and tenants from keys: there can be one of the two")
	case s.Tenants != nil && s.Open:
		return s.bad("open", "needs no key, and tenants have some: there can be one of the two")
	case s.Tenants != nil && len(s.Tenants) == 0: // such as by a template: nobody is to get in without a key
		return s.bad("tenants", "names nobody: say open: true instead if no key is to be needed")
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
			sum, err := keySum(string(key))
			if err != nil {
				return s.bad(fmt.Sprintf("%s.keys[%d]", at, i), "%v", err) // the error does not show the key
			}
			if owner, taken := owners[sum]; taken {
				return s.bad(fmt.Sprintf("%s.keys[%d]", at, i), "is a key of the tenant in line %d already", s.document.lines["tenants."+owner])
			}
			owners[sum] = name
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

func (s *settings) validateRest() error {
	if err := checkKey(string(s.EngineKey)); err != nil {
		return s.bad("engine_key", "%v", err) // the error does not show the key
	}
	if key := s.HashKey; key != "" {
		var err error
		if s.hashKey, err = prefix.ParseKey(string(key)); err != nil {
			return s.bad("hash_key", "is not 64 hexadecimal digits, as openssl rand -hex 32 makes them")
		}
	}
	if s.Poll < minPoll {
		return s.bad("poll", "%v is less than %v", s.Poll, minPoll)
	}
	if s.Price.Cached > 1 {
		return s.bad("price.cached", "%v is not within 0 and 1", s.Price.Cached)
	}
	for i, pattern := range s.Pass {
		router, err := endpick.New(endpick.Config{})
		if err == nil {
			_, err = transport.NewDispatcher(transport.Config{Router: router, Pass: []string{pattern}})
		}
		if err != nil {
			return s.bad(fmt.Sprintf("pass[%d]", i), "%q is neither a path nor a method and a path", pattern)
		}
	}
	for i, o := range s.Origins {
		if o != "*" && o != "null" && (strings.Count(o, "/") != 2 || strings.Contains(o, "*") || o != strings.ToLower(o)) { // no page would match it
			return s.bad(fmt.Sprintf("origins[%d]", i), "is no origin, such as https://chat.example, in small letters, with nothing after the host and port")
		}
	}
	switch _, err := s.Log.level(); {
	case s.Limits.Header > 1<<30: // net/http adds to it
		return s.bad("limits.header", "is more than 1 GiB")
	case s.Record != nil && s.Record.File == "":
		return s.bad("record.file", "is missing")
	case err != nil:
		return s.bad("log.level", "%q is none of debug, info, warn, error", s.Log.Level)
	case s.Log.Format != "text" && s.Log.Format != "json":
		return s.bad("log.format", "%q is neither text nor json", s.Log.Format)
	case !slices.Contains(loggedRequests, s.Log.Requests):
		return s.bad("log.requests", "%q is none of %s", s.Log.Requests, strings.Join(loggedRequests, ", "))
	}
	return nil
}

// loggedRequests are the requests that may be asked for in the log.
var loggedRequests = []string{"all", "failed", "none"}

// keySum is the stored form of a client's key: its hash, or the hash given instead
// as "sha256:" and 64 hexadecimal digits.
func keySum(key string) (sum [32]byte, err error) {
	digits, hashed := strings.CutPrefix(key, "sha256:")
	if !hashed {
		if len(key) < minKey {
			return sum, fmt.Errorf("is shorter than %d bytes", minKey)
		}
		return sumOf(key), checkKey(key)
	}
	b, err := hex.DecodeString(digits)
	if err != nil || len(b) != len(sum) {
		return sum, errors.New("is not sha256: and 64 hexadecimal digits")
	}
	return [32]byte(b), nil
}

// checkKey returns an error for a key that no request can have.
func checkKey(key string) error {
	if strings.TrimSpace(key) != key || strings.ContainsFunc(key, unicode.IsControl) {
		return errors.New("has a space around it or a control character, which no header can have")
	}
	return nil
}

// minKey keeps out keys that can be guessed, and placeholders.
const minKey = 16
