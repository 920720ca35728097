package recording

// Version is the current version of the format. A line names its version; without one
// it is version 1, which did not describe prompts. Read accepts all versions up to
// this one.
const Version = 2

// Prompt describes the parts of a prompt, in the order of the request, so that
// package prefix/diagnose can tell where two prompts diverge and why. It contains no
// text unless that was asked for.
type Prompt struct {
	Tools    []Piece `json:"tools,omitempty"`
	Messages []Piece `json:"messages,omitempty"`
	// Partial says that there are unknown parts before or after these.
	Partial bool `json:"partial,omitempty"`
}

// Piece is a tool or a message; a prompt of plain text is one message without a role.
// Its hashes depend only on the text and the key of the prompt's blocks: the same text
// of two tenants has the same hash.
type Piece struct {
	Role string `json:"role,omitempty"` // as given, up to 32 bytes
	// Bytes is the length of the text, without the role. Content other than text
	// has none.
	Bytes int `json:"bytes"`
	// End is where the piece ends in the text that Request.Blocks are cut from, 64
	// bytes each.
	End int `json:"end"`
	// Hash covers the whole piece, Words its text without white space, and Template
	// that without its Values.
	Hash     Hash `json:"hash"`
	Words    Hash `json:"words,omitzero"`
	Template Hash `json:"template,omitzero"`
	// Values are words that probably change: dates, identifiers, numbers. At most
	// the first 32 are kept.
	Values []Value `json:"values,omitempty"`
	// Shape serves to estimate how similar two texts are: the smallest few of the
	// hashes of each three consecutive words, ascending. Empty for short texts.
	Shape []uint32 `json:"shape,omitempty"`
	// Text is the text, or its beginning, if asked for.
	Text string `json:"text,omitempty"`
}

// Value is a word that probably changes.
type Value struct {
	At   int    `json:"at"`   // offset of its first byte in the text
	Kind string `json:"kind"` // "timestamp", "identifier" or "number"
	Hash Hash   `json:"hash"` // 32 bits
}

// check returns an impossible field, and why; empty if there is none.
func (p *Prompt) check() (field, reason string) {
	end := 0
	for _, pieces := range [...][]Piece{p.Tools, p.Messages} {
		for i := range pieces {
			switch piece := &pieces[i]; {
			case piece.Bytes < 0:
				return "prompt.bytes", "is negative"
			case piece.End < end:
				return "prompt.end", "is before that of the piece before"
			default:
				end = piece.End
			}
			at := 0
			for _, v := range pieces[i].Values {
				if v.At < at || v.At > pieces[i].Bytes {
					return "prompt.values.at", "is out of order, or beyond the text"
				}
				at = v.At
			}
		}
	}
	return "", ""
}
