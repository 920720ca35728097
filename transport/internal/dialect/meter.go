package dialect

import (
	"bytes"
	"io"
	"mime"
	"net/http"
	"sync"
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

	model       string
	api         api
	hide        bool
	rates       rates
	responses   int
	promptBytes int

	// hasher continues the prompt's hashes; nil: the response is not indexed.
	hasher   *prefix.Hasher
	maxItems int
	// Of a response that the engine stores.
	stores  bool
	key     storedKey
	session string
	head    uint64
	size    int

	events     *eventFilter // of a stream
	unreported int          // tokens of events that were read, not yet reported to the lease
	hasContent bool         // such an event has content, however short
	finder     *usageFinder // of a response that does not stream
	mu         sync.Mutex   // guards finder and the fields below

	answer       answer
	usage        usage
	contentBytes int
	estimate     float64 // tokens of content that are not counted yet
	counted      int     // tokens reported to the lease
	firstAt      time.Time
	chunks       bool // choices were seen
	choices      choices
	whole        bool // [DONE] was seen, or the end of a JSON object
	failed       bool // the engine reported an error in the stream
}

// EventStream is the content type of server-sent events.
const EventStream = "text/event-stream"

// Header reads the header of the response, whose body must not be compressed. It
// removes the length from the header if the meter may change it, and reports
// whether Feed may hold bytes back or remove some; otherwise, Feed returns each
// piece unchanged.
func (m *Meter) Header(status int, header http.Header) (filters bool) {
	if m.api == other || status >= http.StatusBadRequest {
		return false
	}
	switch kind, _, _ := mime.ParseMediaType(header.Get("Content-Type")); kind {
	case EventStream:
		if dialects[m.api].event == nil {
			return false
		}
		m.events = &eventFilter{inspect: m.event}
		if m.hide {
			header.Del("Content-Length")
		}
		return true
	case "application/json":
		m.mu.Lock()
		defer m.mu.Unlock()
		m.finder = &usageFinder{key: dialects[m.api].inUsage}
	}
	return false
}

// Feed reads the next piece of the response's body, and appends to dst what is to
// be passed on: whole events of a stream, everything of other responses.
func (m *Meter) Feed(dst, piece []byte) []byte {
	if m.events != nil {
		dst = m.events.feed(dst, piece)
		m.report()
		return dst
	}
	if m.finder != nil {
		m.mu.Lock()
		m.finder.write(piece)
		if m.collects() {
			m.answer.capture(piece)
		}
		m.whole = m.finder.whole
		m.mu.Unlock()
	}
	return append(dst, piece...)
}

// End says that the response has ended cleanly, and appends to dst what was held
// back. The error is io.ErrUnexpectedEOF for an incomplete stream, because the
// connection of a server that dies may look as if it had been closed.
func (m *Meter) End(dst []byte) ([]byte, error) {
	if m.events == nil {
		return dst, nil
	}
	dst = m.events.end(dst)
	m.report()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.whole || m.choices.finished() || m.failed || !m.chunks || m.events.skipped {
		return dst, nil
	}
	return dst, io.ErrUnexpectedEOF
}

// Rest appends to dst what was held back of a stream that has broken off.
func (m *Meter) Rest(dst []byte) []byte {
	if m.events == nil {
		return dst
	}
	return m.events.rest(dst)
}

// report reports the tokens of all events that have arrived together to the lease.
func (m *Meter) report() {
	if m.hasContent {
		m.lease.Tokens(m.unreported)
		m.unreported, m.hasContent = 0, false
	}
}

// event reads one event of the stream, and says what to do with it.
func (m *Meter) event(data []byte) edit {
	if string(bytes.TrimSpace(data)) == "[DONE]" {
		m.mu.Lock()
		m.whole = true
		m.mu.Unlock()
		return edit{}
	}
	d := &dialects[m.api]
	c := d.event(data)
	m.mu.Lock()
	choice := m.choices.of(data, &c)
	if c.cumulative {
		c.content = max(c.content-choice.content, 0)
	}
	choice.content += c.content
	m.whole = m.whole || c.whole && (!d.endsEach || m.choices.complete())
	m.chunks = m.chunks || c.choices
	m.failed = m.failed || c.failed
	m.collect(d, data, &c)
	n := m.countTokens(d, &c, choice)
	m.mu.Unlock()

	m.unreported += n
	m.hasContent = m.hasContent || c.hasContent()
	if !m.hide {
		return edit{}
	}
	return c.hide()
}

// collect adds an event to the answer; m.mu is held.
func (m *Meter) collect(d *dialect, data []byte, c *chunk) {
	if !m.collects() {
		return
	}
	unnamed := m.answer.id == ""
	d.collect(&m.answer, data, c.delta)
	if m.stores && unnamed && m.answer.id != "" {
		m.store(nil) // a client may cancel or continue it before it has ended
	}
}

// countTokens counts the tokens of an event of a choice: by the engine's own count if it has
// one, else by its length. The first event with content has at least one, however short it is.
// m.mu is held.
func (m *Meter) countTokens(d *dialect, c *chunk, choice *choice) (n int) {
	// With several choices, usage in an event of one of them is that choice's. Otherwise it
	// replaces the usage of the whole response.
	reported, counted := usage{}, 0
	if m.responses > 1 && (c.any || d.endsEach) {
		reported, counted = d.read(c.usage), choice.counted
	} else {
		if c.usage != nil {
			d.usage(&m.usage, c.usage)
		}
		if c.usage != nil && c.opening {
			m.usage.completion, m.usage.hasCompletion = 0, false
		}
		reported, counted = m.usage, m.counted
	}
	if !c.hasContent() {
		return 0
	}
	m.contentBytes += c.content
	m.estimate += float64(c.content) * m.rates.content()
	switch {
	case c.usage != nil && reported.hasCompletion: // the engine reports the count as it goes
		n = max(reported.completion-counted, 0)
		m.estimate = 0
	case c.tokens > 0:
		n = c.tokens
	default:
		n = int(m.estimate)
	}
	if m.firstAt.IsZero() {
		n = max(n, 1)
		m.firstAt = m.clock()
	}
	m.estimate -= min(float64(n), m.estimate)
	m.counted += n
	choice.counted += n
	return n
}

// Whole reports whether the response has reached its end according to its
// dialect, whatever may follow.
func (m *Meter) Whole() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.whole
}

// Started reports whether the first token of a stream has arrived.
func (m *Meter) Started() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.firstAt.IsZero()
}

// Outcome is how the request has ended, according to its owner and the response,
// for [endpick.Lease.Done]. A request for which an engine computes no prompt ends
// as Canceled. The reader learns from it: call it once, when nothing more will be
// fed.
func (m *Meter) Outcome(status endpick.Status) endpick.Outcome {
	m.mu.Lock()
	if status == endpick.Completed && m.failed {
		status = endpick.Failed
	}
	if m.finder != nil && status == endpick.Completed {
		if v := m.finder.value; v != nil { // if there are several responses in a list, none is found
			dialects[m.api].usage(&m.usage, v)
		}
	}
	u, contentBytes := m.usage, m.contentBytes
	var blocks []uint64
	if status == endpick.Completed {
		if m.events != nil && m.events.skipped {
			m.answer.lost = true // but where it is stored is known
		}
		blocks = m.conversation()
	}
	m.mu.Unlock()
	if dialects[m.api].idle && status == endpick.Completed {
		// To observers, nothing was computed and nothing is cached.
		return endpick.Outcome{Status: endpick.Canceled}
	}
	if status == endpick.Completed {
		m.reader.learned.learn(m.model, sample{
			promptTokens: u.prompt, promptBytes: m.promptBytes,
			outputTokens: u.completion, outputBytes: contentBytes,
			responses: m.responses,
		})
	}
	return endpick.Outcome{
		Status:          status,
		InputTokens:     u.prompt,
		OutputTokens:    u.completion,
		CachedTokens:    u.cached,
		HasCachedTokens: u.hasCached,
		Blocks:          blocks,
	}
}

// collects reports whether the response is to be indexed.
func (m *Meter) collects() bool {
	return dialects[m.api].collect != nil && (m.hasher != nil || m.stores)
}

// conversation returns the blocks of prompt and response, as the client will send them
// back; nil if they are not known, or if the response fills no block. It
// remembers a response that the engine stores.
func (m *Meter) conversation() (blocks []uint64) {
	if !m.collects() {
		return nil
	}
	a := &m.answer
	var h *prefix.Hasher
	if m.hasher != nil {
		continued := m.hasher.Fork()
		before := len(continued.Blocks())
		if a.writeTo(&continued, m.api, m.maxItems) {
			h = &continued
			if len(h.Blocks()) > before {
				blocks = h.Blocks()
			}
		}
	}
	if m.stores {
		m.store(h)
	}
	a.whole, a.pieces = nil, nil
	return blocks
}

// store remembers where the response is stored.
func (m *Meter) store(h *prefix.Hasher) {
	id := m.answer.id
	if id == "" {
		id = string(stringBytes(field(m.answer.whole, "id")))
	}
	e := m.lease.Endpoint()
	if id == "" || len(id) > maxName || e == nil {
		return
	}
	s := &stored{
		key: storedKey{m.key.tenant, id}, endpoint: e.ID, session: m.session,
		head: m.head, size: m.size + m.contentBytes,
	}
	if h != nil {
		own := h.Fork()
		s.h, s.size = &own, h.Len()
	}
	m.reader.stored.put(s)
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
	u := m.usage
	s := Seen{OutputTokens: m.counted, FirstToken: m.firstAt}
	if u.hasPrompt && u.hasCompletion {
		s.InputTokens, s.OutputTokens, s.Reported = u.prompt, u.completion, true
	}
	if u.hasCached {
		s.CachedTokens = &u.cached
	}
	return s
}
