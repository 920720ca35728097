package dialect

import (
	"bytes"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
)

// maxFormParts is how many parts of a form are examined.
const maxFormParts = 256

// formBoundary is the boundary between the fields of a form (RFC 7578), in which files to be
// transcribed arrive; empty if the body is none.
func formBoundary(header http.Header) string {
	kind, params, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" {
		return ""
	}
	return params["boundary"]
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
