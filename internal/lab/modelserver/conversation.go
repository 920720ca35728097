package modelserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

// conversation is the content of a prompt, independent of the API.
type conversation struct {
	salt  string
	tools json.RawMessage // as given; empty: none
	turns []turn
	// continues says that the answer is the rest of the last turn.
	continues bool
}

// turn is a message.
type turn struct {
	role  string
	parts []part
}

type partKind int

const (
	textPart partKind = iota
	thinkingPart
	callPart   // a call of a tool
	resultPart // its result; the text follows as separate parts
)

// part is a part of a message.
type part struct {
	kind partKind
	text string // or the arguments of a call as JSON
	name string // of the tool
}

func text(s string) part { return part{kind: textPart, text: s} }

// question returns the text of the last message; "" if it is not the user's own
// words but a tool's result.
func (c *conversation) question() (q string) {
	if len(c.turns) == 0 {
		return ""
	}
	last := c.turns[len(c.turns)-1]
	if last.role != "user" {
		return ""
	}
	for _, p := range last.parts {
		switch p.kind {
		case resultPart:
			return ""
		case textPart:
			q += p.text
		}
	}
	return q
}

// render renders the conversation like a template. Thoughts are kept while the
// tools that they led to are called, and dropped once the user has spoken
// again.
func (c *conversation) render(blockTokens int) tokens {
	t := newTokens(blockTokens, c.salt)
	if given(c.tools) {
		t.add(startOfTools)
		t.addText(string(c.tools))
		t.add(endOfMessage)
	}
	spoken := 0 // the user's last turn
	for i, turn := range c.turns {
		if turn.role == "user" && !turn.isResult() {
			spoken = i
		}
	}
	for i, turn := range c.turns {
		t.addHeader(turn.role)
		for _, p := range turn.parts {
			if p.kind != thinkingPart || i > spoken {
				t.addPart(p)
			}
		}
		if c.continues && i == len(c.turns)-1 {
			return t
		}
		t.add(endOfMessage)
	}
	t.addHeader("assistant")
	return t
}

func (t turn) isResult() bool {
	return slices.ContainsFunc(t.parts, func(p part) bool { return p.kind == resultPart })
}

func (t *tokens) addHeader(role string) {
	t.add(startOfHeader)
	t.addText(role)
	t.add(endOfHeader)
}

func (t *tokens) addPart(p part) {
	switch p.kind {
	case thinkingPart:
		t.add(startOfThinking)
		t.addText(p.text)
	case callPart:
		t.add(startOfCall)
		t.addText(p.name)
		t.add(endOfHeader)
		t.addText(p.text)
	case resultPart:
	default:
		t.addText(p.text)
	}
}

func given(v json.RawMessage) bool { return len(v) > 0 && !bytes.Equal(v, []byte("null")) }

// compact removes the spaces between JSON values.
func compact(v json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, v) != nil {
		return string(v)
	}
	return b.String()
}

// contentPart is a part of a message in any of the APIs.
type contentPart struct {
	Type     string          `json:"type"`
	Text     string          `json:"text"`
	Thinking string          `json:"thinking"`
	Name     string          `json:"name"`
	Input    json.RawMessage `json:"input"`
	Content  json.RawMessage `json:"content"`
}

// readContent reads text, or a list of parts.
func readContent(v json.RawMessage) ([]part, error) {
	if !given(v) {
		return nil, nil // an assistant that only calls tools
	}
	var s string
	if json.Unmarshal(v, &s) == nil {
		return []part{text(s)}, nil
	}
	var list []contentPart
	if json.Unmarshal(v, &list) != nil {
		return nil, fmt.Errorf("is neither a string nor a list of parts")
	}
	var parts []part
	for i, p := range list {
		switch p.Type {
		case "text", "input_text", "output_text", "summary_text", "reasoning_text":
			parts = append(parts, text(p.Text))
		case "thinking":
			parts = append(parts, part{kind: thinkingPart, text: p.Thinking})
		case "redacted_thinking":
		case "tool_use":
			parts = append(parts, part{kind: callPart, name: p.Name, text: compact(p.Input)})
		case "tool_result":
			result, err := readContent(p.Content)
			if err != nil {
				return nil, fmt.Errorf("has a part %d whose content %w", i, err)
			}
			parts = append(append(parts, part{kind: resultPart}), result...)
		default:
			return nil, fmt.Errorf("has a part %d of unknown type %q", i, p.Type)
		}
	}
	return parts, nil
}
