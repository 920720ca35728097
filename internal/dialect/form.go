package dialect

import (
	"bytes"
	"mime"
	"net/http"
	"strings"
)

// Files to be transcribed come in forms (RFC 7578), which name the model in a
// field.

const (
	// maxFormParts is how many parts of a form are looked at.
	maxFormParts = 256
	// maxPartHeader is how long the header of a part may be.
	maxPartHeader = 4 << 10
)

// formBoundary is what parts the fields of a form; empty if the body is none.
func formBoundary(header http.Header) string {
	kind, params, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" {
		return ""
	}
	return params["boundary"]
}

// formField returns the content of a field, the last one with this name, as far
// as it may be a name; empty if there is none. Bytes that are looked for are
// searched once, whatever the form is made of.
func formField(body []byte, boundary, name string) (content string) {
	delimiter := []byte("\r\n--" + boundary)
	// The first may stand at the start of the body, without a line before it.
	if !bytes.HasPrefix(body, delimiter[2:]) {
		i := bytes.Index(body, delimiter)
		if i < 0 {
			return ""
		}
		body = body[i+2:]
	}
	body = body[len(delimiter)-2:]
	for range maxFormParts {
		if bytes.HasPrefix(body, []byte("--")) {
			break // that was the last
		}
		end := bytes.Index(body, delimiter)
		if end < 0 {
			break // broken off; the engine will refuse it
		}
		// The rest of the delimiter's line, white space, comes before the header.
		head, value, ok := bytes.Cut(body[:end], []byte("\r\n\r\n"))
		if ok && len(head) <= maxPartHeader && fieldName(head) == name {
			content = string(value[:min(len(value), maxName+1)])
		}
		body = body[end+len(delimiter):]
	}
	return content
}

// fieldName is the name in the Content-Disposition of a part's header.
func fieldName(head []byte) string {
	for line := range strings.SplitSeq(string(head), "\r\n") {
		key, value, _ := strings.Cut(line, ":")
		if strings.EqualFold(strings.TrimSpace(key), "Content-Disposition") {
			if kind, params, err := mime.ParseMediaType(value); err == nil && kind == "form-data" {
				return params["name"]
			}
		}
	}
	return ""
}
