package dialect

import (
	"bytes"

	"github.com/endpick/endpick/prefix"
)

var (
	// OpenAI's completions.
	completion = &api{
		paths:     []string{"/completions"},
		parts:     map[string]part{"prompt": promptPart},
		prompt:    readPrompts,
		asksUsage: true,
		resumes:   []string{"vllm", "sglang", "llama.cpp"}, // Ollama takes a prompt for a message
		event:     readChunk,
	}
	// APIs that read a prompt and answer with numbers: embeddings (/encode is SGLang's, /embed TEI's and
	// Cohere's), pooling, classification. vLLM also accepts a conversation.
	embedding = &api{
		paths:  []string{"/embeddings", "/embedding", "/pooling", "/classify", "/encode", "/embed"},
		parts:  map[string]part{"input": promptPart, "content": promptPart, "text": promptPart, "input_ids": promptPart, "inputs": promptPart, "texts": promptPart, "messages": messagesPart},
		prompt: readPrompts,
	}
	// APIs that compare texts: rerankers, in the format of Jina and Cohere, and vLLM's scores. Each text is read
	// once, with little before it, so that where they were read before does not matter. And vLLM's batches of chats.
	ranking = &api{paths: []string{"/rerank", "/reranking", "/score", "/chat/completions/batch"}}
	// What an engine does without its model: tokens of a text, the text of tokens, or the text of a
	// conversation.
	tokenization = &api{
		paths: []string{"/tokenize", "/detokenize", "/apply-template"},
		prompt: func(p *promptReader) bool {
			p.tokens = 1 // almost no cost
			return true
		},
		idle: true,
	}
)

// readPrompts reads one prompt or several, as most engines accept them: a text, a list of token ids,
// an object with a text and media, or a list of these, or else a conversation. Blocks are those of the
// first. What mixes texts and ids, as for llama.cpp, is not read: its length is that of the body.
func readPrompts(p *promptReader) bool {
	all := p.parts[promptPart]
	if !present(all) {
		return readConversation(p)
	}
	c := elementsOf(all)
	if !hasElements(all) || isNumber(c.peek()) {
		return p.onePrompt(all, true)
	}
	for p.prompts = 0; p.next(&c); p.prompts++ {
		if !p.onePrompt(c.value(), p.prompts == 0) {
			return false
		}
	}
	return p.failed == nil && (p.size == 0 || p.tokens == 0)
}

func isNumber(c byte) bool { return c-'0' < 10 || c == '-' }

// onePrompt adds one of several prompts, if it is one.
func (p *promptReader) onePrompt(v []byte, first bool) bool {
	words := v
	if isObject(v) {
		var media []byte
		pick(v, into{"prompt_string", &words}, into{"multimodal_data", &media})
		p.media += length(media)
	}
	if !isString(words) {
		return p.readTokens(v, first)
	}
	p.texts = p.texts[:0]
	s := p.shortest(words)
	p.size += len(s)
	if !p.known && first {
		p.blocks = prefix.AppendText(nil, p.seed, s)
		if p.sketcher != nil {
			p.sketcher.Message(&prefix.Message{Parts: []prefix.Part{{Content: s}}}, len(s))
		}
	}
	return true
}

// maxHashedTokens is the length of the longest head of a prompt that is hashed,
// longer than any context.
const maxHashedTokens = 1 << 22

// readTokens adds a list of token ids, of which there must be at least one.
func (p *promptReader) readTokens(v []byte, first bool) bool {
	var ids []uint32
	if first = first && !p.known; first {
		ids = make([]uint32, 0, min(bytes.Count(v, []byte{','})+1, len(v)/2, maxHashedTokens))
	}
	n := 0
	for c := elementsOf(v); c.element(); n++ {
		id, isID := count(c.value())
		switch {
		case !isID:
			return false
		case first && n < maxHashedTokens:
			ids = append(ids, uint32(id))
		}
	}
	p.tokens += n
	p.blocks = prefix.AppendTokens(p.blocks, p.seed, ids)
	return n > 0
}
