package transport

import (
	"context"
	"hash/maphash"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
	"github.com/endpick/endpick/transport/internal/dialect"
	"github.com/endpick/endpick/transport/internal/health"
)

// Dispatcher reads requests, chooses where to send them, and learns from the outcome, for
// programs that send them themselves. Make one with [NewDispatcher]. It is safe for
// concurrent use and starts no goroutine of its own; a timer for each request notices
// endpoints that say nothing.
type Dispatcher struct {
	config Config
	reader *dialect.Reader
	health *health.Health
	budget *health.Budget
	usage  usageTable
	now    func() time.Time // the router's
	names  atomic.Pointer[map[string]Name]
	// What lasts beyond calls.
	conversations conversations
	sleepers      sleepers

	denied, panics atomic.Uint64 // retries without a budget; callbacks of the Config
}

// NewDispatcher returns a dispatcher, or an [endpick.ConfigError], also for fields that
// only a Transport uses: Base, Wrap, the time limits, Queue, Describe, Record, Observe and
// EnableEndpointHeader.
func NewDispatcher(config Config) (*Dispatcher, error) {
	if field := config.sending(); field != "" {
		return nil, check.Bad("transport.Config."+field, "is for a Transport, which sends requests")
	}
	config.DisableResume = true
	return newDispatcher(config)
}

func newDispatcher(config Config) (*Dispatcher, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	burst := float64(config.RetryBurst)
	d := &Dispatcher{config: config, budget: health.NewBudget(config.RetryShare, burst/10, burst), now: config.Router.Now}
	d.conversations.seed = maphash.MakeSeed()
	d.sleepers.asleep, d.sleepers.called = map[string]time.Time{}, map[string]time.Time{}
	if err := d.SetNames(config.Names); err != nil {
		return nil, err
	}
	var tokens func(context.Context, *endpick.Request, string, []byte) ([]uint32, int)
	if config.Tokens != nil {
		tokens = d.tokens
	}
	var err error
	d.reader, err = dialect.NewReader(dialect.Config{
		MaxItems: config.MaxItems, SharedCache: config.SharedCache, HashKey: config.HashKey, Tokens: tokens,
		DisableUsage: config.DisableUsage, Pass: config.Pass, Resume: !config.DisableResume,
		Sketch: config.Record != nil, SketchText: config.RecordText,
	})
	if err != nil {
		return nil, err
	}
	d.health = health.New(config.Router, 2)
	if config.Health != nil {
		d.health = config.Health.Core()
	}
	return d, nil
}

// MaxBodyBytes returns the length of the longest body that Read accepts, for
// programs that read one.
func (d *Dispatcher) MaxBodyBytes() int64 { return d.config.MaxBodyBytes }

// Callbacks belong to the host and may panic, even in goroutines where an
// unrecovered panic would end the process. A panic costs only its own record or
// warning or, in Describe, its own request; it is counted and reported.

// guard must be deferred around a call into the host.
func (d *Dispatcher) guard(in *http.Request, callback string) {
	if v := recover(); v != nil {
		d.panicked(in, callback, v)
	}
}

// rescue is guard where the panic is the error of what calls.
func (d *Dispatcher) rescue(in *http.Request, callback string, err *error) {
	if v := recover(); v != nil {
		*err = d.panicked(in, callback, v)
	}
}

func (d *Dispatcher) panicked(in *http.Request, callback string, v any) error {
	err := &endpick.PanicError{Stage: "transport." + callback, Value: v, Stack: debug.Stack()}
	d.panics.Add(1)
	d.warn(in, err)
	return err
}

// warn calls Config.Warn, and ignores a panic of it.
func (d *Dispatcher) warn(in *http.Request, err error) {
	if d.config.Warn == nil {
		return
	}
	defer func() {
		if recover() != nil {
			d.panics.Add(1)
		}
	}()
	d.config.Warn(in, err)
}

// tokens calls Config.Tokens. If that panics, the prompt is cut by its text.
func (d *Dispatcher) tokens(ctx context.Context, req *endpick.Request, path string, body []byte) (ids []uint32, rest int) {
	defer d.guard(nil, "Config.Tokens")
	return d.config.Tokens(ctx, req, path, body)
}
