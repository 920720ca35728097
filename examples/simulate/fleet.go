package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/sim"
)

// part is the servers of one profile in a fleet.
type part struct {
	profile engine.Profile
	servers int // 0: all
}

// readFleet parses profile names, or names of files written by calibrate,
// separated by commas; if there are several, each as profile:servers.
func readFleet(s string) ([]part, error) {
	var parts []part
	fields := strings.Split(s, ",")
	for _, text := range fields {
		text = strings.TrimSpace(text)
		name, count, counted := strings.Cut(text, ":")
		p := part{}
		if counted != (len(fields) > 1) {
			return nil, fmt.Errorf("%q: several profiles are written profile:servers,profile:servers, a single one without a number (see -endpoints)", text)
		}
		if counted {
			n, err := strconv.Atoi(count)
			if err != nil || n < 1 {
				return nil, fmt.Errorf("%q: %q is not a number of servers", text, count)
			}
			p.servers = n
		}
		var err error
		if p.profile, err = readProfile(name); err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	return parts, nil
}

func readProfile(name string) (engine.Profile, error) {
	if !strings.HasSuffix(name, ".json") {
		return engine.ProfileByName(name)
	}
	var p engine.Profile
	f, err := os.Open(name)
	if err != nil {
		return p, err
	}
	defer f.Close()
	decoder := json.NewDecoder(f)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil {
		return p, fmt.Errorf("%s: %w", name, err)
	}
	if _, err := engine.New(engine.Config{Profile: p}); err != nil {
		return p, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// servers returns a fleet with several profiles.
func servers(parts []part) []sim.Server {
	var fleet []sim.Server
	for _, p := range parts {
		fleet = append(fleet, sim.Fleet(p.servers, engine.Config{Profile: p.profile})...)
	}
	return fleet
}
