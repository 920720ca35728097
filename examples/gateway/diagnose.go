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
	"time"

	"github.com/endpick/endpick/prefix/diagnose"
	"github.com/endpick/endpick/transport/recording"
)

// diagnoseOptions are the flags and files of gateway diagnose.
type diagnoseOptions struct {
	diagnose.Config
	tenant, session recording.Hash // zero: all
	json            bool
	files           []string
}

// hashOfName parses a name, or a hash as in recordings and logs: #1f2e….
func hashOfName(s string) (recording.Hash, error) {
	if len(s) == 0 || s[0] != '#' {
		return recording.NameHash(s), nil
	}
	v, err := strconv.ParseUint(s[1:], 16, 64)
	return recording.Hash(v), err
}

func parseDiagnose(args []string, stderr io.Writer) (*diagnoseOptions, error) {
	o := &diagnoseOptions{}
	f := flag.NewFlagSet("gateway diagnose", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprint(stderr, "Usage:\n  gateway diagnose [flags] FILE…\n\nsays why caches were not hit in recordings, and what that has cost.\n\nFlags:\n")
		f.PrintDefaults()
	}
	f.Float64Var(&o.Price, "price", 0, "of a million tokens of prompt")
	f.Float64Var(&o.CachedMultiplier, "cached", 0.25, "`share` of the price that cached tokens cost")
	f.DurationVar(&o.Window, "window", time.Hour, "how long after its last use a prompt could still be in a cache")
	f.IntVar(&o.MinTokens, "min-tokens", 32, "what a request has to lose to count")
	name := func(dst *recording.Hash) func(string) error {
		return func(s string) (err error) {
			*dst, err = hashOfName(s)
			return err
		}
	}
	f.Func("tenant", "only requests of this tenant: its `name`, or # and its hash", name(&o.tenant))
	f.Func("session", "only requests of this session, likewise", name(&o.session))
	f.BoolVar(&o.json, "json", false, "print JSON")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		return nil, errors.New("see gateway diagnose -h")
	}
	if o.files = f.Args(); len(o.files) == 0 {
		return nil, errors.New("diagnose: no file is given")
	}
	if o.MinTokens == 0 {
		return nil, errors.New("diagnose: -min-tokens 0 is below 1")
	}
	if o.Window == 0 {
		return nil, errors.New("diagnose: -window 0s is not above zero")
	}
	_, err := diagnose.Explain(nil, o.Config)
	return o, err
}

// diagnoseCommand is gateway diagnose. It returns the exit status.
func diagnoseCommand(args []string, stdout, stderr io.Writer) int {
	o, err := parseDiagnose(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "gateway: %v\n", err)
		return 2
	}
	if err := o.run(stdout); err != nil {
		fmt.Fprintf(stderr, "gateway: %v\n", err)
		return 1
	}
	return 0
}

func (o *diagnoseOptions) run(stdout io.Writer) error {
	var requests []*recording.Request
	for _, path := range o.files {
		if err := o.read(path, &requests); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	report, err := diagnose.Explain(requests, o.Config)
	if err != nil {
		return err
	}
	if o.json {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(findingsOf(report))
	}
	out := bufio.NewWriter(stdout)
	printReport(out, report, o.Price > 0)
	return out.Flush()
}

func (o *diagnoseOptions) read(path string, requests *[]*recording.Request) error {
	f, err := os.Open(path)
	if err != nil {
		return errors.Unwrap(err) // without the path
	}
	defer f.Close()
	return recording.Read(f, func(_ int, r *recording.Request) error {
		if (o.tenant == 0 || r.Tenant == o.tenant) && (o.session == 0 || r.Session == o.session) {
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
		place += " (" + f.Role + ")"
	}
	if f.Offset >= 0 {
		place += fmt.Sprintf(", byte %d", f.Offset)
	}
	return place
}

func hashText(h recording.Hash) string {
	if h == 0 {
		return ""
	}
	return fmt.Sprintf("#%x", uint64(h))
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
			fmt.Fprintf(w, ", tenant %s", hashText(f.Tenant))
		}
		if f.After.Session != 0 {
			fmt.Fprintf(w, ", session %s", hashText(f.After.Session))
		}
		fmt.Fprintf(w, "\n  first   %s on %q, after %s on %q", f.After.Time.Format(time.RFC3339Nano), f.After.Endpoint, f.Before.Time.Format(time.RFC3339Nano), f.Before.Endpoint)
		fmt.Fprintf(w, "\n  advice  %s\n", f.Cause.Advice())
	}
}

// jsonReport is the report in JSON.
type jsonReport struct {
	Requests     int           `json:"requests"`
	Silent       int           `json:"silent"`
	InputTokens  int           `json:"input_tokens"`
	CachedTokens int           `json:"cached_tokens"`
	LostTokens   int           `json:"lost_tokens"`
	Cost         float64       `json:"cost"`
	Findings     []jsonFinding `json:"findings"`
}

type jsonFinding struct {
	Cause    string         `json:"cause"`
	Model    string         `json:"model"`
	Tenant   recording.Hash `json:"tenant,omitzero"`
	Session  recording.Hash `json:"session,omitzero"`
	Message  *int           `json:"message,omitempty"`
	Tool     *int           `json:"tool,omitempty"`
	Role     string         `json:"role,omitempty"`
	Offset   *int           `json:"offset,omitempty"`
	Old      string         `json:"old,omitempty"`
	New      string         `json:"new,omitempty"`
	Requests int            `json:"requests"`
	Tokens   int            `json:"tokens"`
	Cost     float64        `json:"cost"`
	Before   time.Time      `json:"before"`
	After    time.Time      `json:"after"`
	Advice   string         `json:"advice"`
}

func findingsOf(r *diagnose.Report) jsonReport {
	j := jsonReport{r.Requests, r.Silent, r.InputTokens, r.CachedTokens, r.LostTokens, r.Cost, []jsonFinding{}}
	for _, f := range r.Findings {
		one := jsonFinding{
			Cause: f.Cause.String(), Model: f.Model, Tenant: f.Tenant, Session: f.After.Session, Role: f.Role, Old: f.Old, New: f.New,
			Requests: f.Requests, Tokens: f.Tokens, Cost: f.Cost, Before: f.Before.Time, After: f.After.Time, Advice: f.Cause.Advice(),
		}
		if f.Message >= 0 && f.Tool {
			one.Tool = &f.Message
		} else if f.Message >= 0 {
			one.Message = &f.Message
		}
		if f.Offset >= 0 {
			one.Offset = &f.Offset
		}
		j.Findings = append(j.Findings, one)
	}
	return j
}
