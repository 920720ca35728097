package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http/httptest"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

// Coding agents compress their requests; the model must be read nevertheless, and engines get
// what they can read.
func TestCompressedRequests(t *testing.T) {
	g := newTestGateway(t, `endpoints: [{url: "`+newBackend(t).URL+`", models: [m]}]`)
	const body = `{"model":"m","messages":[{"role":"user","content":"Hello."}]}`
	pack := func(coding string, text []byte) []byte {
		var packed bytes.Buffer
		var w io.WriteCloser
		switch coding {
		case "gzip":
			w = gzip.NewWriter(&packed)
		case "br":
			w = brotli.NewWriter(&packed)
		case "zstd":
			w, _ = zstd.NewWriter(&packed)
		}
		_, err := w.Write(text)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		return packed.Bytes()
	}
	send := func(coding string, body []byte) int {
		r := httptest.NewRequest("POST", "/v1/chat/completions", bytes.NewReader(body))
		r.Header.Set("Content-Encoding", coding)
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		return w.Code
	}
	for _, coding := range []string{"gzip", "br", "zstd"} {
		require.Equal(t, 200, send(coding, pack(coding, []byte(body))), coding)
		require.Equal(t, 400, send(coding, []byte(body)), "%s that is none", coding)
		require.Equal(t, 413, send(coding, pack(coding, make([]byte, 16<<20))), "a bomb in %s", coding)
		require.Equal(t, 404, send(coding, pack(coding, []byte(`{"model":"other","messages":[{}]}`))), coding)
	}
	require.Equal(t, 415, send("zstd, gzip", pack("gzip", pack("zstd", []byte(body)))), "one around another")
	require.Equal(t, 415, send("lz4", []byte("x")))
	require.Equal(t, 400, send("zstd", []byte("\x28\xb5\x2f\xfd\x00\xf8\x00\x00\x00")), "a window of gigabytes")
	require.Zero(t, g.router.Stats().OpenLeases)
}
