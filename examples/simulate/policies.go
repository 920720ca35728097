package main

import (
	"fmt"
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/precise"
	"github.com/endpick/endpick/scorer/preset/all"
)

// listening is the suffix of a policy whose index receives engines' events.
const listening = "+events"

// newPolicy returns the preset of this name with state of its own. It fits
// synchronously: in the background, runs would depend on the machine.
func newPolicy(name string) (endpick.Config, error) {
	plain, _, err := conditionsOf(name)
	if err != nil {
		return endpick.Config{}, err
	}
	if plain != name {
		config, err := newPolicy(plain)
		config.Policy.Name = name
		return config, err
	}
	if name, ok := strings.CutSuffix(name, listening); ok {
		return newListener(name)
	}
	config, err := all.ByName(name)
	if err == nil && base(name) == "predicted-latency" && !strings.Contains(name, ":synchronous") {
		config, err = all.ByName(name + ":synchronous")
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

// newListener returns a preset whose index receives engines' events.
func newListener(name string) (endpick.Config, error) {
	config, err := newPolicy(name)
	if err != nil {
		return config, err
	}
	approximate, ok := config.Policy.Matcher.(*prefix.Index)
	if !ok {
		return config, fmt.Errorf("%s has no index that could hear of events", name)
	}
	config.Policy.Matcher, err = precise.New(precise.Config{Approximate: approximate})
	config.Policy.Name = name + listening
	return config, err
}
