package modelserver

import "encoding/json"

type completionRequest struct {
	params
	Prompt string `json:"prompt"`
}

func parseCompletion(s *Server, body []byte) (*question, *apiError) {
	var req completionRequest
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, invalid("", "the body is not valid: %v", err)
	}
	if req.Prompt == "" {
		return nil, invalid("prompt", "prompt is missing or empty")
	}
	q := req.params.question(completionAPI)
	q.prompt = newTokens(s.block, req.CacheSalt)
	q.prompt.addText(req.Prompt)
	q.script = readScript(req.Prompt, false)
	return q, nil
}
