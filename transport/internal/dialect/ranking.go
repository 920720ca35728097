package dialect

// APIs that compare texts: rerankers, in the format of Jina and Cohere, and
// vLLM's scores.
var rankingDialect = dialect{
	paths:     []string{"/rerank", "/reranking", "/score"},
	place:     placeRanking,
	hasPrompt: func(c *call) bool { return present(c.prompt) && present(c.others) },
	prompt:    readRanking,
	usage:     (*usage).readRanking,
	inUsage:   "usage",
}

func placeRanking(c *call, key []byte) *[]byte {
	switch string(key) {
	case "query", "queries", "text_1", "data_1":
		return &c.prompt
	case "documents", "texts", "items", "text_2", "data_2":
		return &c.others
	}
	return nil
}

// readRanking reads the texts of both sides. The engine reads each document
// together with the query; the blocks are those of the first text, with which
// prompts begin.
func readRanking(p *promptReader) bool {
	queries, first := p.texts(p.prompt, true)
	documents, n := p.texts(p.others, false)
	if first == 0 || n == 0 {
		return false
	}
	if first == 1 {
		queries *= n // once with each document
	}
	p.size, p.rough = queries+documents, true
	return true
}

// texts reads a text, an object with a text, or a list of these, and returns their
// length and number.
func (p *promptReader) texts(v []byte, hash bool) (size, n int) {
	c := p.elementsOf(v)
	if c.b == nil {
		return p.oneText(v, hash), 1
	}
	for c.element() && !p.canceled() {
		size += p.oneText(c.value(), hash && n == 0)
		n++
	}
	return size, n
}

func (p *promptReader) oneText(v []byte, hash bool) int {
	if !isString(v) {
		if t := p.field(v, "text"); isString(t) {
			v = t
		} else {
			return len(v) // of another type
		}
	}
	if hash {
		p.readText(v, true)
	}
	return stringLen(v)
}

// readRanking reads the single figure that most engines report.
func (u *usage) readRanking(v []byte) {
	u.prompt, u.hasPrompt = merge(u.prompt, u.hasPrompt, field(v, "total_tokens"))
	u.prompt, u.hasPrompt = merge(u.prompt, u.hasPrompt, field(v, "prompt_tokens"))
}
