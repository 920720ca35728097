package tokens_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport/tokens"
	"github.com/stretchr/testify/require"
)

// The ids are those that llama.cpp generates from: as many as it reports for the prompt;
// and the common prefix of two prompts in a conversation is what it finds in its cache,
// to within a block.
func TestLlamaTokensAreThoseOfTheEngine(t *testing.T) {
	if err := rig.LlamaAvailable(); err != nil {
		t.Skip(err)
	}
	server := rig.Must(rig.StartLlama())
	t.Cleanup(server.Kill)
	tokenizer := tokens.Llama(server.URL(), nil)
	for conversation := range 4 {
		// Each conversation differs from its first words on and has a slot of its own.
		messages := []map[string]any{{"role": "system", "content": fmt.Sprintf("%d: be brief. %s", conversation, strings.Repeat("Rules. ", 20))}}
		var held []uint32 // the slot's ids of the last turn
		turns, worst := 0, 0
		for turn := range 6 {
			messages = append(messages, map[string]any{"role": "user", "content": fmt.Sprintf("turn %d: %s \u00e4\u4f60 <|im_end|> </s> ?", turn, strings.Repeat("why so ", 3+turn*conversation))})
			body := rig.Must(json.Marshal(map[string]any{"model": "any", "messages": messages, "max_tokens": 8, "temperature": 0, "cache_prompt": true}))
			ids := rig.Must(tokenizer.Tokens(t.Context(), "/v1/chat/completions", body))

			var answer struct {
				Choices []struct {
					Message struct{ Content string }
				}
				Usage struct {
					PromptTokens        int `json:"prompt_tokens"`
					PromptTokensDetails struct {
						CachedTokens int `json:"cached_tokens"`
					} `json:"prompt_tokens_details"`
				}
			}
			resp := rig.Must(http.Post(server.URL()+"/v1/chat/completions", "application/json", bytes.NewReader(body)))
			require.NoError(t, json.NewDecoder(resp.Body).Decode(&answer))
			resp.Body.Close()
			require.Equal(t, http.StatusOK, resp.StatusCode)
			require.Len(t, answer.Choices, 1)
			require.Len(t, ids, answer.Usage.PromptTokens)

			if turn > 0 {
				common := 0
				for common < min(len(held), len(ids)-1) && held[common] == ids[common] {
					common++
				}
				require.Greater(t, common, 2*prefix.BlockTokens)
				difference := answer.Usage.PromptTokensDetails.CachedTokens - common
				require.LessOrEqual(t, max(difference, -difference), prefix.BlockTokens, "conversation %d, turn %d: %d in common, %d found", conversation, turn, common, answer.Usage.PromptTokensDetails.CachedTokens)
				worst = max(worst, max(difference, -difference))
				turns++
			}
			held = ids
			messages = append(messages, map[string]any{"role": "assistant", "content": answer.Choices[0].Message.Content})
		}
		t.Logf("conversation %d: %d turns, predicted and reported cached tokens differ by %d at most, of %d", conversation, turns, worst, len(held))
	}
}
