package conformance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"
)

var (
	asksForError = regexp.MustCompile(`\[\[error (\d+)`)
	ollamaPages  = map[string]string{
		"/api/version": `{"version":"0.17.4"}`,
		"/api/tags":    `{"models":[{"name":"` + model + `","size":7,"details":{"family":"llama"}}]}`,
		"/api/show":    `{"model_info":{"general.parameter_count":1},"capabilities":["completion","tools"]}`,
		"/api/embed":   `{"model":"` + model + `","embeddings":[[0.5,-0.25],[0.125,1]],"load_duration":1,"prompt_eval_count":9}`,
	}
)

// ollama answers as an Ollama server does: with as many words as are asked for, the first of
// them thoughts if these are, and a call of the tool.
func ollama(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Model    string
		Messages []struct{ Content string }
		Tools    []any
		Think    bool
		Stream   *bool
		Options  struct{ Num_predict int }
	}
	_ = json.NewDecoder(r.Body).Decode(&q)
	streams := q.Stream == nil || *q.Stream
	asked, page := "", ollamaPages[r.URL.Path]
	for _, m := range q.Messages {
		asked = m.Content
	}
	status, kind := http.StatusOK, "application/json; charset=utf-8"
	if m := asksForError.FindStringSubmatch(asked); m != nil {
		_, _ = fmt.Sscan(m[1], &status)
		page = `{"error":"as asked for"}`
		w.Header().Set("Retry-After", "7")
	} else if r.Method == http.MethodPost && q.Model != model {
		status, page = http.StatusNotFound, fmt.Sprintf(`{"error":"model '%s' not found"}`, q.Model)
	} else if streams && page == "" {
		kind = "application/x-ndjson"
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	_, _ = w.Write([]byte(page))
	if page != "" {
		return
	}
	form := `"response":%q,"thinking":%q%.0s`
	if r.URL.Path == "/api/chat" {
		form = `"message":{"role":"assistant","content":%q,"thinking":%q%s}`
	}
	send := func(words, thoughts, more string) {
		calls := ""
		if len(q.Tools) > 0 && (more == "" || !streams) {
			calls = `,"tool_calls":[{"function":{"name":"weather","arguments":{"city":"Paris","days":[1,2]}}}]`
		}
		fmt.Fprintf(w, `{"model":%q,%s,"done":%t%s}`+"\n", model, fmt.Sprintf(form, words, thoughts, calls), more != "", more)
		_ = http.NewResponseController(w).Flush()
	}
	words, thought := strings.Repeat(" wörd", q.Options.Num_predict), map[bool]string{true: "hm <é>"}[q.Think]
	if streams {
		send("", thought, "")
		for range q.Options.Num_predict {
			if time.Sleep(time.Millisecond); r.Context().Err() != nil {
				return
			}
			send(" wörd", "", "")
		}
		words, thought = "", ""
	}
	send(words, thought, `,"done_reason":"stop","load_duration":1,"prompt_eval_count":5,"eval_count":12`)
}
