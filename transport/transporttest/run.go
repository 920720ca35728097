package transporttest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/endpick/endpick"
)

// patience is the time limit for anything that has to happen.
const patience = 30 * time.Second

// Run checks what a host does with leases while an engine misbehaves. newHost returns
// the host as a handler that serves /v1/chat/completions of the OpenAI API through
// endpoints of the router; it is called for each fault, with a router of one endpoint
// whose Address is "host:port".
//
// After each request, whether it was answered, broke off or was abandoned by its
// client, Run checks that the client got an answer or an end, and did not hear that a
// response is complete if the engine broke it off; that every lease was closed, once
// and not by time, so that nothing is in flight; that leases ended as failed,
// completed or canceled according to what happened; and that the host has also left
// an engine whose client has left.
func Run(t *testing.T, newHost func(t *testing.T, router *endpick.Router) http.Handler) {
	t.Helper()
	run(t, newHost, false)
}

// RunPicker is Run for a host that does not send the requests itself, and learns what
// came of a response but not why it ended, such as an Envoy's endpoint picker: if an
// engine breaks off after a good header, the client may seem to have left. newHost
// returns the picker with something that sends the requests.
func RunPicker(t *testing.T, newHost func(t *testing.T, router *endpick.Router) http.Handler) {
	t.Helper()
	run(t, newHost, true)
}

func run(t *testing.T, newHost func(t *testing.T, router *endpick.Router) http.Handler, picker bool) {
	var k kit
	for _, f := range faults() {
		if picker && f.cut {
			f.ends = anyhow
		}
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			wrong, tried := k.try(&f, func(r *endpick.Router) http.Handler { return newHost(t, r) }, patience)
			if !tried {
				t.Skipf("not tried: %d faults have been waited for in vain", enough)
			}
			if wrong != "" {
				t.Fatalf("The engine %s. %s", f.name, wrong)
			}
		})
	}
}

// enough is how many faults may fail by waiting in vain before no others are tried. A
// host that leaves everything open would otherwise keep its author waiting for an hour.
const enough = 4

// kit is one run of all faults.
type kit struct{ vain atomic.Int32 }

// try checks a fault, unless enough others have been waited for in vain.
func (k *kit) try(f *fault, newHost func(*endpick.Router) http.Handler, patience time.Duration) (wrong string, tried bool) {
	if k.vain.Load() >= enough {
		return "", false
	}
	start := time.Now()
	wrong = f.check(newHost, patience)
	if wrong != "" && time.Since(start) >= patience {
		k.vain.Add(1)
	}
	return wrong, true
}

// spy records how leases end.
type spy struct {
	mu    sync.Mutex
	ended []endpick.Status
}

func (*spy) Score(_ *endpick.Request, _ []endpick.Candidate, dst []float64) { clear(dst) }

func (s *spy) Done(_ *endpick.Event, o *endpick.Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = append(s.ended, o.Status)
}

// witness is a host whose panics are recorded.
type witness struct {
	http.Handler
	panicked atomic.Pointer[string] // the first panic other than http.ErrAbortHandler
}

func (h *witness) ServeHTTP(w http.ResponseWriter, in *http.Request) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if v != http.ErrAbortHandler {
			text := fmt.Sprintf("The host panicked: %v\n\n%s", v, debug.Stack())
			h.panicked.CompareAndSwap(nil, &text)
		}
		panic(v)
	}()
	h.Handler.ServeHTTP(w, in)
}

// check tries one fault, and returns what is wrong.
func (f *fault) check(newHost func(*endpick.Router) http.Handler, patience time.Duration) string {
	e, err := startEngine(f)
	if err != nil {
		return err.Error()
	}
	defer e.close()
	s := &spy{}
	router, err := endpick.New(endpick.Config{
		Endpoints: []endpick.Endpoint{{ID: "engine", Address: e.listener.Addr().String()}},
		Policy:    endpick.Policy{Scorers: []endpick.Weighted{{Scorer: s, Weight: 1}}},
	})
	if err != nil {
		return err.Error()
	}
	handler := &witness{Handler: newHost(router)}
	host := httptest.NewUnstartedServer(handler)
	host.Config.ErrorLog = log.New(io.Discard, "", 0)
	host.Start()
	defer func() {
		host.CloseClientConnections()
		e.close() // unblocks a host that still waits for it
		host.Close()
	}()

	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if f.leaves {
		go func() {
			select {
			case <-e.asked:
			case <-ctx.Done():
			}
			cancel()
		}()
	}
	client := &http.Client{
		Transport:     &http.Transport{DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	defer client.CloseIdleConnections() // only when the lease is closed: a client that has left is canceled
	whole, err := f.ask(ctx, client, host.URL)
	if err != nil {
		return err.Error()
	}
	if p := handler.panicked.Load(); p != nil {
		return *p
	}
	if !f.leaves && ctx.Err() != nil {
		return fmt.Sprintf("The client has waited for %v and has neither an answer nor an end: a request that fails is failed at once.", patience)
	}
	if f.cut && whole {
		return "The engine has broken off within its answer, and the client is told that it has all of it: break the client's connection off too, or send an error."
	}
	cancel()
	if wrong := settled(router, patience); wrong != "" {
		return wrong
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ends := f.ends
	if ends == nil {
		ends = failed
	}
	if len(s.ended) == 0 {
		return "No lease was ever opened: the host has to ask the router for an endpoint."
	}
	if f.leaves {
		select {
		case <-e.left:
		case <-time.After(patience):
			return "The client has gone, and the engine is still at work for nobody: cancel the request to it when the client's context is done."
		}
	}
	if last := s.ended[len(s.ended)-1]; !slices.Contains(ends, last) {
		return fmt.Sprintf("The lease was closed as %v, and should be as %s: Outcome.Status tells who is to blame, and what may be learned from.", last, orOf(ends))
	}
	return ""
}

// ask sends the request to a host, and reports whether its answer seems to be whole.
func (f *fault) ask(ctx context.Context, client *http.Client, host string) (whole bool, err error) {
	body := fmt.Sprintf(`{"model":"m","stream":%v,"messages":[{"role":"user","content":"%s"}]}`, f.stream, strings.Repeat("Tell me a story. ", 20))
	req, err := http.NewRequestWithContext(ctx, "POST", host+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return false, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return false, nil
	}
	defer resp.Body.Close()
	// A connection that has left HTTP does not observe the context.
	defer context.AfterFunc(ctx, func() { resp.Body.Close() })()
	answer, err := io.ReadAll(resp.Body)
	return err == nil && resp.StatusCode == http.StatusOK && !bytes.Contains(answer, []byte(`"error"`)), nil
}

func orOf(ends []endpick.Status) string {
	var words []string
	for _, s := range ends {
		words = append(words, s.String())
	}
	return strings.Join(words, " or ")
}

// settled waits until nothing is in flight, and returns what remains.
func settled(r *endpick.Router, patience time.Duration) string {
	for deadline := time.Now().Add(patience); r.Stats().OpenLeases > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Sprintf("%d of %d leases are still open %v after the request has ended: every lease is closed with Done, whatever happens.",
				r.Stats().OpenLeases, r.Stats().Routed, patience)
		}
	}
	for _, e := range r.Endpoints() {
		if e.Candidate.InFlight != (endpick.InFlight{}) {
			return fmt.Sprintf("%+v is in flight, and no lease is open.", e.Candidate.InFlight)
		}
	}
	switch s := r.Stats(); {
	case s.Routed != s.Closed:
		return fmt.Sprintf("%d leases were opened and %d closed.", s.Routed, s.Closed)
	case s.Reaped > 0:
		return fmt.Sprintf("%d leases were closed by time alone.", s.Reaped)
	case s.Panics > 0:
		return fmt.Sprintf("%d stages have panicked.", s.Panics)
	}
	return ""
}
