package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
	"github.com/endpick/endpick/transport/internal/dialect"
)

// Name is what stands behind a name that clients may ask for instead of a model. It goes before a
// model of the same name, which may be among its Models. The response says which model has
// answered, and a conversation stays with the model that it began with, while that can be had.
type Name struct {
	// Models are tried in this order: the next one where all servers of those before it are full
	// or out, where there are none, or where the prompt is too long for them.
	Models []string
	// Weights say how often each model is the first: 9 and 1 for nine of ten requests, by turns.
	// The others follow in their order. Nil: the first model always is.
	Weights []float64
}

// maxChoices is how many models may stand behind a name.
const maxChoices = 16

// validateNames checks names that stand for models; the error is an [endpick.ConfigError].
func validateNames(all map[string]Name) error {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		n := all[name]
		bad := func(format string, args ...any) error {
			return check.Bad(fmt.Sprintf("transport.Config.Names[%q]", name), format, args...)
		}
		sum, seen := 0.0, map[string]bool{}
		switch {
		case !askable(name):
			return bad("is empty, longer than 256 bytes, or not UTF-8")
		case len(n.Models) == 0 || len(n.Models) > maxChoices:
			return bad("has %d models, not 1 to %d", len(n.Models), maxChoices)
		case n.Weights != nil && len(n.Weights) != len(n.Models):
			return bad("has %d weights for %d models", len(n.Weights), len(n.Models))
		}
		for _, model := range n.Models {
			switch _, nested := all[model]; {
			case !askable(model):
				return bad("has the model %q, which is empty, longer than 256 bytes, or not UTF-8", model)
			case seen[model]:
				return bad("has the model %q twice", model)
			case nested && model != name:
				return bad("has %q, which is such a name itself", model)
			}
			seen[model] = true
		}
		for _, w := range n.Weights {
			if !(w >= 0) || math.IsInf(w, 1) {
				return bad("has a weight of %v", w)
			}
			sum += w
		}
		if n.Weights != nil && !(sum > 0) {
			return bad("has weights that sum to 0")
		}
	}
	return nil
}

// askable reports whether a request may ask for this.
func askable(name string) bool { return name != "" && len(name) <= 256 && utf8.ValidString(name) }

// SetNames replaces Config.Names, for requests that arrive from now on; their slices must not
// change. The error is an [endpick.ConfigError]; then nothing changes.
func (d *Dispatcher) SetNames(names map[string]Name) error {
	if err := validateNames(names); err != nil {
		return err
	}
	own := maps.Clone(names)
	d.names.Store(&own)
	return nil
}

// SetNames replaces Config.Names, as [Dispatcher.SetNames] does.
func (t *Transport) SetNames(names map[string]Name) error { return t.d.SetNames(names) }

// conversations remembers with which model conversations have begun that have asked for a name. It is
// safe for concurrent use. Of the latest twice most it knows at least half.
type conversations struct {
	seed  maphash.Seed  // clients choose the names of sessions
	turns atomic.Uint64 // requests that weights were asked for

	mu          sync.Mutex
	now, before map[uint64]string // models, by what conversationKey says
}

const maxConversations = 1 << 15

func (p *conversations) get(key uint64) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return cmp.Or(p.now[key], p.before[key])
}

func (p *conversations) put(key uint64, model string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil || len(p.now) >= maxConversations {
		p.before, p.now = p.now, map[uint64]string{}
	}
	p.now[key] = model
}

// alias is what a call remembers whose client has asked for a name.
type alias struct {
	name    string
	behind  Name
	in      Incoming        // as the client has sent it
	parsed  *dialect.Call   // likewise
	request endpick.Request // likewise, and as the host has described it
	key     uint64          // of the conversation; 0: none
	models  []string        // in the order for this call
	read    []version       // the call as one for each of them
}

// version is a call as one for a model behind the name; zero: not read yet.
type version struct {
	parsed *dialect.Call
	query  string
}

// named notes that the request asks for a name.
func (c *Call) named(in Incoming) {
	names := c.d.names.Load()
	inQuery := c.t != nil && strings.Contains(in.Query, "model=") // a Dispatcher's caller sends that itself
	if len(*names) == 0 || len(in.Body) == 0 && !inQuery {
		return
	}
	if behind, ok := (*names)[c.Request.Model]; ok {
		c.story.named = c.Request.Model
		c.alias = &alias{name: c.Request.Model, behind: behind, in: in, parsed: c.parsed}
	}
}

// resolve makes the call one for the first model behind the name. The error is that of readPrompt.
func (c *Call) resolve(ctx context.Context) error {
	a := c.alias
	a.request = c.Request
	a.models = slices.Clone(a.behind.Models)
	a.read = make([]version, len(a.models))
	if len(a.models) > 1 {
		if err := c.readPrompt(ctx); err != nil { // to know the conversation
			return err
		}
		if s := c.Request.Session; s != "" {
			a.key = max(maphash.Comparable(c.d.conversations.seed, [...]string{a.name, c.Request.Tenant, s}), 1)
		}
		first := -1
		if a.key != 0 {
			first = slices.Index(a.models, c.d.conversations.get(a.key))
		}
		if first < 0 && a.behind.Weights != nil {
			first = byTurns(a.behind.Weights, c.d.conversations.turns.Add(1))
		}
		if first > 0 {
			model := a.models[first]
			a.models = slices.Insert(slices.Delete(a.models, first, first+1), 0, model)
		}
	}
	return c.become(ctx, 0)
}

// byTurns is the index whose turn it is: after n turns each has had its share, but for one or two.
// The fractions of multiples of the golden ratio are spread most evenly.
func byTurns(weights []float64, turn uint64) int {
	const golden = 0x9e3779b97f4a7c15 // 2⁶⁴ divided by it
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	left := float64(turn*golden>>11) / (1 << 53) * sum
	last := 0
	for i, w := range weights {
		if w > 0 {
			if last = i; left < w {
				break
			}
			left -= w
		}
	}
	return last
}

// become makes the call one for a model behind the name, as if the client had asked for that.
func (c *Call) become(ctx context.Context, i int) error {
	a, now := c.alias, c.Request
	switch known := a.read[i]; {
	case known.parsed == nil:
		in := a.in
		if in.Body, in.Query = a.parsed.WithModel(a.models[i], in.Query); in.Body == nil && len(a.in.Body) > 0 {
			return &endpick.RequestError{Field: "model", Reason: "can't be replaced where it stands"}
		}
		parsed, err := c.d.reader.Read(dialect.Incoming(in))
		if err != nil {
			return err
		}
		c.parsed, c.query = parsed, in.Query
		c.Request = a.request
		c.Request.Model, c.Request.Named = a.models[i], a.name
		if err := c.readPrompt(ctx); err != nil {
			return err
		}
		a.read[i] = version{parsed, in.Query}
	case known.parsed != c.parsed:
		c.parsed, c.query = known.parsed, known.query
		c.take()
	}
	c.Request.SLO, c.Request.Receipt = now.SLO, now.Receipt
	return nil
}

// readAll reads the call for all models behind its name: what chooses under a lock shall not read.
func (c *Call) readAll(ctx context.Context) error {
	for i := 0; c.alias != nil && i < len(c.alias.models); i++ {
		if err := c.become(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// chooseAmong chooses among the models behind a name. Servers that are out are asked when no model has
// another one.
func (c *Call) chooseAmong(ctx context.Context) (endpick.Lease, error) {
	a := c.alias
	var worst error // of the models, that which says most
	for _, strict := range [...]bool{true, false} {
		var passed []error
		for i := range a.models {
			if err := c.become(ctx, i); err != nil {
				return endpick.Lease{}, err
			}
			lease, err := c.chooseFor(strict)
			switch {
			case err == nil:
				c.story.model, c.story.passed = a.models[i], passed
				return lease, nil
			case !errors.As(err, new(*endpick.NoEndpointError)) && !errors.As(err, new(*endpick.ContextError)):
				return lease, err
			case worst == nil || waits(err) && !waits(worst) || !unknownModel(err) && (unknownModel(worst) || StatusOf(worst) < StatusOf(err)):
				worst = err
			}
			passed = append(passed, err)
		}
		if waits(worst) {
			break // it waits
		}
	}
	return endpick.Lease{}, worst
}
