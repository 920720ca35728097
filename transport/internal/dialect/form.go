package dialect

import (
	"bytes"
	"cmp"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// OpenAI's transcriptions and translations of speech, which arrive in forms.
var transcription = &api{
	paths:  []string{"/audio/transcriptions", "/audio/translations"},
	prompt: readSpeech,
	event:  readTranscriptEvent,
}

// speechBytes is roughly how much sound, at 128 kbit/s, becomes a token, at fifty
// tokens per second.
const speechBytes = 320

func readSpeech(p *promptReader) bool {
	if !p.isForm {
		return false
	}
	p.tokens = max(len(p.body)/speechBytes, 1)
	return true
}

// readTranscriptEvent reads OpenAI's events, and the chunks that vLLM sends.
func readTranscriptEvent(to *response, data []byte) {
	switch string(stringBytes(field(data, "type"))) {
	case "transcript.text.delta":
		to.on(event{kind: text, text: field(data, "delta")})
	case "transcript.text.done":
		to.on(event{kind: ends, all: true})
		to.on(event{kind: reports, value: field(data, "usage")})
	case "error":
		to.on(event{kind: fails})
	default:
		readChunk(to, data)
	}
}

// maxFormParts is how many parts of a form are examined.
const maxFormParts = 256

// formBoundary is the boundary between the fields of a form (RFC 7578), in which files to be
// transcribed arrive; empty if the body is none. Some clients forget quotes, which engines don't need.
func formBoundary(header http.Header) string {
	value := header.Get("Content-Type")
	kind, params, _ := mime.ParseMediaType(value)
	if kind != "multipart/form-data" {
		return ""
	}
	_, value, _ = strings.Cut(value, "boundary=")
	unquoted, _, _ := strings.Cut(value, ";")
	return cmp.Or(params["boundary"], unquoted)
}

// formField returns the content of the last field with this name, up to the
// length of a name; empty if there is none.
func formField(body []byte, boundary, name string) (content string) {
	r := multipart.NewReader(bytes.NewReader(body), boundary)
	for range maxFormParts {
		p, err := r.NextRawPart()
		if err != nil {
			break // that was the last, or the engine will refuse it
		}
		if p.FormName() != name {
			continue
		}
		value, err := io.ReadAll(io.LimitReader(p, maxName+1))
		if err != nil {
			break
		}
		content = string(value)
	}
	return content
}

// WithModel returns the body and the query of the same request to another model; a nil body if the
// model can't be replaced, because the body is a form that not everybody reads in the same way.
func (c *Call) WithModel(model, query string) (body []byte, newQuery string) {
	switch v := c.parts[modelPart]; {
	case c.isForm:
		return c.formWithModel(model), query
	case v != nil:
		return slices.Concat(c.body[:c.modelEnd-len(v)], quote(model), c.body[c.modelEnd:]), query
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
