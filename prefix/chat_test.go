package prefix_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
)

func text(role, content string) prefix.Message {
	return prefix.Message{Role: role, Parts: []prefix.Part{{Content: content}}}
}

func TestChatAllocates(t *testing.T) {
	if rig.Race {
		t.Skip("the race detector empties pools")
	}
	c := prefix.Conversation{Messages: []prefix.Message{text("system", strings.Repeat("s", 1000)), text("user", "hello\xffworld")}}
	c.Messages = append(c.Messages, prefix.Message{Role: "user", Parts: []prefix.Part{{Type: "image_url", Content: strings.Repeat("picture", 1000)}}})
	c.Tools = []string{`{"name": "f", "parameters": {}}`}
	dst := make([]uint64, 0, 100)
	seed := seed(1)
	assert.Zero(t, testing.AllocsPerRun(100, func() { dst, _ = prefix.AppendChat(dst[:0], seed, &c) }))
}
