package transport

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/endpick/endpick"
)

// endless sends one chunk at each read.
type endless struct{ chunk []byte }

func (e endless) Read(p []byte) (int, error) { return copy(p, e.chunk), nil }

func (e endless) Close() error { return nil }

// meteredStream is a stream of chunks as RoundTrip returns it.
func meteredStream(t testing.TB) io.Reader {
	router, err := endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "a", Address: "a:1"}}})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := New(Config{Router: router})
	if err != nil {
		t.Fatal(err)
	}
	lease, err := router.Route(endpick.Request{Stream: true})
	if err != nil {
		t.Fatal(err)
	}
	x := &exchange{trip: &trip{t: tr, hideUsage: true}, lease: lease}
	return &eventReader{src: endless{[]byte("data: " + contentChunk + "\n\n")}, judge: x.event, end: x.eventsEnd}
}

func TestMeteringAChunkAllocatesNothing(t *testing.T) {
	r := meteredStream(t)
	p := make([]byte, 4096)
	if _, err := r.Read(p); err != nil {
		t.Fatal(err)
	}
	assert.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = r.Read(p) }))
}

// What one chunk of a stream costs on its way through: splitting, reading,
// counting, the lease.
func BenchmarkMeterChunk(b *testing.B) {
	r := meteredStream(b)
	p := make([]byte, 4096)
	b.ReportAllocs()
	b.SetBytes(int64(len(contentChunk)))
	for b.Loop() {
		if _, err := r.Read(p); err != nil {
			b.Fatal(err)
		}
	}
}

type canned struct {
	header http.Header
	body   []byte
}

func (c canned) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: c.header.Clone(), Body: io.NopCloser(bytes.NewReader(c.body)), ContentLength: -1}, nil
}

// What a whole request costs beside the network: a chat of 4 KB that is answered
// with 200 chunks.
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
