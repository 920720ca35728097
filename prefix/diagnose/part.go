package diagnose

import (
	"slices"
	"strings"

	"github.com/endpick/endpick/internal/words"
	"github.com/endpick/endpick/transport/recording"
)

// breach is where and why a prompt diverges from an earlier one with which it was
// meant to share more.
type breach struct {
	cause   Cause
	message int // or the tool; -1: none
	tool    bool
	role    string
	offset  int // in its text; -1: not known

	at    float64 // tokens before it
	end   float64 // tokens that would have been shared, including
	fresh float64 // those that are new in any case
	lost  int
}

// part compares a prompt with an earlier one. It returns false if they lost
// nothing that they were meant to share.
func (x *explainer) part(q, p *prompt) (b breach, ok bool) {
	if q.scope != p.scope {
		return x.partScope(q, p)
	}
	w := walk{q: q, p: p}
	w.tools()
	w.walk()
	w.breach.end = w.end()
	return w.breach, w.broken
}

// partScope handles prompts that agree as far as they go, in different scopes. The
// scope is only to blame if they belong together: one continues or repeats the
// other, or they are of one session; or if every request has a salt of its own.
func (x *explainer) partScope(q, p *prompt) (b breach, ok bool) {
	if !slices.EqualFunc(q.tools, p.tools, samePiece) {
		return b, false
	}
	n := 0
	for n < min(len(q.messages), len(p.messages)) && samePiece(q.messages[n], p.messages[n]) {
		n++
	}
	b = breach{message: -1, offset: -1}
	switch {
	case q.scope.model != p.scope.model:
		b.cause = OtherModel
	case q.scope.adapter != p.scope.adapter:
		b.cause = OtherAdapter
	case q.scope.tenant != p.scope.tenant:
		b.cause = OtherTenant
	default:
		b.cause = OtherSalt
	}
	goesOn := n == len(q.messages) && (n == len(p.messages) || p.messages[n].Role == answerRole)
	session := q.r.Session != 0 && q.r.Session == p.r.Session && b.cause != OtherTenant
	switch {
	case goesOn:
		b.end = q.reach(p, n)
	case session || b.cause == OtherSalt && x.salts.once(q.scope) && x.salts.once(p.scope) && x.salts.changing(p.client()):
		w := walk{q: q, p: p, a: n, b: n}
		b.end = w.end()
	default:
		return b, false
	}
	return b, true
}

// salts counts the requests of each scope, and the salts of each client that
// occurred once.
type salts struct{ uses, single map[scope]int }

func saltsOf(prompts []*prompt) salts {
	s := salts{map[scope]int{}, map[scope]int{}}
	for _, p := range prompts {
		s.uses[p.scope]++
	}
	for sc, n := range s.uses {
		if n == 1 && sc.salt != 0 {
			sc.salt = 0
			s.single[sc]++
		}
	}
	return s
}

func (s *salts) once(sc scope) bool { return sc.salt != 0 && s.uses[sc] == 1 }

// changing reports whether a client's salts seem to be drawn for each request.
func (s *salts) changing(client scope) bool { return s.single[client] >= 3 }

func samePiece(a, b recording.Piece) bool { return a.Hash == b.Hash }

// walk compares two prompts message by message.
type walk struct {
	q, p *prompt
	a, b int // the next messages
	breach
	broken bool
	differ int // different messages so far
}

// maxDiffer is the number of different messages from which on two prompts are
// unrelated, because each costs time.
const maxDiffer = 64

// breaks records the first difference.
func (w *walk) breaks(c Cause, offset int) {
	if w.broken {
		return
	}
	w.broken = true
	m := &w.p.messages[w.b]
	w.cause, w.message, w.role, w.offset = c, w.b, m.Role, offset
	w.at = w.p.tokensAt(w.b, max(offset, 0))
}

func (w *walk) tools() {
	x, y := w.q.tools, w.p.tools
	if slices.EqualFunc(x, y, samePiece) {
		return
	}
	at := 0
	for at < min(len(x), len(y)) && x[at].Hash == y[at].Hash {
		at++
	}
	w.broken = true
	w.breach = breach{cause: ToolsReordered, tool: true, message: at, offset: -1, at: w.p.toolTokens(at)}
	for i := range y {
		if !slices.ContainsFunc(x, func(t recording.Piece) bool { return t.Hash == y[i].Hash }) {
			w.fresh += w.p.scale.perByte * float64(y[i].Bytes+1)
			w.cause = ToolsChanged
		}
	}
	if len(x) != len(y) {
		w.cause = ToolsChanged
	}
}

// walk continues while the prompts are the same except for differences it can explain.
func (w *walk) walk() {
	for w.a < len(w.q.messages) && w.b < len(w.p.messages) {
		if w.q.messages[w.a].Hash != w.p.messages[w.b].Hash {
			if w.differ++; w.differ > maxDiffer || !w.explains() {
				return
			}
		}
		w.a++
		w.b++
	}
}

// ofUser reports whether a message is the prompt's last and may be new.
func (w *walk) ofUser() bool {
	role := w.p.messages[w.b].Role
	return w.b == len(w.p.messages)-1 && (role == "user" || role == "tool")
}

// explains finds the reason of a difference. It returns false if there is none: the prompts are
// different from here on.
func (w *walk) explains() bool {
	x, y := &w.q.messages[w.a], &w.p.messages[w.b]
	if w.ofUser() || w.tool && w.b == 0 { // other tools and another beginning: an unrelated prompt
		return false
	}
	if x.Role == y.Role && y.Bytes > 0 {
		switch {
		case x.Words == y.Words:
			w.breaks(Whitespace, w.offsetIn(x, y))
			return true
		case x.Template == y.Template:
			cause, offset := changed(x, y)
			w.breaks(cause, offset)
			return true
		}
	}
	if i := find(w.p.messages, w.b+1, x); i >= 0 {
		w.breaks(Inserted, 0)
		for ; w.b < i; w.b++ {
			w.fresh += w.p.pieceTokens(w.b)
		}
		return true
	}
	if i := find(w.q.messages, w.a+1, y); i >= 0 {
		w.breaks(Dropped, 0)
		w.a = i
		return true
	}
	if x.Role != y.Role {
		return false
	}
	goesOn := w.a+1 < len(w.q.messages) && w.b+1 < len(w.p.messages) &&
		w.q.messages[w.a+1].Hash == w.p.messages[w.b+1].Hash && w.p.messages[w.b+1].Bytes >= telling
	instructs := w.b == 0 && y.Role != "user"
	if goesOn || instructs && alike(x.Shape, y.Shape) {
		w.breaks(Reworded, w.offsetIn(x, y))
		return true
	}
	return false
}

// changed finds the first value that differs between two messages of one template.
func changed(x, y *recording.Piece) (cause Cause, offset int) {
	kinds := map[string]Cause{"timestamp": Timestamp, "number": Number}
	for i := range min(len(x.Values), len(y.Values)) {
		u, v := x.Values[i], y.Values[i]
		if u.Hash == v.Hash {
			continue
		}
		if c, known := kinds[v.Kind]; known && u.Kind == v.Kind {
			return c, v.At
		}
		return Identifier, v.At
	}
	return Identifier, -1 // beyond the values that were kept
}

// offsetIn is roughly where the texts of two messages diverge: from the text if there
// is any, else from the blocks.
func (w *walk) offsetIn(x, y *recording.Piece) int {
	if x.Text != "" && y.Text != "" {
		return words.Common(x.Text, y.Text)
	}
	if w.broken {
		return -1
	}
	blocks := 0
	for blocks < min(len(w.q.r.Blocks), len(w.p.r.Blocks)) && w.q.r.Blocks[blocks] == w.p.r.Blocks[blocks] {
		blocks++
	}
	if message, offset := w.p.place(blocks); message == w.b {
		return max(offset, 0)
	}
	return 0
}

// telling is the length from which on a message, unlike "yes", does not repeat by
// chance.
const telling = 12

// lookAhead is how many messages may have been inserted or dropped.
const lookAhead = 64

// find returns the index of a message that equals m, or -1.
func find(messages []recording.Piece, from int, m *recording.Piece) int {
	if m.Bytes < telling {
		return -1
	}
	for i := from; i < min(len(messages), from+lookAhead); i++ {
		if messages[i].Hash == m.Hash {
			return i
		}
	}
	return -1
}

// alike reports whether two texts agree in about half or more.
func alike(x, y []uint32) bool {
	all := slices.Concat(x, y)
	slices.Sort(all)
	same, seen := 0, 0
	n := max(len(x), len(y))
	for i := 0; i < len(all) && seen < n; i++ {
		seen++
		if i+1 < len(all) && all[i] == all[i+1] {
			same++
			i++
		}
	}
	return n >= 4 && 2*same >= seen
}

// end is how many tokens of p would have been shared.
func (w *walk) end() float64 {
	if w.b >= len(w.p.messages) {
		return float64(w.p.r.InputTokens)
	}
	if w.a < len(w.q.messages) {
		// They diverge within a message. If the role is the same, so is the message's
		// head.
		if x, y := &w.q.messages[w.a], &w.p.messages[w.b]; x.Role == y.Role {
			return w.p.tokensAt(w.b, words.Common(x.Text, y.Text))
		}
		return w.p.tokensAt(w.b, -1)
	}
	// All of q is included, and perhaps its answer. If the blamed difference has not
	// changed the length, the engine has reported how long that is.
	guess := w.p.tokensAt(w.b, -1) + headTokens + roleTokens(answerRole)
	reach := w.q.reach(w.p, w.b)
	answer := reach - float64(w.q.r.InputTokens)
	if w.fresh == 0 && guess-float64(w.q.r.InputTokens) < 8 && float64(w.q.r.InputTokens)-guess < 8 && w.cause != Dropped {
		return reach
	}
	if answer > 0 {
		return guess + answer
	}
	return w.p.tokensAt(w.b, -1)
}

// quote is what differs, if the recording has the text.
func quote(before, after *prompt, b breach) (old, now string) {
	if !b.cause.inPrompt() || b.offset < 0 || b.message < 0 || b.tool || b.message >= min(len(before.messages), len(after.messages)) {
		return "", ""
	}
	x, y := before.messages[b.message].Text, after.messages[b.message].Text
	if x == "" || y == "" {
		return "", ""
	}
	at := words.Common(x, y)
	old, now = words.At(x, at), words.At(y, at)
	if b.cause == Whitespace {
		old, now = around(x, at), around(y, at)
	}
	return cut(old), cut(now)
}

const maxQuote = 64

func cut(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxQuote)], "") }

// around is the text on both sides of a byte.
func around(s string, at int) string { return s[max(0, at-12):min(len(s), at+20)] }
