package diagnose

import (
	"slices"
	"strings"

	"github.com/endpick/endpick/prefix/diagnose/sketch"
	"github.com/endpick/endpick/transport/recording"
)

// breach is where and why a prompt diverges from an earlier one with which it was meant to
// share more.
type breach struct {
	Finding         // its cause and place
	end     float64 // tokens that would have been shared
	fresh   float64 // those among them that are new in any case
}

// elsewhere is a finding that is not in the prompt.
func elsewhere(c Cause) Finding { return Finding{Cause: c, Message: -1, Offset: -1} }

// compare compares a prompt with an earlier one. It returns false if they lost
// nothing that they were meant to share.
func compare(q, p *prompt) (b breach, ok bool) {
	if q.scope != p.scope {
		return compareScopes(q, p)
	}
	c := comparison{q: q, p: p}
	c.tools()
	for c.a < len(q.messages) && c.b < len(p.messages) && (q.messages[c.a].Hash == p.messages[c.b].Hash || c.explain()) {
		c.a, c.b = c.a+1, c.b+1
	}
	c.end = p.tokens(p.start(c.b))
	return c.breach, c.broken
}

// compareScopes handles prompts that agree as far as they go, in different scopes. The
// scope is only to blame if they belong together: one continues or repeats the other, or
// they are of one session.
func compareScopes(q, p *prompt) (b breach, ok bool) {
	if shared(q.tools, p.tools) < max(len(q.tools), len(p.tools)) {
		return b, false
	}
	cause := OtherSalt
	switch {
	case q.scope.model != p.scope.model:
		cause = OtherModel
	case q.scope.adapter != p.scope.adapter:
		cause = OtherAdapter
	case q.scope.tenant != p.scope.tenant:
		cause = OtherTenant
	}
	n := shared(q.messages, p.messages)
	continues := n == len(q.messages) && (n == len(p.messages) || p.messages[n].Role == "assistant")
	session := q.r.Session != 0 && q.r.Session == p.r.Session && cause != OtherTenant
	return breach{Finding: elsewhere(cause), end: p.tokens(p.start(n))}, continues || session
}

// shared is how many pieces two lists begin with.
func shared(x, y []recording.Piece) (n int) {
	for n < min(len(x), len(y)) && x[n].Hash == y[n].Hash {
		n++
	}
	return n
}

// comparison compares two prompts message by message.
type comparison struct {
	q, p *prompt
	a, b int // the next messages
	breach
	broken bool
}

// tellingBytes is the length from which on a message, unlike "yes", does not repeat by chance.
const tellingBytes = 12

func (c *comparison) tools() {
	x, y := c.q.tools, c.p.tools
	at := shared(x, y)
	if at == max(len(x), len(y)) {
		return
	}
	c.broken = true
	c.Finding = Finding{Cause: ToolsReordered, Tool: true, Message: at, Offset: -1}
	if len(x) != len(y) {
		c.Cause = ToolsChanged
	}
	for i := range y {
		if !slices.ContainsFunc(x, func(t recording.Piece) bool { return t.Hash == y[i].Hash }) {
			c.Cause = ToolsChanged
			c.fresh += c.p.tokens(y[i].Bytes)
		}
	}
}

// breaks records the first difference.
func (c *comparison) breaks(cause Cause, offset int) bool {
	if !c.broken {
		c.broken = true
		c.Finding = Finding{Cause: cause, Message: c.b, Role: c.p.messages[c.b].Role, Offset: offset}
	}
	return true
}

// explain finds the reason of a difference. It returns false if there is none: the prompts are
// different from here on.
func (c *comparison) explain() bool {
	x, y := &c.q.messages[c.a], &c.p.messages[c.b]
	sameRole := x.Role == y.Role
	switch {
	case c.b == len(c.p.messages)-1 && (y.Role == "user" || y.Role == "tool"):
		return false // what is asked now is new anyway
	case c.Tool && c.b == 0:
		return false // other tools and another beginning: an unrelated prompt
	case sameRole && y.Bytes > 0 && x.Words == y.Words:
		return c.breaks(Whitespace, c.offsetIn(x, y))
	case sameRole && y.Bytes > 0 && x.Template == y.Template:
		return c.breaks(changed(x, y))
	}
	if i := findMessage(c.p.messages, c.b+1, x); i >= 0 {
		c.breaks(Inserted, 0)
		c.fresh += c.p.tokens(c.p.start(i) - c.p.start(c.b))
		c.b = i
		return true
	}
	if i := findMessage(c.q.messages, c.a+1, y); i >= 0 {
		c.breaks(Dropped, 0)
		c.a = i
		return true
	}
	// A template has drifted if the same follows, or if the instructions are much the same.
	followed := c.a+1 < len(c.q.messages) && c.b+1 < len(c.p.messages) &&
		c.q.messages[c.a+1].Hash == c.p.messages[c.b+1].Hash && c.p.messages[c.b+1].Bytes >= tellingBytes
	instructs := c.b == 0 && y.Role != "user" && alike(x.Shape, y.Shape)
	return sameRole && (followed || instructs) && c.breaks(Reworded, c.offsetIn(x, y))
}

// changed finds the first value that differs between two messages of one template.
func changed(x, y *recording.Piece) (cause Cause, offset int) {
	for i := range min(len(x.Values), len(y.Values)) {
		u, v := x.Values[i], y.Values[i]
		switch {
		case u.Hash == v.Hash:
		case u.Kind == "timestamp" && v.Kind == u.Kind:
			return Timestamp, v.At
		case u.Kind == "number" && v.Kind == u.Kind:
			return Number, v.At
		default:
			return Identifier, v.At
		}
	}
	return Identifier, -1 // beyond the values that are recorded
}

// offsetIn is roughly where the texts of two messages diverge: from the text if there is any,
// else from the blocks, which only show the first difference.
func (c *comparison) offsetIn(x, y *recording.Piece) int {
	same := 0
	for same < min(len(x.Text), len(y.Text)) && x.Text[same] == y.Text[same] {
		same++
	}
	switch {
	case x.Text != "" && y.Text != "":
		return same
	case c.broken:
		return -1
	}
	for same < min(len(c.q.r.Blocks), len(c.p.r.Blocks)) && c.q.r.Blocks[same] == c.p.r.Blocks[same] {
		same++
	}
	return c.p.offsetOf(c.b, same)
}

// findMessage returns the index of a message that equals m and tells something, or -1. Up to
// 64 messages may have been inserted or dropped.
func findMessage(messages []recording.Piece, from int, m *recording.Piece) int {
	for i := from; i < min(len(messages), from+64) && m.Bytes >= tellingBytes; i++ {
		if messages[i].Hash == m.Hash {
			return i
		}
	}
	return -1
}

// alike reports whether two texts, of which these are the shapes, agree in about half or more.
func alike(x, y []uint32) bool {
	same := 0
	for _, v := range x {
		if _, found := slices.BinarySearch(y, v); found {
			same++
		}
	}
	n := max(len(x), len(y))
	return n >= 4 && 2*same >= n
}

// quote is what differs in a message: the value, or a little on both sides.
func quote(text string, f *Finding) string {
	from, to := max(0, f.Offset-12), f.Offset+20
	if f.Cause <= Number {
		word, _ := sketch.Word(text[min(f.Offset, len(text)):])
		from, to = f.Offset, f.Offset+min(len(word), 64)
	}
	return strings.ToValidUTF8(text[min(from, len(text)):min(to, len(text))], "")
}
