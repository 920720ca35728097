package conformance

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
)

// recorder is a listener that keeps every byte sent to its clients.
type recorder struct {
	net.Listener
	mu    sync.Mutex
	conns []*recorded
	clock int // counts writes
}

// recorded is one connection.
type recorded struct {
	net.Conn
	recorder *recorder
	sent     []byte
	marks    []mark
}

// mark is when the bytes from an offset on were sent.
type mark struct{ offset, clock int }

func (r *recorder) Accept() (net.Conn, error) {
	c, err := r.Listener.Accept()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	one := &recorded{Conn: c, recorder: r}
	r.conns = append(r.conns, one)
	return one, nil
}

func (c *recorded) Write(p []byte) (int, error) {
	c.recorder.mu.Lock()
	c.recorder.clock++
	c.marks = append(c.marks, mark{len(c.sent), c.recorder.clock})
	c.sent = append(c.sent, p...)
	c.recorder.mu.Unlock()
	return c.Conn.Write(p)
}

// exchange is one response as sent over the wire.
type exchange struct {
	clock  int
	status int
	header http.Header
	body   string
	cut    bool // the connection broke before the last event, or before the end of a response that does not stream
}

// exchanges returns all responses in the order in which they began.
func (r *recorder) exchanges() (all []exchange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		rest := bytes.NewReader(c.sent)
		buffered := bufio.NewReader(rest)
		for {
			offset := len(c.sent) - rest.Len() - buffered.Buffered()
			resp, err := http.ReadResponse(buffered, nil)
			if err != nil {
				break // the connection has ended, or the client left before the header
			}
			i := sort.Search(len(c.marks), func(i int) bool { return c.marks[i].offset > offset }) - 1
			e := exchange{clock: c.marks[i].clock, status: resp.StatusCode, header: resp.Header}
			if resp.StatusCode == http.StatusSwitchingProtocols {
				left, _ := io.ReadAll(buffered)
				e.body = string(left)
				all = append(all, e)
				break
			}
			body, err := io.ReadAll(resp.Body)
			e.body, e.cut = string(body), errors.Is(err, io.ErrUnexpectedEOF) && !lastEvent.Match(body)
			if len(resp.TransferEncoding) > 0 {
				e.header["Transfer-Encoding"] = resp.TransferEncoding
			}
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b exchange) int { return a.clock - b.clock })
	return all
}

var (
	ids   = regexp.MustCompile(`\b(chatcmpl|cmpl|msg|resp|rs|fc|call|toolu|aitxt)[-_][0-9A-Za-z]{8,}`)
	times = regexp.MustCompile(`("(?:created|created_at|completed_at|timestamp)":)("[^"]*"|[0-9.]+)`)
	// llama.cpp reports how long everything took.
	timings = regexp.MustCompile(`,?"timings":\{[^{}]*\}`)
	// Clients may leave once they have it, before the chunk that ends the body.
	lastEvent = regexp.MustCompile(`(?:\[DONE\]|"(?:message_stop|response\.(?:completed|incomplete|failed))"[^\n]*)\n\n$`)
	host      = regexp.MustCompile(`127\.0\.0\.1:\d+`)
)

// normal numbers IDs in order of appearance and removes times and addresses.
func normal(s string) string {
	names := map[string]string{}
	s = ids.ReplaceAllStringFunc(s, func(id string) string {
		if names[id] == "" {
			prefix := ids.FindStringSubmatch(id)[1]
			names[id] = fmt.Sprintf("%s#%d", prefix, len(names)+1)
		}
		return names[id]
	})
	s = times.ReplaceAllString(s, "${1}0")
	s = timings.ReplaceAllString(s, "")
	return host.ReplaceAllString(s, "HOST")
}

// run is the result of a scenario: what the client received, and what was sent.
type run struct {
	told string
	wire []exchange
}

// values returns a header's values, without what may differ: dates, keys, lengths of
// bodies with other IDs or times, and hop-by-hop values.
func (e *exchange) values(name string) []string {
	switch values := e.header.Values(name); {
	case name == "Keep-Alive" || name == "Date":
		return nil
	case len(values) == 1 && name == "Sec-Websocket-Accept":
		return []string{"any"}
	case len(values) == 1 && name == "Content-Length" && values[0] == strconv.Itoa(len(e.body)):
		return []string{"right"}
	default:
		return values
	}
}

// differences names what two runs do not have in common, each thing once. In an open
// run the client has left, and how much it was sent by then is up to chance. So is
// an error that a client has answered with a retry: it need not read it.
func differences(direct, gateway run, open bool) []string {
	found := map[string]string{}
	if a, b := normal(direct.told), normal(gateway.told); a != b {
		found["what the client is told"] = firstDifference(a, b)
	}
	if len(direct.wire) != len(gateway.wire) {
		found["the number of responses"] = fmt.Sprintf("%d and %d", len(direct.wire), len(gateway.wire))
	}
	for i := range min(len(direct.wire), len(gateway.wire)) {
		a, b := direct.wire[i], gateway.wire[i]
		if a.status != b.status {
			found["status"] = fmt.Sprintf("%d and %d", a.status, b.status)
		}
		names := maps.Clone(a.header)
		maps.Copy(names, b.header)
		for name := range names {
			x, y := a.values(name), b.values(name)
			if !slices.Equal(x, y) {
				found["header "+name] = fmt.Sprintf("%q and %q", x, y)
			}
		}
		x, y := normal(a.body), normal(b.body)
		if asked := i+1 < len(direct.wire) && a.status >= 500; open || asked {
			n := min(len(x), len(y))
			x, y = x[:n], y[:n]
			a.cut, b.cut = false, false
		}
		if x != y {
			found["body"] = firstDifference(x, y)
		}
		if a.cut != b.cut {
			found["end"] = fmt.Sprintf("cut %v and %v", a.cut, b.cut)
		}
	}
	var list []string
	for what, how := range found {
		list = append(list, what+": "+how)
	}
	slices.Sort(list)
	return list
}

func firstDifference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range max(len(x), len(y)) {
		var p, q string
		if i < len(x) {
			p = x[i]
		}
		if i < len(y) {
			q = y[i]
		}
		if p != q {
			return fmt.Sprintf("line %d:\n  directly: %.600s\n  gateway:  %.600s\n", i+1, p, q)
		}
	}
	return ""
}
