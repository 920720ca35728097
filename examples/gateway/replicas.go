package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport/health"
	"github.com/endpick/endpick/transport/replica"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// replicaSettings say how the gateways in front of one fleet reach each other.
type replicaSettings struct {
	NATS        string        `yaml:"nats"`
	Fleet       string        `yaml:"fleet"`
	Name        string        `yaml:"name"`
	Credentials string        `yaml:"credentials"`
	CA          string        `yaml:"ca"`
	Cert        string        `yaml:"cert"`
	Key         string        `yaml:"key"`
	LoadOnly    bool          `yaml:"load_only"`
	Forget      time.Duration `yaml:"forget"`
}

// fleetName matches what can be part of a NATS subject.
var fleetName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func (s *settings) validateReplicas() error {
	r := s.Replicas
	if r == nil {
		return nil
	}
	if s.HashKey == "" {
		return s.bad("replicas", "needs hash_key, which is the same for all gateways of a fleet")
	}
	if r.NATS == "" {
		return s.bad("replicas.nats", "is missing")
	}
	for i, at := range strings.Split(r.NATS, ",") {
		// Not shown in the error, because it may contain a password.
		u, err := url.Parse(strings.TrimSpace(at))
		if err != nil || u.Hostname() == "" || u.Scheme != "nats" && u.Scheme != "tls" {
			return s.bad("replicas.nats", "URL %d is not nats://HOST[:PORT] or tls://HOST[:PORT]", i+1)
		}
	}
	if r.Fleet == "" {
		return s.bad("replicas.fleet", "is missing: the name of the fleet, the same for its gateways and for no others")
	}
	if !fleetName.MatchString(r.Fleet) {
		return s.bad("replicas.fleet", "%q is not up to 64 letters, digits, - and _", r.Fleet)
	}
	if r.Credentials != "" {
		if err := checkCredentials(r.Credentials); err != nil {
			return s.bad("replicas.credentials", "%v", err)
		}
	}
	if (r.Cert == "") != (r.Key == "") {
		return s.bad("replicas", "needs both cert and key, or neither")
	}
	security := r.security()
	for _, field := range slices.Sorted(maps.Keys(security)) {
		if err := security[field](new(nats.Options)); err != nil {
			return s.bad("replicas."+field, "%v", err)
		}
	}
	// The replica validates the rest.
	if _, err := replica.New(r.config(s.hashKey, nil)); err != nil {
		if bad, ok := errors.AsType[*endpick.ConfigError](err); ok {
			return s.bad("replicas."+strings.ToLower(strings.TrimPrefix(bad.Field, "replica.Config.")), "%s", bad.Reason)
		}
		return s.bad("replicas", "%v", err)
	}
	return nil
}

// checkCredentials checks that a file has credentials of a NATS user, without showing them.
func checkCredentials(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	defer clear(text)
	if jwt, err := nkeys.ParseDecoratedJWT(text); err != nil || strings.Count(jwt, ".") != 2 {
		return errors.New("has no JWT of a user")
	}
	pair, err := nkeys.ParseDecoratedNKey(text)
	if err != nil {
		return errors.New("has no key of a user")
	}
	pair.Wipe()
	return nil
}

// security has the options that authenticate this gateway and the NATS server, by field.
// All files are read again for each connection.
func (r *replicaSettings) security() map[string]nats.Option {
	all := map[string]nats.Option{}
	if r.CA != "" {
		all["ca"] = nats.RootCAs(r.CA)
	}
	if r.Cert != "" {
		all["cert"] = nats.ClientCert(r.Cert, r.Key)
	}
	if r.Credentials != "" {
		all["credentials"] = nats.UserCredentials(r.Credentials)
	}
	return all
}

func (r *replicaSettings) config(key prefix.Key, monitor *health.Monitor) replica.Config {
	name := r.Name
	if name == "" {
		name, _ = os.Hostname() // without a name it shows as a number
	}
	return replica.Config{Key: key, Name: name, DisableIndex: r.LoadOnly, Forget: r.Forget, Health: monitor}
}

// sharing is the exchange with other gateways in front of the fleet: one replica after
// the other, as the settings change. All its methods except status are called from one
// goroutine at a time.
type sharing struct {
	log    *slog.Logger
	shared atomic.Pointer[shared] // nil: no replicas
}

// shared is a running replica.
type shared struct {
	replicaSettings
	key     prefix.Key
	replica *replica.Replica
	refused few // what of that is logged in a minute
	stop    func()
	failure atomic.Pointer[error] // why NATS could not be reached the last time
}

// wanted returns the replica that the settings ask for, which may be the running one;
// nil: none.
func (h *sharing) wanted(s *settings, monitor *health.Monitor) (*shared, error) {
	if s.Replicas == nil {
		return nil, nil
	}
	now := h.shared.Load()
	if now != nil && now.replicaSettings == *s.Replicas && now.key.String() == s.hashKey.String() {
		return now, nil
	}
	r, err := replica.New(s.Replicas.config(s.hashKey, monitor))
	return &shared{replicaSettings: *s.Replicas, key: s.hashKey, replica: r}, err
}

// take stops the running replica and starts one that the router's policy contains,
// unless they are the same.
func (h *sharing) take(next *shared, router *endpick.Router) {
	now := h.shared.Load()
	if now == next {
		return
	}
	if now != nil {
		now.stop()
	}
	if next != nil {
		next.stop = background(
			func(ctx context.Context) { next.run(ctx, router, h.log) },
			func(ctx context.Context) { next.watch(ctx, h.log) },
		)
	}
	h.shared.Store(next)
}

func (h *sharing) status() (s replica.Status, ok bool) {
	if now := h.shared.Load(); now != nil {
		return now.replica.Status(), true
	}
	return s, false
}

// farewell is how long a gateway that stops waits for NATS to receive its last messages.
const farewell = time.Second

// again is the pause before a connection is replaced that NATS has closed for good.
const again = time.Second

// run runs the replica over one connection after the other until ctx is done. An
// unreachable NATS does not end a connection; some errors do.
func (s *shared) run(ctx context.Context, router *endpick.Router, log *slog.Logger) {
	for ctx.Err() == nil {
		if err := s.connect(ctx, router, log); err != nil {
			log.Error("replicas", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
}

func (s *shared) connect(ctx context.Context, router *endpick.Router, log *slog.Logger) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn, err := replica.Dial(s.NATS, append(slices.Collect(maps.Values(s.security())),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { s.failure.Store(&err) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { // one for each message, if it takes none
			if more, ok := s.refused.next(time.Now().Truncate(time.Minute)); ok {
				log.Warn("replicas", append([]any{"error", err}, unlogged(more)...)...)
			}
		}),
		nats.ClosedHandler(func(c *nats.Conn) {
			cancel(fmt.Errorf("NATS has ended the connection: %w", cmp.Or(c.LastError(), nats.ErrConnectionClosed)))
		}))...)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := s.replica.Run(ctx, router, replica.NATS(conn, s.Fleet)); err != nil {
		return err
	}
	if conn.IsConnected() {
		_ = conn.FlushTimeout(farewell)
	}
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// watch logs when gateways join or leave.
func (s *shared) watch(ctx context.Context, log *slog.Logger) {
	was := ""
	every(ctx, 250*time.Millisecond, func() {
		st := s.replica.Status()
		if !st.Running {
			return
		}
		level, others := slog.LevelInfo, live(&st)
		if !st.Connected || others == 0 {
			level = slog.LevelWarn
		}
		attributes := []any{"connected", st.Connected, "others", others}
		if err := s.failure.Load(); err != nil && !st.Connected {
			attributes = append(attributes, "error", *err)
		}
		if is := fmt.Sprint(st.Connected, others, len(attributes)); is != was {
			was = is
			log.Log(ctx, level, "replicas", attributes...)
		}
	})
}

// live is how many others are known completely.
func live(s *replica.Status) (n int) {
	for _, p := range s.Peers {
		if p.Live {
			n++
		}
	}
	return n
}
