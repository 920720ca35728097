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
//			engine        <name>
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
	return block(d, "", map[string]any{
		"pool": &t.Pool, "policy": &t.Policy, "tenant": &t.Tenant, "hash_key": &t.HashKey,
		"scrape": &t.Scrape, "ttft": &t.TTFT, "tpot": &t.TPOT,
		"first_byte_timeout": &t.FirstByteTimeout, "stall_timeout": &t.StallTimeout,
		"response_timeout": &t.ResponseTimeout, "upgrade_timeout": &t.UpgradeTimeout,
		"max_attempts": &t.MaxAttempts, "seed": &t.Seed, "max_body": &t.MaxBodyBytes,
		"shared_cache": &t.SharedCache, "disable_usage": &t.DisableUsage, "pass": &t.Pass,
		"endpoint": t.endpoint, "queue": t.queue,
	})
}

func (t *Transport) endpoint(d *caddyfile.Dispenser) error {
	var e Endpoint
	if err := setting(d, &e.Address); err != nil {
		return err
	}
	err := block(d, " of an endpoint", map[string]any{
		"id": &e.ID, "variant": &e.Variant, "engine": &e.Engine, "models": &e.Models, "adapters": &e.Adapters,
		"max_sequences": &e.MaxSequences, "kv_tokens": &e.KVTokens, "max_in_flight": &e.MaxInFlight, "max_context": &e.MaxContext,
		"tier": &e.Tier, "weight": &e.Weight, "label": e.label,
	})
	t.Endpoints = append(t.Endpoints, e)
	return err
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
	q := new(Queue)
	t.Queue = q
	if d.NextArg() {
		var err error
		if q.Requests, err = strconv.Atoi(d.Val()); err != nil || q.Requests <= 0 || d.NextArg() {
			return d.Errf("queue: %q is not a number of requests", d.Val())
		}
	}
	return block(d, " of queue", map[string]any{"timeout": &q.Timeout, "sequences": &q.Sequences})
}

// block parses a block into the variables that its settings, by name, are for, or with their functions.
func block(d *caddyfile.Dispenser, of string, settings map[string]any) error {
	for level := d.Nesting(); d.NextBlock(level); {
		to, known := settings[d.Val()]
		if !known {
			return d.Errf("unknown setting %q%s", d.Val(), of)
		}
		if err := setting(d, to); err != nil {
			return err
		}
	}
	return nil
}

func setting(d *caddyfile.Dispenser, to any) error {
	if own, ok := to.(func(*caddyfile.Dispenser) error); ok {
		return own(d)
	}
	name, all := d.Val(), d.RemainingArgs()
	switch to := to.(type) {
	case *bool:
		*to = true
		if len(all) == 0 {
			return nil
		}
	case *[]string:
		*to = append(*to, all...)
		if len(all) > 0 {
			return nil
		}
	default:
		if len(all) != 1 {
			break
		}
		if text, ok := to.(*string); ok && *text != "" {
			return d.Errf("%s is given twice", name)
		}
		if want := read(all[0], to); want != "" {
			return d.Errf("%s: %q is not %s", name, all[0], want)
		}
		return nil
	}
	return d.ArgErr()
}

// read reads a value, or says what it should have been. Zero would mean the default.
func read(value string, to any) (want string) {
	var err error
	switch to := to.(type) {
	case *string:
		*to = value
	case *int:
		if *to, err = strconv.Atoi(value); err != nil || *to <= 0 {
			return "a whole number above zero"
		}
	case *float64:
		if *to, err = strconv.ParseFloat(value, 64); err != nil || !(*to > 0) {
			return "a number above zero"
		}
	case *int64:
		n, err := humanize.ParseBytes(value)
		if *to = int64(n); err != nil || n == 0 || n > 1<<40 {
			return "a size such as 64MiB"
		}
	case *caddy.Duration:
		v, err := caddy.ParseDuration(value)
		if *to = caddy.Duration(v); err != nil || v <= 0 {
			return "a duration above zero such as 500ms"
		}
	}
	return ""
}

// The interfaces that Caddy looks for.
var (
	_ caddy.Provisioner     = (*Transport)(nil)
	_ caddy.CleanerUpper    = (*Transport)(nil)
	_ caddyfile.Unmarshaler = (*Transport)(nil)
	_ caddyfile.Unmarshaler = (*Upstreams)(nil)
)
