package recording

// Version is that of the format as it is written now. A line says its version;
// without one it is of version 1, which had nothing of what a prompt is made of. Read
// takes all versions up to this one.
const Version = 2

// Prompt describes the parts of a prompt, in the order of the request, so that
// package prefix/diagnose can tell where two prompts diverge and why. It contains no
// text unless that was asked for.
type Prompt struct {
	Tools    []Piece `json:"tools,omitempty"`
	Messages []Piece `json:"messages,omitempty"`
	// Partial says that the prompt has more before or after this, which is not
	// known.
	Partial bool `json:"partial,omitempty"`
}

// Piece is a tool or a message; a prompt of plain text is one message without a role.
// Its hashes depend only on the text and the key of the prompt's blocks: the same text
// of two tenants has the same hash.
type Piece struct {
	Role string `json:"role,omitempty"` // as it was given, up to 32 bytes
	// Bytes is the length of the text, without the role. What is no text counts
	// for nothing.
	Bytes int `json:"bytes"`
	// End is where the piece ends in the text that Request.Blocks are cut from, 64
	// bytes each.
	End int `json:"end"`
	// Hash is of all of the piece, Words of its text without white space, Template of
	// that with each of its Values left out.
	Hash     Hash `json:"hash"`
	Words    Hash `json:"words,omitzero"`
	Template Hash `json:"template,omitzero"`
	// Values are words that look as if they change: dates, identifiers, numbers. At
	// most the first MaxValues are kept.
	Values []Value `json:"values,omitempty"`
	// Shape is for telling how alike two texts are: of the hashes of each four words
	// in a row, the smallest few, rising. Empty for short texts.
	Shape []uint32 `json:"shape,omitempty"`
	// Text is the text itself, or the beginning of it, if it was asked for.
	Text string `json:"text,omitempty"`
}

// MaxValues is how many values of a piece are kept.
const MaxValues = 32

// Value is a word that looks as if it changes.
type Value struct {
	At   int    `json:"at"`   // its first byte in the text
	Kind string `json:"kind"` // "timestamp", "identifier" or "number"
	Hash Hash   `json:"hash"` // 32 bits
}

// check returns the field that can't be, and why; empty if all can.
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
