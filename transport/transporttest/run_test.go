package transporttest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// gateway is a minimal host that breaks one of its promises.
type gateway struct {
	router *endpick.Router
	breaks string
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, in *http.Request) {
	if g.breaks == "asks nobody" {
		w.WriteHeader(http.StatusTeapot)
		return
	}
	if g.breaks == "panics" {
		panic("out of luck")
	}
	body, _ := io.ReadAll(in.Body)
	streams := strings.Contains(string(body), `"stream":true`)
	lease, err := g.router.Route(endpick.Request{Model: "m", Stream: streams})
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if g.breaks == "asks twice" {
		_, _ = g.router.Route(endpick.Request{Model: "m"})
	}
	outcome := endpick.Outcome{Status: endpick.Canceled}
	if g.breaks != "forgets leases" {
		defer func() { lease.Done(outcome) }()
	}
	ctx := in.Context()
	if g.breaks == "leaves engines at work" {
		ctx = context.WithoutCancel(ctx)
	}
	out, _ := http.NewRequestWithContext(ctx, "POST", "http://"+lease.Endpoint().Address+in.URL.Path, strings.NewReader(string(body)))
	once := http.Transport{DisableCompression: true}
	defer once.CloseIdleConnections()
	resp, err := once.RoundTrip(out)
	cut, refused := false, false
	if err == nil {
		refused = resp.StatusCode >= 400 && resp.StatusCode < 500
		w.WriteHeader(max(resp.StatusCode, 200))
		if g.breaks == "closes at the header" {
			lease.Done(endpick.Outcome{})
		}
		var all []byte
		all, err = io.ReadAll(resp.Body)
		resp.Body.Close()
		w.Write(all)
		cut = err != nil && resp.StatusCode == http.StatusOK
		if err == nil && (resp.StatusCode >= 400 || streams && !strings.Contains(string(all), "[DONE]") && !strings.Contains(string(all), "choices")) {
			err = errors.New("it failed")
		}
		if err == nil && streams && strings.Contains(string(all), "data:") && !strings.Contains(string(all), "finish_reason") && !strings.Contains(string(all), "[DONE]") {
			err = io.ErrUnexpectedEOF
		}
		if strings.Contains(string(all), `{"error"`) {
			err = errors.New("it failed")
		}
	}
	switch {
	case in.Context().Err() != nil:
	case err != nil && g.breaks == "calls everything whole":
		outcome.Status = endpick.Completed
	case err != nil && g.breaks == "blames the client":
	case cut && g.breaks == "calls cuts departures":
	case err != nil:
		if g.breaks == "keeps clients waiting" {
			<-in.Context().Done()
		}
		outcome.Status = endpick.Failed
		if refused && g.breaks != "blames the engine" {
			outcome.Status = endpick.Refused
		}
	default:
		outcome.Status = endpick.Completed
	}
	if err != nil && in.Context().Err() == nil && g.breaks != "keeps it from clients" {
		panic(http.ErrAbortHandler)
	}
}

func TestASimpleHostConforms(t *testing.T) {
	names := map[string]bool{}
	for _, name := range Faults() {
		assert.False(t, names[name], name)
		names[name] = true
	}
	assert.GreaterOrEqual(t, len(names), 85)
	Run(t, func(_ *testing.T, r *endpick.Router) http.Handler { return &gateway{router: r} })
}

// A picker can't know which side broke off; everything else it learns as other hosts do.
func TestAPickerConforms(t *testing.T) {
	RunPicker(t, func(_ *testing.T, r *endpick.Router) http.Handler {
		return &gateway{router: r, breaks: "calls cuts departures"}
	})
	for _, f := range faults() {
		host := func(r *endpick.Router) http.Handler { return &gateway{router: r, breaks: "calls cuts departures"} }
		if f.cut && f.name == "closes after the first token" {
			assert.Contains(t, f.check(host, patience), "closed as canceled, and should be as failed")
		}
	}
}

// A host that forgets its leases makes the kit wait for each of them: it is told of the
// first few, and not after an hour.
func TestTheKitGivesUpOnAHost(t *testing.T) {
	var k kit
	var reported []string
	for _, f := range faults() {
		if f.leaves {
			continue // the engine's own waits are longer
		}
		wrong, tried := k.try(&f, func(r *endpick.Router) http.Handler {
			return &gateway{router: r, breaks: "forgets leases"}
		}, 100*time.Millisecond)
		assert.Equal(t, tried, len(reported) < enough, f.name)
		if tried {
			assert.NotEmpty(t, wrong)
			reported = append(reported, wrong)
		}
	}
	assert.Len(t, reported, enough)

	k = kit{}
	for _, f := range faults()[:enough+2] {
		wrong, tried := k.try(&f, func(r *endpick.Router) http.Handler { return &gateway{router: r, breaks: "asks nobody"} }, patience)
		assert.True(t, tried, "what fails at once is told of every fault")
		assert.NotEmpty(t, wrong)
	}
}

// The kit says in words what a host does wrong.
func TestBrokenHosts(t *testing.T) {
	for _, tc := range []struct{ breaks, fault, says string }{
		{"asks nobody", "sends all events at once", "No lease was ever opened"},
		{"asks nobody", "hangs after the first token", "No lease was ever opened"},
		{"panics", "sends all events at once", "The host panicked: out of luck"},
		{"forgets leases", "sends all events at once", "1 of 1 leases are still open"},
		{"forgets leases", "resets the connection before it reads the request", "1 of 1 leases are still open"},
		{"calls everything whole", "closes after the first token", "The lease was closed as completed, and should be as failed"},
		{"calls everything whole", "answers 503", "The lease was closed as completed, and should be as failed"},
		{"blames the client", "reads the request, then closes the connection", "The lease was closed as canceled, and should be as failed"},
		{"blames the engine", "answers 404", "The lease was closed as failed, and should be as refused"},
		{"blames the engine", "answers 429", "The lease was closed as failed, and should be as refused"},
		{"leaves engines at work", "hangs before the header", "leases are still open"},
		{"leaves engines at work", "hangs after the first token", "leases are still open"},
		{"asks twice", "sends all events at once", "1 of 2 leases are still open"},
		{"closes at the header", "closes after the first token", "The lease was closed as completed, and should be as failed"},
		{"keeps it from clients", "closes after the first token", "the client is told that it has all of it"},
		{"keeps it from clients", "sends less than its Content-Length", "the client is told that it has all of it"},
		{"keeps it from clients", "omits the last chunk", "the client is told that it has all of it"},
		{"keeps clients waiting", "does not speak HTTP", "The client has waited for"},
	} {
		t.Run(tc.breaks+"/"+tc.fault, func(t *testing.T) {
			t.Parallel()
			for _, f := range faults() {
				if f.name != tc.fault {
					continue
				}
				patience := patience
				if strings.HasPrefix(tc.says, "1 of") || strings.Contains(tc.says, "still open") || strings.Contains(tc.says, "waited") {
					patience = 3 * time.Second // the event being waited for never comes
				}
				wrong := f.check(func(r *endpick.Router) http.Handler { return &gateway{router: r, breaks: tc.breaks} }, patience)
				assert.Contains(t, wrong, tc.says)
				return
			}
			require.Fail(t, "no such fault")
		})
	}
}
