package dialect

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Without a session's name, turns belong together if they are equal up to the first question: a
// prefix common to many conversations, such as a system prompt, does not make them one session.
func TestConversationsAreSessionsOfTheirOwn(t *testing.T) {
	user := func(text string) string { return `{"role":"user","content":` + quoted(text) + `}` }
	heads := map[string]struct{ path, body string }{
		"chat":               {"/v1/chat/completions", `{"model":"m","messages":[%s]}`},
		"chat, system":       {"/v1/chat/completions", `{"model":"m","messages":[{"role":"system","content":"be"},%s]}`},
		"chat, long system":  {"/v1/chat/completions", `{"model":"m","messages":[{"role":"developer","content":"` + words("be") + `"},%s]}`},
		"chat, tools":        {"/v1/chat/completions", `{"model":"m","tools":[{"type":"function","function":{"name":"f"}}],"messages":[{"role":"system","content":"be"},%s]}`},
		"chat, an example":   {"/v1/chat/completions", `{"model":"m","messages":[{"role":"assistant","content":"hello"},%s]}`},
		"messages":           {"/v1/messages", `{"model":"m","messages":[%s]}`},
		"messages, system":   {"/v1/messages", `{"model":"m","system":"` + words("be") + `","messages":[%s]}`},
		"responses":          {"/v1/responses", `{"model":"m","input":[%s]}`},
		"responses, system":  {"/v1/responses", `{"model":"m","instructions":"` + words("be") + `","input":[%s]}`},
		"responses, example": {"/v1/responses", `{"model":"m","instructions":"be","input":[{"role":"assistant","content":"hello"},%s]}`},
	}
	w := newTalk(t)
	for name, head := range heads {
		seen := map[string]string{}
		session := func(messages string, tenant string) string {
			return w.ask(head.path, fmt.Sprintf(head.body, messages), of(tenant)).Request.Session
		}
		for _, question := range []string{"why", "who", words("why"), words("why") + "?"} {
			s := session(user(question), "")
			assert.Regexp(t, "^head-", s, "%s: %.10s", name, question)
			assert.Empty(t, seen[s], "%s: %.10s", name, question)
			seen[s] = question
			assert.Equal(t, s, session(user(question)+`,{"role":"assistant","content":"so"},`+user("and?"), ""), "%s: its next turn", name)
			assert.NotEqual(t, s, session(user(question), "another"), "%s: another tenant", name)
		}
		assert.Empty(t, session(`{"role":"assistant","content":"hello"}`, ""), "%s: nobody has asked", name)
	}
}

// A stored response is continued block by block only with the tools and instructions that it was
// made with, since an engine puts those of the request into its prompt.
func TestAStoredResponseGoesOnUnderItsOwnHead(t *testing.T) {
	const path = "/v1/responses"
	tools := func(name string) string { return `,"tools":[{"type":"function","name":"` + name + `"}]` }
	be := func(how string) string { return `,"instructions":"` + how + `"` }
	heads := []string{"", tools("f"), tools("g"), be("short"), be("long"), tools("f") + be("short"), tools("f") + be("long"), tools("g") + be("short")}
	for _, made := range heads {
		w := newTalk(t)
		first := w.ask(path, `{"model":"m","input":"`+words("why")+`"`+made+`}`, nil)
		before := len(first.Request.Blocks)
		assert.NotZero(t, before)
		o := w.answer(first, "application/json", `{"id":"r","output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"`+words("so")+`"}]}]}`, 0)
		assert.Greater(t, len(o.Blocks), before)
		for _, asked := range heads {
			next := w.ask(path, `{"model":"m","input":"`+words("and")+`","previous_response_id":"r"`+asked+`}`, nil)
			assert.Equal(t, "a", next.Endpoint(), "it is there all the same")
			assert.Greater(t, next.Request.InputTokens, first.Request.InputTokens, "and as long")
			if asked != made {
				assert.Empty(t, next.Request.Blocks, "made under %q, and asked for under %q", made, asked)
				continue
			}
			if assert.Greater(t, len(next.Request.Blocks), len(o.Blocks)) {
				assert.Equal(t, o.Blocks, next.Request.Blocks[:len(o.Blocks)])
			}
		}
	}
}
