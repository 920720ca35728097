package dialect

import (
	"bytes"
	"mime"
	"net/http"
	"strings"
)

// Files to be transcribed arrive in forms (RFC 7578), with the model in a
// field.

const (
	// maxFormParts is how many parts of a form are examined.
	maxFormParts = 256
	// maxPartHeader is the longest header of a part.
	maxPartHeader = 4 << 10
)

// formBoundary is the boundary between the fields of a form; empty if the body is none.
func formBoundary(header http.Header) string {
	kind, params, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" {
		return ""
	}
	return params["boundary"]
}

// formField returns the content of the last field with this name, up to the
// length of a name; empty if there is none. Its time is linear, whatever the
// form contains.
func formField(body []byte, boundary, name string) (content string) {
	delimiter := []byte("\r\n--" + boundary)
	// The first one may be at the start of the body, without a line break.
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
			break // incomplete; the engine will refuse it
		}
		// The rest of the delimiter's line, white space, precedes the header.
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
