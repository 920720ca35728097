package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/endpick/endpick/prefix/diagnose"
	"github.com/endpick/endpick/transport/recording"
)

// diagnosis is gateway diagnose with its flags and files.
type diagnosis struct {
	diagnose.Config
	tenant, session recording.Hash // zero: all
	json            bool
	files           []string
}

func parseDiagnosis(args []string, stderr io.Writer) (*diagnosis, error) {
	d := &diagnosis{}
	f := flag.NewFlagSet("gateway diagnose", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprint(stderr, "Usage:\n  gateway diagnose [flags] FILE…\n\nsays why caches were not hit in recordings, and what that has cost.\n\nFlags:\n")
		f.PrintDefaults()
	}
	f.Float64Var(&d.Price, "price", 0, "of a million tokens of prompt")
	f.Float64Var(&d.CachedMultiplier, "cached", 0.25, "`share` of the price that cached tokens cost")
	f.DurationVar(&d.Window, "window", time.Hour, "how long after its last use a prompt could still be in a cache")
	block := f.Int("block", 16, "tokens in a block of the servers' caches; vLLM's have 128 on CPUs")
	f.IntVar(&d.MinTokens, "min-tokens", 32, "what a request has to lose to count")
	f.Func("tenant", "only requests of this tenant: its `name`, or # and its hash", hashOfName(&d.tenant))
	f.Func("session", "only requests of this session, likewise", hashOfName(&d.session))
	f.BoolVar(&d.json, "json", false, "print JSON")
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil, err
	case err != nil:
		return nil, errors.New("see gateway diagnose -h")
	case f.NArg() == 0:
		return nil, errors.New("diagnose: no file is given")
	case d.MinTokens == 0:
		return nil, errors.New("diagnose: -min-tokens 0 is below 1")
	case d.Window == 0:
		return nil, errors.New("diagnose: -window 0s is not above zero")
	}
	d.files, d.BlockTokens = f.Args(), func(string) int { return *block }
	_, err := diagnose.Explain(nil, d.Config)
	return d, err
}

// hashOfName parses a name, or a hash as in recordings and logs: #1f2e….
func hashOfName(dst *recording.Hash) func(string) error {
	return func(s string) error {
		digits, hashed := strings.CutPrefix(s, "#")
		if !hashed {
			*dst = recording.NameHash(s)
			return nil
		}
		v, err := strconv.ParseUint(digits, 16, 64)
		*dst = recording.Hash(v)
		return err
	}
}

func (d *diagnosis) run(stdout io.Writer) error {
	var requests []*recording.Request
	for _, path := range d.files {
		if err := d.read(path, &requests); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	report, err := diagnose.Explain(requests, d.Config)
	if err != nil {
		return err
	}
	if d.json {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(asJSON(report))
	}
	out := bufio.NewWriter(stdout)
	printReport(out, report, d.Price > 0)
	return out.Flush()
}

func (d *diagnosis) read(path string, requests *[]*recording.Request) error {
	f, err := os.Open(path)
	if err != nil {
		return errors.Unwrap(err) // without the path
	}
	defer f.Close()
	return recording.Read(f, func(_ int, r *recording.Request) error {
		if (d.tenant == 0 || r.Tenant == d.tenant) && (d.session == 0 || r.Session == d.session) {
			*requests = append(*requests, r)
		}
		return nil
	})
}

// where names the place to blame, if any.
func where(f *diagnose.Finding) string {
	switch {
	case f.Message < 0:
		return ""
	case f.Tool:
		return fmt.Sprintf("tool %d", f.Message)
	}
	place := fmt.Sprintf("message %d", f.Message)
	if f.Role != "" {
		place += " (" + strings.Trim(strconv.Quote(f.Role), `"`) + ")" // a client's, and for a terminal
	}
	if f.Offset >= 0 {
		place += fmt.Sprintf(", byte %d", f.Offset)
	}
	return place
}

func printReport(w io.Writer, r *diagnose.Report, money bool) {
	fmt.Fprintf(w, "%d requests, %d tokens of prompts, %d of them cached", r.Requests, r.InputTokens, r.CachedTokens)
	if r.Silent > 0 {
		fmt.Fprintf(w, "; of %d the server did not say", r.Silent)
	}
	fmt.Fprintln(w)
	if len(r.Findings) == 0 {
		fmt.Fprintln(w, "Nothing has kept prompts from the caches.")
		return
	}
	cost := func(tokens int, v float64) string {
		if !money {
			return fmt.Sprintf("%d tokens", tokens)
		}
		return fmt.Sprintf("%d tokens, %.6f", tokens, v)
	}
	fmt.Fprintf(w, "Computed again though they had been before: %s\n", cost(r.LostTokens, r.Cost))
	for i := range r.Findings {
		f := &r.Findings[i]
		fmt.Fprintf(w, "\n%s: %s, in %d requests", f.Cause, cost(f.Tokens, f.Cost), f.Requests)
		if place := where(f); place != "" {
			fmt.Fprintf(w, "\n  where   %s", place)
		}
		if f.Old != "" || f.New != "" {
			fmt.Fprintf(w, "\n  differs %q, then %q", f.Old, f.New)
		}
		fmt.Fprintf(w, "\n  who     model %q", f.Model)
		if f.Tenant != 0 {
			fmt.Fprintf(w, ", tenant #%x", uint64(f.Tenant))
		}
		if f.After.Session != 0 {
			fmt.Fprintf(w, ", session #%x", uint64(f.After.Session))
		}
		fmt.Fprintf(w, "\n  first   %s on %q, after %s on %q", f.After.Time.Format(time.RFC3339Nano), f.After.Endpoint, f.Before.Time.Format(time.RFC3339Nano), f.Before.Endpoint)
		fmt.Fprintf(w, "\n  advice  %s\n", f.Cause.Advice())
	}
}

// asJSON is the report as -json prints it. What a finding does not have is left out.
func asJSON(r *diagnose.Report) map[string]any {
	findings := []map[string]any{}
	for _, f := range r.Findings {
		one := map[string]any{
			"cause": f.Cause.String(), "model": f.Model, "requests": f.Requests, "tokens": f.Tokens, "cost": f.Cost,
			"before": f.Before.Time, "after": f.After.Time, "advice": f.Cause.Advice(),
		}
		set := func(name string, value any, present bool) {
			if present {
				one[name] = value
			}
		}
		set("tenant", f.Tenant, f.Tenant != 0)
		set("session", f.After.Session, f.After.Session != 0)
		set("message", f.Message, f.Message >= 0 && !f.Tool)
		set("tool", f.Message, f.Message >= 0 && f.Tool)
		set("role", f.Role, f.Role != "")
		set("offset", f.Offset, f.Offset >= 0)
		set("old", f.Old, f.Old != "")
		set("new", f.New, f.New != "")
		findings = append(findings, one)
	}
	return map[string]any{
		"requests": r.Requests, "silent": r.Silent, "input_tokens": r.InputTokens, "cached_tokens": r.CachedTokens,
		"lost_tokens": r.LostTokens, "cost": r.Cost, "findings": findings,
	}
}
