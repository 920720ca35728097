package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/endpick/endpick/internal/lab/sim"
)

const conditionsUsage = "+events (routers hear of the engines' KV-cache events, +late=1s and without +lost=0.01 of them), " +
	"+routers=4 (in turn, each with its own index), +share=load or +share=index (what they tell each other, " +
	"after +delay=50ms), +reports=1s (their age)"

// conditions are what a policy is run under. They follow its name:
// marginal-delay+reports=1s, lmetric+routers=4+share=index+delay=50ms.
type conditions struct {
	reports time.Duration // interval of the engines' reports; 0: not given
	routers int           // in front of the fleet; 0: not given
	share   string        // what they tell each other, one of shares; empty: not given
	delay   time.Duration // of what they tell each other
	late    time.Duration // delay of the engines' events, for +events
	lost    float64       // share of batches of events that are lost
}

// conditionsOf splits a policy's name from its conditions.
func conditionsOf(name string) (string, conditions, error) {
	c := conditions{delay: shareDelay}
	parts := strings.Split(name, "+")
	rest := parts[:1]
	for _, part := range parts[1:] {
		key, value, _ := strings.Cut(part, "=")
		number, err := strconv.ParseFloat(value, 64)
		switch key {
		case "reports":
			if c.reports, err = time.ParseDuration(value); err == nil && !(c.reports > 0 && c.reports <= time.Hour) {
				err = fmt.Errorf("is not within (0, 1h]")
			}
		case "routers":
			if c.routers, err = strconv.Atoi(value); err == nil && c.routers < 1 {
				err = fmt.Errorf("is less than one")
			}
		case "share":
			if c.share, err = value, nil; !slices.Contains(shares, value) {
				err = fmt.Errorf("is none of %s", strings.Join(shares, ", "))
			}
		case "delay":
			c.delay, err = waiting(value)
		case "late":
			c.late, err = waiting(value)
		case "lost":
			c.lost = number
			if err == nil && !(number > 0 && number < 1) {
				err = fmt.Errorf("is not within (0, 1)")
			}
		default:
			rest, err = append(rest, part), nil
		}
		if err != nil {
			return "", c, fmt.Errorf("%s: +%s=%s: %v (want a number, or a duration for reports, delay and late)", parts[0], key, value, err)
		}
	}
	plain := strings.Join(rest, "+")
	if (c.late > 0 || c.lost > 0) && !strings.HasSuffix(plain, listening) {
		return "", c, fmt.Errorf("%s: +late and +lost are for policies with +events", parts[0])
	}
	if c.delay != shareDelay && c.share == "" {
		return "", c, fmt.Errorf("%s: +delay is for policies with +share", parts[0])
	}
	return plain, c, nil
}

// waiting parses a time that something takes to arrive.
func waiting(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err == nil && !(d >= 0 && d <= time.Hour) {
		err = fmt.Errorf("is not within [0, 1h]")
	}
	return d, err
}

// configure applies the conditions in a policy's name to a simulation.
func configure(config *sim.Config, policy string) error {
	plain, c, err := conditionsOf(policy)
	if err != nil {
		return err
	}
	if strings.HasSuffix(plain, listening) {
		config.Events = &sim.Events{Delay: c.late, Loss: c.lost}
	}
	if c.reports > 0 {
		config.ReportInterval = c.reports
	}
	if c.routers > 0 {
		config.Routers = c.routers
	}
	if c.share == "load" || c.share == "index" {
		config.Sharing = &sim.Sharing{Delay: c.delay, LoadOnly: c.share == "load"}
	}
	return nil
}

// shares are what routers may tell each other, and shareDelay how long that takes by default.
var shares = []string{"none", "load", "index"}

const shareDelay = 5 * time.Millisecond
