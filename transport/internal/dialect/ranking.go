package dialect

// APIs that compare texts: rerankers, in the format of Jina and Cohere, and
// vLLM's scores.
var ranking = &api{
	paths: []string{"/rerank", "/reranking", "/score"},
	parts: map[string]part{
		"query": promptPart, "queries": promptPart, "text_1": promptPart, "data_1": promptPart,
		"documents": othersPart, "texts": othersPart, "items": othersPart, "text_2": othersPart, "data_2": othersPart,
	},
	prompt: readRanking,
}

// readRanking reads the texts of both sides. The engine reads each document
// together with the query; the blocks are those of the first text, with which
// prompts begin.
func readRanking(p *promptReader) bool {
	query, others := p.parts[promptPart], p.parts[othersPart]
	if !present(query) || !present(others) {
		return false
	}
	queries, first := p.texts(query, true)
	documents, n := p.texts(others, false)
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
