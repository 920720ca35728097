package dialect

import (
	"bytes"
	"encoding/json"
	"net/url"
	"slices"
)

// WithModel returns the body and the query of the same request to another model; a nil body if the
// model can't be replaced, because the body is a form that not everybody reads in the same way.
func (c *Call) WithModel(model, query string) (body []byte, newQuery string) {
	switch v := c.parts[modelPart]; {
	case c.isForm:
		return c.formWithModel(model), query
	case v != nil:
		quoted, _ := json.Marshal(model)
		return slices.Concat(c.body[:c.modelEnd-len(v)], quoted, c.body[c.modelEnd:]), query
	}
	values, _ := url.ParseQuery(query)
	values.Set("model", model)
	return c.body, values.Encode()
}

// formWithModel replaces the last field of a form, if it stands there as clients send it.
func (c *Call) formWithModel(model string) []byte {
	at := bytes.LastIndex(c.body, []byte(`name="model"`))
	if at < 0 {
		return nil
	}
	_, rest, _ := bytes.Cut(c.body[at:], []byte("\r\n\r\n"))
	if !bytes.HasPrefix(rest, []byte(c.model+"\r\n--")) {
		return nil
	}
	return slices.Concat(c.body[:len(c.body)-len(rest)], []byte(model), rest[len(c.model):])
}
