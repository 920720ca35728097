package transporttest

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/endpick/endpick"
)

// fault is one way in which an engine misbehaves.
type fault struct {
	name   string
	stream bool // what the client asks for
	early  bool // the script does not wait for the request
	script func(*conn)
	leaves bool // the client leaves once the engine has been asked
	cut    bool // the engine breaks off within its answer
	// ends are how the lease may end. Nil: as Failed.
	ends []endpick.Status
}

var (
	failed    = []endpick.Status{endpick.Failed}
	completed = []endpick.Status{endpick.Completed}
	canceled  = []endpick.Status{endpick.Canceled}
	refused   = []endpick.Status{endpick.Refused}
	// either is for answers that hosts may or may not accept as complete.
	either = []endpick.Status{endpick.Completed, endpick.Failed}
	// anyhow is for requests that proxies cancel for reasons of their own.
	anyhow = []endpick.Status{endpick.Completed, endpick.Failed, endpick.Canceled}
)

// Faults returns the names of all faults, each of which [Run] tests in a subtest
// of that name.
func Faults() []string {
	var names []string
	for _, f := range faults() {
		names = append(names, f.name)
	}
	return names
}

const (
	ok     = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
	okSSE  = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	answer = `{"id":"1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Once upon a time"},"finish_reason":"stop"}],"usage":{"prompt_tokens":100,"completion_tokens":4,"total_tokens":104}}`
	role   = `data: {"id":"1","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n"
	word   = `data: {"id":"1","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":"Once"}}]}` + "\n\n"
	finish = `data: {"id":"1","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	usage  = `data: {"id":"1","object":"chat.completion.chunk","model":"m","choices":[],"usage":{"prompt_tokens":100,"completion_tokens":1,"total_tokens":101}}` + "\n\n"
	done   = "data: [DONE]\n\n"
)

func faults() []fault {
	return slices.Concat(connections(), statuses(), headers(), bodies(), streams(), departures())
}

// raw is a script that sends bytes and closes the connection.
func raw(s string) func(*conn) { return func(c *conn) { c.say(s) } }

// events is a script that sends a complete stream.
func events(texts ...string) func(*conn) {
	return func(c *conn) {
		c.say(okSSE)
		c.chunks(texts...)
		c.end()
	}
}

// broken is a script that sends a stream without an end.
func broken(texts ...string) func(*conn) {
	return func(c *conn) {
		c.say(okSSE)
		c.chunks(texts...)
	}
}

// whole is a script that sends a complete answer with these headers.
func whole(header, body string) func(*conn) {
	return raw("HTTP/1.1 200 OK\r\n" + header + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(body)) + body)
}

func connections() []fault {
	return []fault{
		{name: "closes the connection before it reads the request", early: true, script: func(*conn) {}},
		{name: "resets the connection before it reads the request", early: true, script: (*conn).reset},
		{name: "reads the request, then closes the connection", script: func(*conn) {}},
		{name: "reads the request, then resets the connection", script: (*conn).reset},
		{name: "resets the connection in the middle of the header", script: func(c *conn) { c.say(ok); c.reset() }},
		{name: "resets the connection in the middle of the body", cut: true, script: func(c *conn) { c.say(ok + "Content-Length: 1000\r\n\r\n{"); c.reset() }},
		{name: "resets the connection in the middle of a stream", stream: true, cut: true, script: func(c *conn) { c.say(okSSE); c.chunks(role, word); c.reset() }},
		{name: "does not speak HTTP", script: raw("hello\r\n\r\n")},
		{name: "speaks TLS where plain text is expected", script: raw("\x15\x03\x01\x00\x02\x02\x46")},
		{name: "speaks HTTP/2 unasked", script: raw("\x00\x00\x00\x04\x00\x00\x00\x00\x00")},
		{name: "closes in the middle of the status line", script: raw("HTTP/1.1 20")},
		{name: "sends a status that is not a number", script: raw("HTTP/1.1 two OK\r\n\r\n")},
		{name: "speaks HTTP/9.9", script: raw("HTTP/9.9 200 OK\r\n\r\n"), ends: either},
		{name: "speaks HTTP/1.0", script: raw("HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + answer), ends: completed},
	}
}

// statuses are answers with an error status.
func statuses() (all []fault) {
	const body = `{"error":{"message":"no","type":"server_error","code":null}}`
	for _, code := range []int{400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 501, 502, 503, 504, 529} {
		text := http.StatusText(code)
		head := fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Type: application/json\r\n", code, text)
		ends := failed
		switch {
		case code < 500:
			ends = refused
		case code == http.StatusNotImplemented:
			ends = []endpick.Status{endpick.Failed, endpick.Refused}
		}
		all = append(all, fault{name: fmt.Sprintf("answers %d", code), stream: code%2 == 1, ends: ends,
			script: raw(head + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body))})
	}
	return append(all,
		fault{name: "answers 503 with Retry-After", script: raw("HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")},
		fault{name: "answers 429 with an absurd Retry-After", script: raw("HTTP/1.1 429 Busy\r\nRetry-After: 99999999999999999999\r\nContent-Length: 0\r\n\r\n"), ends: refused},
		fault{name: "answers 500 and closes in the middle of the body", cut: true, script: raw("HTTP/1.1 500 Error\r\nContent-Length: 100\r\n\r\n{")},
		fault{name: "answers 500 with an HTML page", stream: true, script: raw("HTTP/1.1 500 Error\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<html></html>")},
		fault{name: "answers 599", script: raw("HTTP/1.1 599 Odd\r\nContent-Length: 0\r\n\r\n")},
		fault{name: "redirects (307)", script: raw("HTTP/1.1 307 Elsewhere\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"), ends: either},
		fault{name: "switches protocols unasked (101)", script: raw("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"), ends: anyhow},
		fault{name: "answers 204", script: raw("HTTP/1.1 204 No Content\r\n\r\n"), ends: either},
	)
}

// headers are odd headers.
func headers() []fault {
	return []fault{
		{name: "sends early hints (103) first", script: raw("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + ok + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(answer)) + answer), ends: completed},
		{name: "sends early hints without end", script: raw(strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", 2000))},
		{name: "sends a header without end", script: raw(ok + strings.Repeat("X-Header: "+strings.Repeat("x", 1000)+"\r\n", 12_000))},
		{name: "sends a malformed header", script: raw("HTTP/1.1 200 OK\r\nno header\r\n\r\n" + answer)},
		{name: "sends a Content-Length that is not a number", script: raw(ok + "Content-Length: x\r\n\r\n" + answer)},
		{name: "sends a negative Content-Length", script: raw(ok + "Content-Length: -1\r\n\r\n" + answer)},
		{name: "sends two different Content-Lengths", script: raw(ok + "Content-Length: 3\r\nContent-Length: 4\r\n\r\n" + answer)},
		{name: "sends an unknown Transfer-Encoding", script: raw(ok + "Transfer-Encoding: zip\r\n\r\n" + answer)},
		{name: "sends less than its Content-Length", cut: true, script: raw(ok + "Content-Length: 100000\r\n\r\n" + answer)},
		{name: "sends a Content-Length and no body", cut: true, script: raw(ok + "Content-Length: 100000\r\n\r\n")},
		{name: "sends more than its Content-Length", script: raw(ok + "Content-Length: 2\r\n\r\n{}" + answer), ends: either},
		{name: "sends no Content-Length and closes", script: raw(ok + "Connection: close\r\n\r\n" + answer), ends: completed},
		{name: "sends no Content-Type", script: whole("", answer), ends: either},
		{name: "declares an event stream as JSON", stream: true, script: whole("Content-Type: application/json\r\n", role+word+finish+usage+done), ends: either},
		{name: "declares JSON as an event stream", stream: true, script: whole("Content-Type: text/event-stream\r\n", answer), ends: either},
		{name: "answers JSON when a stream was asked for", stream: true, script: whole("Content-Type: application/json\r\n", answer), ends: either},
	}
}

// bodies are odd bodies of answers that are not streamed.
func bodies() []fault {
	packed := gzipped(answer)
	const json = "Content-Type: application/json\r\n"
	return []fault{
		{name: "compresses unasked", script: whole(json+"Content-Encoding: gzip\r\n", packed), ends: either},
		{name: "compresses, and closes in the middle", cut: true, script: raw(ok + fmt.Sprintf("Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n", len(packed)) + packed[:30])},
		{name: "declares gzip and sends plain text", script: whole(json+"Content-Encoding: gzip\r\n", answer), ends: either},
		{name: "declares an unknown Content-Encoding", script: whole(json+"Content-Encoding: x\r\n", answer), ends: either},
		{name: "sends a gzip bomb of 16 MB", script: func(c *conn) {
			whole(json+"Content-Encoding: gzip\r\n", gzipped(`{"id":"`+strings.Repeat("x", 16<<20)+`",`+answer[1:]))(c)
		}, ends: either},
		{name: "answers with an empty body", script: whole(json, ""), ends: either},
		{name: "answers with a truncated object", script: whole(json, answer[:40]), ends: either},
		{name: "answers with something other than JSON", script: whole(json, "no"), ends: either},
		{name: "answers with JSON of another shape", script: whole(json, `[{"choices":1}]`), ends: either},
		{name: "answers with deeply nested JSON", script: whole(json, strings.Repeat("[", 200_000)), ends: either},
		{name: "reports negative usage", script: whole(json, strings.Replace(answer, "4", "-4", 1)), ends: completed},
		{name: "reports huge usage in exponential form", script: whole(json, strings.Replace(answer, "100", "1e300", 1)), ends: completed},
		{name: "reports usage as strings", script: whole(json, strings.Replace(answer, "100", `"many"`, 1)), ends: completed},
		{name: "reports usage as null", script: whole(json, answer[:strings.Index(answer, `,"usage"`)]+`,"usage":null}`), ends: completed},
		{name: "reports more cached tokens than the prompt has", script: whole(json, strings.Replace(answer, `"total_tokens"`, `"prompt_tokens_details":{"cached_tokens":1000000},"total_tokens"`, 1)), ends: completed},
		{name: "sends a malformed chunk", cut: true, script: raw(ok + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nx\r\n")},
		{name: "closes in the middle of a chunk", cut: true, script: raw(ok + "Transfer-Encoding: chunked\r\n\r\nff\r\n{}")},
		{name: "omits the last chunk", cut: true, script: raw(ok + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")},
	}
}

func gzipped(s string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(s))
	_ = z.Close()
	return b.String()
}

// streams are streams that break off, lie or go on.
func streams() []fault {
	stream := func(name string, ends []endpick.Status, script func(*conn)) fault {
		return fault{name: name, stream: true, ends: ends, script: script}
	}
	cut := func(name string, script func(*conn)) fault {
		return fault{name: name, stream: true, cut: true, script: script}
	}
	return []fault{
		stream("streams nothing", failed, events()),
		cut("closes after the header", broken()),
		cut("closes before the first token", broken(role)),
		cut("closes after the first token", broken(role, word)),
		cut("closes in the middle of an event", broken(role, word[:20])),
		cut("closes in the middle of a character", broken(role, "data: \xe2\x82")),
		stream("ends the body in the middle of an event", failed, events(role, word, word[:20])),
		stream("ends the body without finish_reason and [DONE]", failed, events(role, word)),
		stream("omits [DONE]", either, events(role, word, finish)),
		stream("sends [DONE] and nothing else", either, events(done)),
		stream("sends an error as its first event", failed, events("data: {\"error\":{\"message\":\"no\",\"code\":500}}\n\n")),
		stream("sends an error event after a token", failed, events(role, word, "data: {\"error\":{\"message\":\"no\",\"code\":500}}\n\n")),
		stream("sends nothing but comments", either, events(": a comment\n\n", ": another\n\n")),
		stream("sends comments between events", completed, events(": a comment\n\n", role, ": another\n\n", word, finish, usage, done)),
		stream("begins with a byte order mark", either, events("\xef\xbb\xbf"+role, word, finish, usage, done)),
		stream("ends lines with CRLF", completed, events(strings.ReplaceAll(role+word+finish+usage+done, "\n", "\r\n"))),
		stream("ends lines with CR", either, events(strings.ReplaceAll(role+word+finish+usage+done, "\n", "\r"))),
		stream("sends a line of 10 MB", either, func(c *conn) {
			events(role, ": "+strings.Repeat("x", 10<<20)+"\n\n", word, finish, usage, done)(c)
		}),
		stream("sends byte by byte", completed, events(strings.Split(role+word+finish+usage+done, "")...)),
		stream("sends all events at once", completed, events(role+word+finish+usage+done)),
		stream("sends an event of 1 MB", either, events(role, `data: {"choices":[{"index":0,"delta":{"content":"`+strings.Repeat("x", 1<<20)+`"}}]}`+"\n\n", finish, usage, done)),
		stream("sends events that are not JSON", either, events("data: no\n\n", "data: {\n\n", role, word, finish, usage, done)),
		stream("sends zero bytes", either, events("\x00\x00\x00\n\n", role, word, finish, usage, done)),
		stream("reports usage twice", completed, events(role, word, usage, finish, usage, done)),
		stream("reports no usage", completed, events(role, word, finish, done)),
		stream("goes on after [DONE]", either, events(role, word, finish, usage, done, word, word)),
		cut("compresses a stream, and closes in the middle", raw("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n\x1f\x8b\x08\x00\r\n")),
	}
}

// departures are clients that leave while the engine hangs.
func departures() []fault {
	hang := func(name string, stream bool, before string, chunks ...string) fault {
		return fault{name: name, stream: stream, leaves: true, ends: canceled, script: func(c *conn) {
			c.say(before)
			c.chunks(chunks...)
			c.hang()
		}}
	}
	return []fault{
		hang("hangs before the header", false, ""),
		hang("hangs before the header of a stream", true, ""),
		hang("hangs in the middle of the header", false, ok),
		hang("hangs before the body", false, ok+"Content-Length: 100\r\n\r\n"),
		hang("hangs in the middle of the body", false, ok+"Content-Length: 100\r\n\r\n{"),
		hang("hangs before the first event", true, okSSE),
		hang("hangs before the first token", true, okSSE, role),
		hang("hangs after the first token", true, okSSE, role, word),
		hang("hangs in the middle of an event", true, okSSE, role, word[:20]),
		hang("hangs after early hints", true, "HTTP/1.1 103 Early Hints\r\n\r\n"),
	}
}
