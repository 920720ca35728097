package dialect

import (
	"bytes"
	"cmp"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
)

// Meter reads a response as it passes: the first token, tokens, usage. It reports
// tokens to the lease as they arrive, and removes what the client has not asked
// for. Its owner feeds it what arrives and passes on what it returns.
//
// Header comes first; then Feed is called for each piece, from one goroutine at a
// time, and End after the last. Outcome and Seen may be called at any time, from
// any goroutine.
type Meter struct {
	reader *Reader
	lease  endpick.Lease
	clock  func() time.Time

	// Of the request.
	model       string
	hide        bool
	requested   int // responses
	promptBytes int
	// hasher continues the prompt's hashes; nil: the response is not indexed.
	hasher *prefix.Hasher
	// origin is what is known of a response before it comes, if the engine stores it.
	stores bool
	origin stored

	// Of a stream that may go on elsewhere: values that are the same in all chunks, and how many
	// have content, each a token or what it says.
	resumable   bool
	holds       bool   // an error that is the engine's own fault; see HoldFaults
	fault       []byte // the event with such an error; nil: none has come
	id, created []byte
	contents    int
	before      *beginning // nil: this is its beginning

	events     *eventFilter // of a stream
	finder     *usageFinder // of a response that does not stream
	fed        atomic.Int64 // bytes
	unreported int          // tokens of events that were read, not yet reported to the lease
	hasContent bool         // such an event has content, however short

	mu       sync.Mutex // guards finder and the response
	response            // what it has said so far
}

// EventStream is the content type of server-sent events, lineStream that of lines of JSON.
const EventStream, lineStream = "text/event-stream", "application/x-ndjson"

// IsStream reports whether a response of this type is a stream.
func IsStream(contentType string) bool {
	return contentType == EventStream || contentType == lineStream
}

// ContentType is the type of a response without its parameters. It is read leniently, as clients do:
// proxies repeat it, or a parameter.
func ContentType(header http.Header) string {
	kind := header.Get("Content-Type")
	if end := strings.IndexAny(kind, ";,"); end >= 0 {
		kind = kind[:end]
	}
	return strings.ToLower(strings.TrimSpace(kind))
}

// Header reads the header of the response, whose body must not be compressed. It
// removes the length from the header if the meter may change it, and reports
// whether Feed may hold bytes back or remove some; otherwise, Feed returns each
// piece unchanged.
func (m *Meter) Header(status int, header http.Header) (filters bool) {
	if m.api == other || status >= http.StatusBadRequest {
		if status == http.StatusOK {
			m.store(nil)
		}
		return false
	}
	switch kind := ContentType(header); kind {
	case EventStream, lineStream:
		if m.api.event == nil || m.api.lines != (kind == lineStream) {
			return false
		}
		m.events = &eventFilter{inspect: m.event, lines: m.api.lines}
		m.answer.wanted = m.answer.wanted || m.resumable
		if m.hide || m.resumable {
			header.Del("Content-Length")
		}
		return true
	case "application/json":
		m.mu.Lock()
		defer m.mu.Unlock()
		m.finder = new(usageFinder)
	}
	return false
}

// Feed reads the next piece of the response's body, and appends to dst what is to
// be passed on: whole events of a stream, everything of other responses.
func (m *Meter) Feed(dst, piece []byte) []byte {
	m.fed.Add(int64(len(piece)))
	if m.events != nil {
		dst = m.events.feed(dst, piece)
		m.report()
		return dst
	}
	if m.finder != nil {
		m.mu.Lock()
		m.finder.write(piece)
		if m.answer.wanted {
			m.answer.capture(piece)
		}
		if m.finder.whole {
			m.state = whole
		}
		m.mu.Unlock()
	}
	return append(dst, piece...)
}

// End says that the response has ended cleanly, and appends to dst what was held
// back. The error is io.ErrUnexpectedEOF for an incomplete stream, because the
// connection of a server that dies may look as if it had been closed: an event without an
// end is then dropped, and Break is still to be called.
func (m *Meter) End(dst []byte) ([]byte, error) {
	if m.events == nil {
		return dst, nil
	}
	contents := m.contents
	dst, last := m.events.end(dst)
	m.report()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.wasCut() && !m.events.skipped {
		if m.contents != contents {
			m.answer.lose() // the client does not get all that was read
		}
		return dst[:last], io.ErrUnexpectedEOF
	}
	return dst, nil
}

// Break says that a stream has broken off. It appends to dst what was held back, and an event
// with the problem instead of an incomplete one, unless the stream has said how it ends.
func (m *Meter) Break(dst []byte, p Problem) []byte {
	if m.events == nil {
		return dst
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fault != nil {
		return append(append(dst, m.events.held...), m.fault...)
	}
	if m.state == whole || m.failed || !m.events.cut() {
		return m.events.rest(dst)
	}
	return p.event(m.events.rest(dst), m.api, m.sequence)
}

// report reports the tokens of all events that have arrived together to the lease.
func (m *Meter) report() {
	if m.hasContent {
		m.lease.Tokens(m.unreported)
		m.unreported, m.hasContent = 0, false
	}
}

// event reads the data of one event of the stream, and says what to do with it.
func (m *Meter) event(data []byte) edit {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fault != nil {
		return edit{drop: true}
	}
	if string(bytes.TrimSpace(data)) == "[DONE]" {
		m.state = whole
		return edit{}
	}
	unnamed, failed, ended := m.answer.id == "", m.failed, m.state == ended
	m.read(data, m.events.isError)
	if m.holds && m.failed && !failed && m.state != whole && (m.api.serversFault(data) || m.data.stopped && !m.data.hasContent()) {
		m.failed, m.fault = false, bytes.Clone(m.events.buf[m.events.start:m.events.line])
		return edit{drop: true}
	}
	m.unreported += m.count(m.clock, m.mostTokens())
	m.hasContent = m.hasContent || m.data.hasContent()
	if m.stores && unnamed && m.answer.id != "" {
		m.store(nil) // a client may cancel or continue it before it has ended
	}
	if m.resumable {
		if m.data.hasContent() {
			m.contents += max(m.data.tokens, 1)
		}
		if m.id == nil {
			m.id, m.created = bytes.Clone(field(data, "id")), bytes.Clone(field(data, "created"))
		}
	}
	e := edit{hold: m.hide && m.data.ended}
	if m.before != nil {
		if e.data = m.rest(data); e.data == nil {
			return edit{drop: true}
		}
		data = e.data
	}
	if m.hide && m.data.usage.value != nil && (isUsage(data) || ended && !m.data.adds() && m.failed == failed) {
		return edit{drop: true, join: data}
	}
	return e
}

// Whole reports whether the response has reached its end according to its
// API, whatever may follow.
func (m *Meter) Whole() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state == whole
}

// mostTokens is the most tokens that a response may have had so far, by its bytes, in which
// reasoning may be left out; more is not believed.
func (m *Meter) mostTokens() int { return 64 * int(min(m.fed.Load(), 1<<24)) }

// Outcome is how the request has ended, according to its owner and the response,
// for [endpick.Lease.Done]. A request for which an engine computes no prompt ends
// as Canceled. The reader learns from it: call it once, when nothing more will be
// fed.
func (m *Meter) Outcome(status endpick.Status) endpick.Outcome {
	m.mu.Lock()
	defer m.mu.Unlock()
	if status == endpick.Completed && m.failed {
		status = endpick.Failed
	}
	o := endpick.Outcome{Status: status}
	if status == endpick.Completed {
		if m.api.idle {
			return endpick.Outcome{Status: endpick.Canceled} // nothing was computed and nothing is cached
		}
		if m.finder != nil { // if there are several responses in a list, none is found
			m.usage = m.finder.found
		}
		o.Blocks = m.conversation()
	}
	if n, _ := m.usage.output(); n > m.mostTokens() {
		m.usage.dropOutput()
	}
	if _, ok := m.usage.output(); !ok && m.finder != nil && m.bytes > 0 {
		m.counted = max(int(float64(m.bytes)*m.rates.contents.perByte()), 1)
		m.lease.Tokens(m.counted)
	}
	o.InputTokens, _ = m.usage.prompt()
	o.OutputTokens, _ = m.usage.output()
	o.CachedTokens, o.HasCachedTokens = m.usage.cached()
	o.LoadTime = m.usage.load
	if status == endpick.Completed {
		m.reader.learned.learn(m.model, sample{o.InputTokens, m.promptBytes, o.OutputTokens, m.bytes, m.requested})
	}
	return o
}

// conversation returns the blocks of prompt and response, as the client will send them
// back; nil if they are not known, or if the response fills no block. It
// remembers a response that the engine stores.
func (m *Meter) conversation() (blocks []uint64) {
	a := &m.answer
	if !a.wanted {
		return nil
	}
	if m.finder != nil { // now it is read as a stream would have been
		r := response{api: m.api, answer: answer{wanted: true, repeats: a.repeats, lost: a.lost}}
		m.api.whole(&r, a.body)
		*a, m.bytes = r.answer, r.data.bytes
	}
	if m.events != nil && m.events.skipped {
		a.lost = true // but where it is stored is known
	}
	var h *prefix.Hasher
	if m.hasher != nil {
		continued := m.hasher.Fork()
		before := len(continued.Blocks())
		if a.writeTo(&continued, m.api) {
			h = &continued
			if len(h.Blocks()) > before {
				blocks = h.Blocks()
			}
		}
	}
	if m.stores {
		m.store(h)
	}
	a.body, a.pieces = nil, nil
	return blocks
}

// store remembers where the response is stored.
func (m *Meter) store(h *prefix.Hasher) {
	e := m.lease.Endpoint()
	if m.answer.id == "" || e == nil {
		return
	}
	s := m.origin
	s.key.id, s.endpoint, s.size = m.answer.id, e.ID, s.size+m.bytes
	if h != nil {
		s.h, s.size = h, h.Len()
	}
	m.reader.stored.put(&s)
}

// Seen is what a meter has seen of a response.
type Seen struct {
	// InputTokens and OutputTokens are the engine's figures if Reported is set;
	// otherwise, OutputTokens is what was counted in the stream.
	InputTokens, OutputTokens int
	Reported                  bool
	CachedTokens              *int      // nil: not reported
	FirstToken                time.Time // zero: none was seen
}

// Seen returns what was seen so far.
func (m *Meter) Seen() Seen {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := Seen{OutputTokens: m.counted, FirstToken: m.firstAt}
	prompt, ok := m.usage.prompt()
	if output, has := m.usage.output(); ok && (has || m.api.event == nil) { // embeddings have none
		s.InputTokens, s.OutputTokens, s.Reported = prompt, output, true
	}
	cached, ok := m.usage.cached()
	if ok {
		s.CachedTokens = &cached
	}
	if m.before != nil {
		s.InputTokens = max(s.InputTokens-m.before.tokens, 0)
		s.OutputTokens += m.before.tokens - m.before.surplus
		s.FirstToken = cmp.Or(m.before.firstAt, s.FirstToken)
		cached = min(cached, s.InputTokens)
	}
	return s
}
