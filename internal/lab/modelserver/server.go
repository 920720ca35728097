package modelserver

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
)

// The defaults of a Config.
const (
	DefaultModel        = "demo-8b"
	DefaultOutputTokens = 128      // of a request without max_tokens
	MaxBodyBytes        = 32 << 20 // of a request
	MaxSequences        = 64       // choices of one request
)

// Far from overflowing a time.Duration, and far beyond use.
const minSpeed, maxSpeed = 1e-3, 1e6

// Config describes a model server. The zero value serves [DefaultModel] with
// the engine's defaults.
type Config struct {
	// Model is the name it serves. Empty: DefaultModel.
	Model string
	// Engine is the hardware, the size of its KV cache and the limits of its
	// batch. Zero: the engine's defaults.
	Engine engine.Config
	// Speed is how many seconds of the engine's time pass per second. Zero: 1.
	Speed float64
}

func (c *Config) validate() error {
	c.Speed = cmp.Or(c.Speed, 1)
	if !(c.Speed >= minSpeed && c.Speed <= maxSpeed) {
		return fmt.Errorf("modelserver: config: Speed %v is not within [%v, %v]", c.Speed, minSpeed, maxSpeed)
	}
	c.Model = cmp.Or(c.Model, DefaultModel)
	return nil
}

// errStopped is the error of requests after Close.
var errStopped = errors.New("modelserver: the server is stopped")

// Server is one model server. Make it with [New] and end it with
// [Server.Close]; it runs a goroutine until then. It is safe for concurrent use.
type Server struct {
	config  Config
	limit   int // size of the KV cache in tokens
	block   int // tokens per block
	driver  *driver
	http    http.Server
	started time.Time
	nonce   uint32 // distinguishes the ids of servers

	mu     sync.Mutex        // guards the fields below
	failed map[string]int    // number of errors that scripts have caused, by key
	stored map[string][]turn // the conversations of responses, by their ids
}

// New returns a running server, which is not listening yet.
func New(config Config) (*Server, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	d, err := newDriver(config.Engine, config.Speed)
	if err != nil {
		return nil, fmt.Errorf("modelserver: %w", err)
	}
	c := d.engine.Config()
	s := &Server{
		config: config, limit: c.Blocks * c.BlockTokens, block: c.BlockTokens,
		driver: d, started: time.Now(), nonce: rand.Uint32(), failed: map[string]int{}, stored: map[string][]turn{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", s.complete(parseChat, writeError))
	mux.HandleFunc("POST /v1/completions", s.complete(parseCompletion, writeError))
	mux.HandleFunc("POST /v1/messages", s.complete(parseMessages, writeMessageError))
	mux.HandleFunc("POST /v1/messages/count_tokens", s.countTokens)
	mux.HandleFunc("POST /v1/responses", s.complete(parseResponses, writeError))
	mux.HandleFunc("POST /v1/{api}/render", s.noRender)
	mux.HandleFunc("POST /v1/chat/completions/render", s.noRender)
	mux.HandleFunc("POST /tokenize", s.tokenize)
	mux.HandleFunc("GET /v1/models", s.models)
	mux.HandleFunc("GET /v1/models/{model}", s.model)
	mux.HandleFunc("GET /health", s.health)
	mux.HandleFunc("GET /metrics", s.metrics)
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"version": "0.32.0"})
	})
	s.http.Handler = mux
	s.http.ReadHeaderTimeout = 10 * time.Second
	return s, nil
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.http.Handler.ServeHTTP(w, r) }

// Serve answers the requests of a listener until Close, and closes it. It then returns nil.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close stops at once and breaks every connection, like a killed process.
func (s *Server) Close() error {
	err := s.http.Close()
	s.driver.stop()
	return err
}

// Load is the current state of the engine.
func (s *Server) Load() engine.Load { return s.driver.state().now }

// Totals are the engine's counts since New.
func (s *Server) Totals() engine.Totals { return s.driver.state().Totals }
