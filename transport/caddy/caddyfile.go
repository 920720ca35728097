package caddy

import (
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/dustin/go-humanize"
)

// UnmarshalCaddyfile implements [caddyfile.Unmarshaler]:
//
//	transport endpick {
//		pool      <name>
//		policy    <preset>
//		endpoint  <address> {
//			id            <name>
//			variant       <name>
//			models        <name>...
//			adapters      <name>...
//			max_sequences <number>
//			max_in_flight <number>
//			max_context <number>
//			tier <number>
//			weight <number>
//			kv_tokens     <number>
//			label         <name> <value>
//		}
//		scrape    <interval>
//		queue     [<requests>] {
//			timeout   <duration>
//			sequences <number>
//		}
//		tenant    <text with placeholders>
//		ttft      <duration>
//		tpot      <duration>
//		max_attempts <number>
//		max_body  <size>
//		first_byte_timeout | stall_timeout | response_timeout | upgrade_timeout <duration>
//		hash_key  <64 hexadecimal digits>
//		seed      <number>
//		shared_cache
//		disable_usage
//		pass <METHOD path> ...
//	}
func (t *Transport) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	if d.NextArg() {
		return d.ArgErr()
	}
	for d.NextBlock(0) {
		if err := t.setting(d); err != nil {
			return err
		}
	}
	return nil
}

// setting parses a line and the block after it.
func (t *Transport) setting(d *caddyfile.Dispenser) error {
	switch name := d.Val(); name {
	case "pool":
		return text(d, &t.Pool)
	case "policy":
		return text(d, &t.Policy)
	case "tenant":
		return text(d, &t.Tenant)
	case "hash_key":
		return text(d, &t.HashKey)
	case "scrape":
		return duration(d, &t.Scrape)
	case "ttft":
		return duration(d, &t.TTFT)
	case "tpot":
		return duration(d, &t.TPOT)
	case "first_byte_timeout":
		return duration(d, &t.FirstByteTimeout)
	case "stall_timeout":
		return duration(d, &t.StallTimeout)
	case "response_timeout":
		return duration(d, &t.ResponseTimeout)
	case "upgrade_timeout":
		return duration(d, &t.UpgradeTimeout)
	case "max_attempts":
		return number(d, &t.MaxAttempts)
	case "seed":
		return number(d, &t.Seed)
	case "max_body":
		return size(d, &t.MaxBodyBytes)
	case "shared_cache":
		return flag(d, &t.SharedCache)
	case "disable_usage":
		return flag(d, &t.DisableUsage)
	case "pass":
		return texts(d, &t.Pass)
	case "endpoint":
		return t.endpoint(d)
	case "queue":
		return t.queue(d)
	default:
		return d.Errf("unknown setting %q", name)
	}
}

func (t *Transport) endpoint(d *caddyfile.Dispenser) error {
	var e Endpoint
	if err := text(d, &e.Address); err != nil {
		return err
	}
	for level := d.Nesting(); d.NextBlock(level); {
		var err error
		switch name := d.Val(); name {
		case "id":
			err = text(d, &e.ID)
		case "variant":
			err = text(d, &e.Variant)
		case "engine":
			err = text(d, &e.Engine)
		case "models":
			err = texts(d, &e.Models)
		case "adapters":
			err = texts(d, &e.Adapters)
		case "max_sequences":
			err = number(d, &e.MaxSequences)
		case "kv_tokens":
			err = number(d, &e.KVTokens)
		case "max_in_flight":
			err = number(d, &e.MaxInFlight)
		case "max_context":
			err = number(d, &e.MaxContext)
		case "tier":
			err = number(d, &e.Tier)
		case "weight":
			var weight string
			if err = text(d, &weight); err == nil {
				if e.Weight, err = strconv.ParseFloat(weight, 64); err != nil {
					err = d.Errf("weight: %q is not a number", weight)
				}
			}
		case "label":
			err = e.label(d)
		default:
			err = d.Errf("unknown setting %q of an endpoint", name)
		}
		if err != nil {
			return err
		}
	}
	t.Endpoints = append(t.Endpoints, e)
	return nil
}

func (e *Endpoint) label(d *caddyfile.Dispenser) error {
	all := d.RemainingArgs()
	if len(all) != 2 {
		return d.ArgErr()
	}
	if e.Labels == nil {
		e.Labels = map[string]string{}
	}
	e.Labels[all[0]] = all[1]
	return nil
}

func (t *Transport) queue(d *caddyfile.Dispenser) error {
	if t.Queue != nil {
		return d.Err("queue is given twice")
	}
	var q Queue
	if d.NextArg() {
		var err error
		if q.Requests, err = strconv.Atoi(d.Val()); err != nil || q.Requests <= 0 || d.NextArg() {
			return d.Errf("queue: %q is not a number of requests", d.Val())
		}
	}
	for level := d.Nesting(); d.NextBlock(level); {
		var err error
		switch name := d.Val(); name {
		case "timeout":
			err = duration(d, &q.Timeout)
		case "sequences":
			err = number(d, &q.Sequences)
		default:
			err = d.Errf("unknown setting %q of queue", name)
		}
		if err != nil {
			return err
		}
	}
	t.Queue = &q
	return nil
}

// one parses the only argument of a setting.
func one(d *caddyfile.Dispenser) (name, value string, err error) {
	name = d.Val()
	if !d.Args(&value) || d.NextArg() {
		return name, "", d.ArgErr()
	}
	return name, value, nil
}

func text(d *caddyfile.Dispenser, to *string) error {
	name, value, err := one(d)
	if err == nil && *to != "" {
		err = d.Errf("%s is given twice", name)
	}
	if err == nil {
		*to = value
	}
	return err
}

func texts(d *caddyfile.Dispenser, to *[]string) error {
	all := d.RemainingArgs()
	if len(all) == 0 {
		return d.ArgErr()
	}
	*to = append(*to, all...)
	return nil
}

// duration parses a duration above zero, which would mean the default.
func duration(d *caddyfile.Dispenser, to *caddy.Duration) error {
	name, value, err := one(d)
	if err != nil {
		return err
	}
	parsed, err := caddy.ParseDuration(value)
	if err != nil || parsed <= 0 {
		return d.Errf("%s: %q is not a duration above zero such as 500ms", name, value)
	}
	*to = caddy.Duration(parsed)
	return nil
}

func number(d *caddyfile.Dispenser, to *int) error {
	name, value, err := one(d)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(value)
	if err != nil || n <= 0 {
		return d.Errf("%s: %q is not a whole number above zero", name, value)
	}
	*to = n
	return nil
}

// size parses a number of bytes, such as 64MiB.
func size(d *caddyfile.Dispenser, to *int64) error {
	name, value, err := one(d)
	if err != nil {
		return err
	}
	n, err := humanize.ParseBytes(value)
	if err != nil || n == 0 || n > 1<<40 {
		return d.Errf("%s: %q is not a size such as 64MiB", name, value)
	}
	*to = int64(n)
	return nil
}

func flag(d *caddyfile.Dispenser, to *bool) error {
	if d.NextArg() {
		return d.ArgErr()
	}
	*to = true
	return nil
}

// The interfaces that Caddy looks for.
var (
	_ caddy.Provisioner     = (*Transport)(nil)
	_ caddy.CleanerUpper    = (*Transport)(nil)
	_ caddyfile.Unmarshaler = (*Transport)(nil)
	_ caddyfile.Unmarshaler = (*Upstreams)(nil)
)
