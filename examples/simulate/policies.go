package main

import (
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset"
)

// newPolicy makes the preset of this name with state of its own. Fitting in the
// background would make a run depend on the machine.
func newPolicy(name string) (endpick.Config, error) {
	config, err := preset.ByName(name)
	if err == nil && base(name) == "predicted-latency" && !strings.Contains(name, ":synchronous") {
		config, err = preset.ByName(name + ":synchronous")
	}
	config.Policy.Name = name
	return config, err
}

// base is a policy's name without its parameters.
func base(name string) string {
	name, _, _ = strings.Cut(name, ":")
	return name
}

func readPolicy(name string) (string, error) {
	_, err := newPolicy(name)
	return name, err
}
