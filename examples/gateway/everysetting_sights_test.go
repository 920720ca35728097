package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/discover"
	"github.com/endpick/endpick/transport/replica"
)

// What can be seen of a gateway, for TestEverySetting.

// host tells who can reach a URL of the gateway.
func (w *world) host(at string) string {
	u, err := url.Parse(at)
	require.NoError(w, err)
	ip := netip.MustParseAddr(u.Hostname())
	u.Host = net.JoinHostPort("127.0.0.1", u.Port())
	_, _ = get(w.T, u.String())
	if ip.IsUnspecified() {
		return "everybody"
	}
	require.True(w, ip.IsLoopback())
	return "this machine"
}

func (w *world) clients() string   { return w.host(w.gateway().url) }
func (w *world) operators() string { return w.host(w.gateway().admin) }

// reply is the answer to a GET of /readyz over a client's transport.
func (w *world) reply(tr *http.Transport) *http.Response {
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Get(w.gateway().url + "/readyz")
	if err != nil {
		return nil
	}
	require.NoError(w, resp.Body.Close())
	return resp
}

func (w *world) certificate() string {
	resp := w.reply(&http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}})
	return resp.TLS.PeerCertificates[0].SerialNumber.String()
}

func (w *world) http2() string {
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	if resp := w.reply(tr); resp != nil {
		return fmt.Sprint(resp.ProtoMajor)
	}
	return "no"
}

// servers says which servers get a request.
func (w *world) servers() string {
	w.ask()
	return w.served()
}

// metric returns the first value of a metric whose name and labels begin so; NaN: there is none.
func (w *world) metric(prefix string) float64 {
	_, page := get(w.T, w.gateway().admin+"/metrics")
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, prefix) {
			v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
			require.NoError(w, err)
			return v
		}
	}
	return math.NaN()
}

// endpoint is the one that has served a request, as the metrics call it.
func (w *world) endpoint() string {
	w.ask()
	_, page := get(w.T, w.gateway().admin+"/metrics")
	return regexp.MustCompile(`endpick_endpoint_attempts_total\{.*endpoint="([^"]*)"`).FindStringSubmatch(page)[1]
}

// described sees an endpoint as the router knows it.
func described(see func(*endpick.Endpoint) any) func(*world) string {
	return func(w *world) string {
		return fmt.Sprint(see(w.built().router.Endpoints()[0].Candidate.Endpoint))
	}
}

func (w *world) addresses() string {
	return w.built().router.Endpoints()[0].Candidate.Endpoint.Address
}

func (w *world) source() string   { return w.settings().source().(*discover.SRV).Name }
func (w *world) interval() string { return w.built().watching(w.settings()).Interval.String() }

// sent sees a header of the request that a server gets.
func sent(header string) func(*world) string {
	return func(w *world) string {
		w.ask()
		return w.one.all()[0].Header.Get(header)
	}
}

// statusOf sees how a request to a path is answered.
func statusOf(path string) func(*world) string {
	return func(w *world) string { return fmt.Sprint(w.post(path, "{}").status) }
}

// idleServers waits until nothing is in flight.
func (w *world) idleServers() {
	require.Eventually(w, func() bool { return w.metric("endpick_open_leases") == 0 }, 30*time.Second, time.Millisecond)
}

// spread asks the same four times, and says how often one server was asked.
func (w *world) spread() string {
	for range 4 {
		require.Equal(w, 200, w.post("/v1/chat/completions", chat(prose(1, 4000))).status)
		w.idleServers()
	}
	return fmt.Sprint(max(len(w.one.all()), len(w.two.all())), " at most")
}

// sequence says which servers get sixteen requests.
func (w *world) sequence() (all string) {
	for before := 0; len(all) < 16; {
		w.ask()
		now := len(w.one.all())
		all += strconv.Itoa(now - before)
		before = now
	}
	return all
}

// tokenizer is the server that is asked for token ids, and its path.
func (w *world) tokenizer() string {
	w.ask()
	for i, m := range []*modelServer{w.one, w.two} {
		for _, r := range m.all() {
			return fmt.Sprint(i+1, ": ", r.URL.Path)
		}
	}
	return ""
}

func (w *world) tokensOfNobody() string {
	w.one.then(forever)
	w.gateway()
	return w.lasts(func() { w.ask() })
}

func (w *world) blockTokens() string {
	w.post("/v1/chat/completions", chat(prose(1, 4000)))
	return fmt.Sprint(w.records()[0].BlockTokens)
}

func (w *world) admitted() string { return fmt.Sprint(w.ask("X-Api-Key", annsKey).status) }

func (w *world) targets() string {
	w.ask("X-Api-Key", annsKey)
	r := w.records()[0]
	return fmt.Sprint(r.SLOTTFTMillis, " and ", r.SLOTPOTMillis)
}

// refusal asks as ann until she is refused.
func (w *world) refusal() (a answer, before int) {
	for {
		if a = w.ask("X-Api-Key", annsKey); a.status != 200 {
			return a, before
		}
		before++
	}
}

// retryAfter is the wait that a refused tenant is told, as a power of ten.
func (w *world) retryAfter() string {
	a, _ := w.refusal()
	seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
	require.NoError(w, err)
	return fmt.Sprint("10^", math.Round(math.Log10(float64(seconds))))
}

func (w *world) admittedTimes() string {
	_, before := w.refusal()
	return strconv.Itoa(before)
}

// full sends requests that do not end until one is refused, and returns how many reached the
// server, and how many were held.
func (w *world) full() (running, held int) {
	w.one.then(forever)
	w.gateway()
	for {
		refused := make(chan answer, 1)
		go func() { refused <- w.ask("X-Api-Key", annsKey) }()
		for wait := true; wait; {
			select {
			case <-w.one.arrived:
				running++
				wait = false
			case a := <-refused:
				require.Equal(w, 429, a.status)
				return running, held
			case <-time.After(time.Millisecond):
				if w.metric("endpick_queue_requests") > float64(held) {
					held++
					wait = false
				}
			}
		}
	}
}

func (w *world) running() string {
	running, _ := w.full()
	return strconv.Itoa(running)
}

func (w *world) held() string {
	_, held := w.full()
	return strconv.Itoa(held)
}

// waits holds a request.
func (w *world) waits() string {
	w.one.then(forever)
	w.gateway()
	go w.ask()
	<-w.one.arrived
	return w.lasts(func() { w.ask() })
}

func (w *world) trusted() string {
	w.ask(transport.PriorityHeader, "7")
	return fmt.Sprintf("%q and %d", w.one.all()[0].Header.Get(transport.PriorityHeader), w.records()[0].Priority)
}

func (w *world) blocksOfTwo() string {
	for _, key := range []string{annsKey, bobsKey} {
		require.Equal(w, 200, w.post("/v1/chat/completions", chat(prose(1, 4000)), "X-Api-Key", key).status)
	}
	all := w.records()
	require.NotEmpty(w, all[0].Blocks)
	if all[0].Blocks[0] == all[1].Blocks[0] {
		return "shared"
	}
	return "apart"
}

func (w *world) blocks() string {
	w.post("/v1/chat/completions", chat(prose(1, 4000)))
	return fmt.Sprint(w.records()[0].Blocks)
}

// shares sees how the gateway shares with others; internal/lab/conformance/replicas tests what that does.
func shares(see func(replica.Config) any) func(*world) string {
	return func(w *world) string {
		s := w.settings()
		return fmt.Sprint(see(s.Replicas.config(s.hashKey, nil)))
	}
}

// recordings are the files after six requests.
func (w *world) recordings() string {
	for range 6 {
		w.ask()
	}
	w.stop()
	all, err := filepath.Glob(filepath.Join(w.dir, "*.jsonl*"))
	require.NoError(w, err)
	for i := range all {
		all[i] = filepath.Base(all[i])
	}
	return strings.Join(all, " ")
}

func (w *world) rotated() string {
	return strconv.FormatBool(strings.Contains(w.recordings(), "r.jsonl.1"))
}

func (w *world) recordedText() string {
	w.ask()
	return strconv.Quote(w.records()[0].Prompt.Messages[0].Text)
}

// price is what the debug page says that a second prompt has cost, of which only the time is new.
func (w *world) price() string {
	w.one.then(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[],"usage":{"prompt_tokens":1000,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens":1}}`)
	})
	for _, now := range []string{"10:30", "10:31", "10:32"} {
		w.post("/v1/chat/completions", strings.Replace(chat("Hello."), "[", `[{"role":"system","content":"It is `+now+`. `+prose(1, 4000)+`"},`, 1))
	}
	_, text := get(w.T, w.gateway().admin+"/debug/endpick/caches")
	return regexp.MustCompile(`tokens, ([0-9.]+), were computed again`).FindStringSubmatch(textIn(page(w.T, text)))[1]
}

func (w *world) firstOfLog() string {
	w.gateway()
	return w.c.stderr.String()[:1]
}

// handshake says whether a client that does not speak TLS is logged.
func (w *world) handshake() string {
	w.gateway()
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.c.url, "https://"))
	require.NoError(w, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "Hello.\n\n")
	require.NoError(w, err)
	_, _ = io.Copy(io.Discard, conn)
	patience := time.Now().Add(quiet)
	if w.value == "debug" {
		patience = time.Now().Add(30 * time.Second)
	}
	for ; time.Now().Before(patience); time.Sleep(time.Millisecond) {
		if strings.Contains(w.c.stderr.String(), "level=DEBUG") {
			return "logged"
		}
	}
	return "not logged"
}

func (w *world) logged() string {
	w.ask()
	w.stop()
	return strconv.Itoa(strings.Count(w.c.stderr.String(), "msg=request"))
}

// called is which of two listeners is called first.
func (w *world) called() string { return told("(.*)")(w) }

// told waits for a call with a line that matches, and returns its first group.
func told(pattern string) func(*world) string {
	want := regexp.MustCompile(pattern)
	return func(w *world) string {
		w.gateway()
		patience := time.After(30 * time.Second)
		for {
			select {
			case line := <-w.calls:
				// What was there before a reload has called, too.
				if m := want.FindStringSubmatch(line); m != nil && (w.value == w.row.values[0] || m[1] != w.row.want[0]) {
					return m[1]
				}
			case <-patience:
				return "nothing"
			}
		}
	}
}
