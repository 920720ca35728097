package transport

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/endpick/endpick"
)

const contentChunk = `{"id":"chatcmpl-3f2a","object":"chat.completion.chunk","created":1732153200,"model":"m","choices":[{"index":0,"delta":{"content":" work"},"finish_reason":null}]}`

type canned struct {
	header http.Header
	body   []byte
}

func (c canned) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: c.header.Clone(), Body: io.NopCloser(bytes.NewReader(c.body)), ContentLength: -1}, nil
}

// BenchmarkRoundTrip measures a whole request apart from the network: a chat of
// 4 KB with a response of 200 chunks.
func BenchmarkRoundTrip(b *testing.B) {
	router, err := endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "a", Address: "a:1"}}})
	if err != nil {
		b.Fatal(err)
	}
	tr, err := New(Config{Router: router, Base: canned{
		header: http.Header{"Content-Type": {"text/event-stream"}},
		body:   []byte(strings.Repeat("data: "+contentChunk+"\n\n", 200) + "data: [DONE]\n\n"),
	}})
	if err != nil {
		b.Fatal(err)
	}
	chat := `{"model":"m","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("All work and no play. ", 190) + `"}]}`
	p := make([]byte, 32<<10)
	b.ReportAllocs()
	for b.Loop() {
		req, _ := http.NewRequest(http.MethodPost, "http://gateway/v1/chat/completions", strings.NewReader(chat))
		resp, err := tr.RoundTrip(req)
		if err != nil {
			b.Fatal(err)
		}
		for err == nil {
			_, err = resp.Body.Read(p)
		}
		if err != io.EOF || resp.Body.Close() != nil {
			b.Fatal(err)
		}
	}
}
