package modelserver

import "encoding/json"

type completionRequest struct {
	params
	Prompt json.RawMessage `json:"prompt"`
}

func parseCompletion(s *Server, body []byte) (*question, *apiError) {
	var req completionRequest
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, invalid("", "the body is not valid: %v", err)
	}
	texts, ids, ok := readPrompts(req.Prompt)
	if !ok {
		return nil, invalid("prompt", "prompt is missing, or not a string, a list of token ids, or a list of those")
	}
	q := req.params.question(completionAPI)
	for _, text := range texts {
		t := newTokens(s.block, req.CacheSalt)
		t.addText(text)
		q.prompts = append(q.prompts, t)
	}
	for _, prompt := range ids {
		t := newTokens(s.block, req.CacheSalt)
		for _, id := range prompt {
			t.add(callersToken | token(id))
		}
		q.prompts = append(q.prompts, t)
	}
	for _, t := range q.prompts {
		if t.length == 0 {
			return nil, invalid("prompt", "a prompt is empty")
		}
	}
	if len(texts) == 1 {
		q.script = readScript(texts[0], false)
	}
	return q, nil
}

// readPrompts reads the four forms of a prompt.
func readPrompts(v json.RawMessage) (texts []string, ids [][]uint32, ok bool) {
	if !given(v) {
		return nil, nil, false
	}
	var one string
	if json.Unmarshal(v, &one) == nil {
		return []string{one}, nil, true
	}
	var oneIDs []uint32
	if json.Unmarshal(v, &oneIDs) == nil {
		return nil, [][]uint32{oneIDs}, true
	}
	if json.Unmarshal(v, &texts) == nil {
		return texts, nil, true
	}
	return nil, ids, json.Unmarshal(v, &ids) == nil
}
