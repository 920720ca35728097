package main

import (
	"bytes"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Streams of HTTP/2 that are reset at once leave nothing behind.
func TestResetStreamsLeaveNothing(t *testing.T) {
	b := newBackend(t)
	c := startConfig(t, writeSettings(t, "listen: 127.0.0.1:0\nh2c: true\nlog: {requests: none}\nendpoints: [{url: \""+b.URL+"\"}]\n"))
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	var header bytes.Buffer
	encoder := hpack.NewEncoder(&header)
	for _, field := range [][2]string{{":method", "POST"}, {":path", "/v1/chat/completions"}, {":scheme", "http"}, {":authority", "a"}} {
		require.NoError(t, encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1], Sensitive: true}))
	}
	before, quiet := heap(), runtime.NumGoroutine()
	var all sync.WaitGroup
	connect := func() {
		conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
		if !assert.NoError(t, err) {
			return
		}
		defer conn.Close()
		all.Go(func() { _, _ = io.Copy(io.Discard, conn) })
		_, err = io.WriteString(conn, http2.ClientPreface)
		f := http2.NewFramer(conn, nil)
		assert.NoError(t, f.WriteSettings())
		for id := uint32(1); err == nil && id < 3000; id += 2 {
			if err = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: header.Bytes(), EndHeaders: true}); err == nil {
				err = f.WriteRSTStream(id, http2.ErrCodeCancel) // the gateway may have had enough
			}
		}
	}
	for range 2 {
		all.Go(func() {
			for range 4 {
				connect()
			}
		})
	}
	all.Wait()
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= quiet+10 }, time.Minute, 50*time.Millisecond)
	// Pools let go of what they have within some collections.
	assert.Eventually(t, func() bool { return heap()-before < 4<<20 }, time.Minute, 50*time.Millisecond, "a thousand of them are remembered")
}
