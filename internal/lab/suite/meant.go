package suite

import (
	"compress/gzip"
	"io"
	"slices"
	"strings"
)

// A Meaning is an intended difference of a way, or several that belong together.
type Meaning struct {
	Name string // short, for the table
	What string // for the documentation
	Why  string
	Ways []string // nil: all
	// Scenarios are those that have it. Nil: it belongs to the way in general, and the
	// table does not repeat it.
	Scenarios []string
	Changes   []Change
}

// Change is a fact that differs. If What ends with a star, it matches all facts
// with that prefix.
type Change struct {
	What string
	Is   func(directly, passed string) bool
}

func gone(what ...string) (all []Change) {
	for _, w := range what {
		all = append(all, Change{w, func(directly, passed string) bool { return directly != Absent && passed == Absent }})
	}
	return all
}

func becomes(what, value string) Change {
	return Change{what, func(_, passed string) bool { return passed == value }}
}

func edited(what string, edit func(string) string) Change {
	return Change{what, func(directly, passed string) bool { return directly != Absent && passed == edit(directly) }}
}

// The names of the ways.
const (
	reverseProxy = "ReverseProxy"
	caddyProxy   = "Caddy"
)

// Meant returns all intended differences.
func Meant() []Meaning { return slices.Concat(alwaysMeant(), meantOfRequests(), meantOfResponses()) }

func alwaysMeant() []Meaning {
	return []Meaning{
		{
			Name: "host", What: "`Host` is the server's own", Why: "clients call the gateway by its name, and the gateway calls the server by the server's address",
			Changes: []Change{becomes("request host", "its own")},
		},
		{
			Name: "identity", What: "`Accept-Encoding: identity`, if the response is metered", Why: "tokens are counted and usage is read in plain text",
			Changes: []Change{becomes("request header Accept-Encoding", "identity")},
		},
		{
			Name: "via", What: "`Via: 1.1 Caddy`, both ways", Why: "Caddy announces itself", Ways: []string{caddyProxy},
			Changes: []Change{
				{"request header Via", func(directly, passed string) bool { return appended(directly, passed, "1.1 Caddy") }},
				becomes("response header Via", "1.1 Caddy"),
			},
		},
	}
}

func meantOfRequests() []Meaning {
	return []Meaning{
		{
			Name: "usage asked for", What: "the server is asked for usage (`stream_options.include_usage`), which is removed again", Why: "usage says how much was cached, which corrects the index",
			Scenarios: []string{"chat, stream", "chat, tools, stream", "completions, stream"},
			Changes: []Change{edited("request body", func(s string) string {
				return strings.Replace(s, `{`, `{"stream_options":{"include_usage":true},`, 1)
			})},
		},
		{
			Name: "read whole", What: "the body comes with a `Content-Length`, and without trailers after it", Why: "the prompt is read before a server is chosen",
			Scenarios: []string{"multipart, long", "body in chunks", "body with a trailer"},
			Changes:   append(gone("request trailer X-Checksum"), becomes("request framing", "length")),
		},
		{
			Name: "none sent", What: "a request that the client breaks off reaches no server", Why: "the prompt is read before a server is chosen",
			Scenarios: []string{"abort in the request"}, Changes: append(gone("request *"), becomes("requests", "0")),
		},
		{
			Name: "unpacked request", What: "the server gets the body in plain text", Why: "engines don't accept compressed bodies, and the prompt has to be read", Scenarios: []string{"gzip, request"},
			Changes: append(gone("request header Content-Encoding"), edited("request body", unpacked)),
		},
		{
			Name: "100 at once", What: "the client gets 100 before a server is asked, and the server does not send one", Why: "the prompt is read before a server is chosen",
			Scenarios: []string{"100-continue", "100-continue, refused"},
			Changes:   append(gone("request header Expect"), Change{"response interim", func(directly, passed string) bool { return directly == Absent && passed == "100" }}),
		},
		{
			Name: "neighbours", What: "`Connection` and the headers it names, `Proxy-Authorization` and a refused `Upgrade` are not passed on", Why: "they are hop-by-hop",
			Scenarios: []string{"headers", "upgrade, refused"},
			Changes: gone("request header Connection", "request header X-Hop", "request header Proxy-Authorization",
				"response header Connection", "response header X-Hop", "response header Upgrade"),
		},
		{
			Name: "forwarded", What: "`X-Forwarded-For` of the client is dropped", Why: "clients are not trusted; add your own with `SetXForwarded` or `trusted_proxies`",
			Scenarios: []string{"headers"}, Changes: gone("request header X-Forwarded-For"),
		},
		{
			Name: "query", What: "a query with semicolons is cut", Why: "`httputil.ReverseProxy` drops what servers read in two ways", Ways: []string{reverseProxy},
			Scenarios: []string{"a path of no API"}, Changes: []Change{edited("request line", func(string) string { return "GET /version?c=" })},
		},
		{
			Name: "own connection", What: "`Connection: close` to the server", Why: "a request that may change something must not be sent twice",
			Scenarios: []string{"204", "error of another request"}, Changes: []Change{becomes("request header Connection", "close")},
		},
		{
			Name: "own list", What: "the gateway lists the models itself", Why: "the gateway answers for all servers",
			Scenarios: []string{"models"},
			Changes: []Change{becomes("requests", "3"), becomes("request header User-Agent", "Go-http-client/1.1"), edited("response body", func(string) string {
				return `{"data":[{"id":"m","object":"model","created":1700000000,"owned_by":"engine"}],"first_id":"m","has_more":false,"last_id":"m","object":"list"}`
			})},
		},
	}
}

func meantOfResponses() []Meaning {
	failed := `{"error":{"message":"the model server failed before it answered","type":"api_error","param":null,"code":"502"}}`
	broken := func(s string) string {
		return s[:strings.LastIndex(s, "\n\n")+2] + "data: " + strings.Replace(failed, "before it answered", "before the end of its answer", 1) + "\n\n"
	}
	return []Meaning{
		{
			Name: "unpacked response", What: "the client gets it in plain text", Why: "a response is metered even if the server compresses it unasked",
			Scenarios: []string{"gzip, response", "gzip, stream"},
			Changes:   append(gone("response header Content-Encoding"), edited("response body", unpacked), becomes("response framing", "chunked")),
		},
		{
			Name: "tried again", What: "another server is asked, and the client gets the last one's response", Why: "the client has seen nothing yet, and inference has no side effects",
			Scenarios: []string{
				"error 404", "error 429", "error 500", "error 501", "error 502", "error 503", "error 429, stream", "error 503, stream", "error of plain text", "error 429, once", "error 503, once",
				"error 503, once, stream", "error as the first event", "cut before the header", "cut before the header, each",
				"cut in a whole response", "cut in chunks", "upgrade, refused",
			},
			Changes: []Change{{"requests", func(_, passed string) bool { return passed == "2" || passed == "3" }}},
		},
		{
			Name: "502", What: "502, in the format of the API", Why: "no server has answered", Ways: []string{reverseProxy, caddyProxy},
			Scenarios: []string{"cut before the header, each", "cut in a whole response", "cut in chunks"},
			Changes: []Change{
				gone("response header Content-Length")[0], becomes("response status", "HTTP/1.1 502 Bad Gateway"), becomes("response body", failed), becomes("response framing", "length"), becomes("response end", "whole"),
				becomes("response header Content-Type", "application/json"), becomes("response header Date", "a date"),
			},
		},
		{
			Name: "an error", What: "an error event in the format of the API, after the last whole event", Why: "a client that only sees the connection end may take it for the answer's end",
			Scenarios: []string{"cut in a stream", "cut in an event", "end without its last event"}, Changes: []Change{edited("response body", broken)},
		},
		{
			Name: "cut", What: "the connection breaks, although the server has closed it properly", Why: "a stream without its last event is incomplete",
			Scenarios: []string{"end without its last event"}, Changes: []Change{becomes("response end", "cut")},
		},
		{
			Name: "Caddy's own", What: "`Date` and `Server: Caddy`", Why: "Caddy adds them to a 101, which servers send without them", Ways: []string{caddyProxy},
			Scenarios: []string{"upgrade"}, Changes: []Change{becomes("response header Date", "a date"), becomes("response header Server", "Caddy")},
		},
	}
}

func appended(before, after, value string) bool {
	return after == value && before == Absent || after == before+" ‖ "+value
}

func unpacked(s string) string {
	z, err := gzip.NewReader(strings.NewReader(s))
	if err != nil {
		return Absent
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		return Absent
	}
	return string(plain)
}

// covers reports whether the meaning applies to a scenario on a way.
func (m *Meaning) covers(way, scenario string) bool {
	return (m.Ways == nil || slices.Contains(m.Ways, way)) && (m.Scenarios == nil || slices.Contains(m.Scenarios, scenario))
}

// explains reports whether the meaning has a difference.
func (m *Meaning) explains(d Difference) bool {
	what := strings.Replace(d.What, "response 2 ", "response ", 1) // the second response is treated alike
	return slices.ContainsFunc(m.Changes, func(c Change) bool {
		if head, all := strings.CutSuffix(c.What, "*"); c.What != what && !(all && strings.HasPrefix(what, head)) {
			return false
		}
		return c.Is(d.Directly, d.Passed)
	})
}
