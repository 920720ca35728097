package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
)

// What happens at limits and timeouts, for TestEverySetting.

func (w *world) longBody() string {
	return fmt.Sprint(w.post("/v1/chat/completions", chat(strings.Repeat("x", 2<<10))).status)
}

func (w *world) longHeader() string {
	return fmt.Sprint(w.ask("X-Long", strings.Repeat("x", 20<<10)).status)
}

func (w *world) manyMessages() string {
	const message = `{"role":"user","content":"x"}`
	return fmt.Sprint(w.post("/v1/chat/completions", `{"model":"m","messages":[`+strings.Repeat(message+",", 9)+message+`]}`).status)
}

// dial opens a connection, which is closed before the gateway stops, and sends something.
func (w *world) dial(text string) net.Conn {
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.gateway().url, "http://"))
	require.NoError(w, err)
	w.leaving = append(w.leaving, func() { _ = conn.Close() })
	_, err = io.WriteString(conn, text)
	require.NoError(w, err)
	return conn
}

// untilClosed waits for the end of a connection that sends something.
func (w *world) untilClosed(text string) string {
	w.gateway()
	then := time.Now()
	conn := w.dial(text)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, conn)
	}()
	return w.waitFor(then, ended)
}

func (w *world) halfAHeader() string { return w.untilClosed("GET / HTTP/1.1\r\nHost") }
func (w *world) idle() string        { return w.untilClosed("GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n") }
func (w *world) halfABody() string {
	return w.untilClosed("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
}

// connections is how many of two are served.
func (w *world) connections() string {
	const ready = "GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n"
	answered := func(conn net.Conn, patience time.Duration) bool {
		require.NoError(w, conn.SetReadDeadline(time.Now().Add(patience)))
		_, err := conn.Read(make([]byte, 1))
		return err == nil
	}
	require.True(w, answered(w.dial(ready), 30*time.Second))
	patience := quiet
	if w.value == "2" {
		patience = 30 * time.Second
	}
	if answered(w.dial(ready), patience) {
		return "2"
	}
	return "1"
}

func (w *world) attempts() string {
	down := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }
	w.one.then(down)
	w.two.then(down)
	w.ask()
	return strconv.Itoa(len(w.one.all()) + len(w.two.all()))
}

func streamed(text string) string { return strings.Replace(chat(text), "{", `{"stream":true,`, 1) }

func (w *world) noStream() string {
	w.one.then(forever)
	w.gateway()
	return w.lasts(func() { w.post("/v1/chat/completions", streamed("Hello.")) })
}

func (w *world) noResponse() string {
	w.one.then(forever)
	w.gateway()
	return w.lasts(func() { w.ask() })
}

const oneToken = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n"

// stalled is a stream that stops in the middle.
func (w *world) stalled() string {
	w.one.then(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, oneToken)
		_ = http.NewResponseController(w).Flush()
		forever(w, r)
	})
	w.gateway()
	return w.lasts(func() { w.post("/v1/chat/completions", streamed("Hello.")) })
}

// silentSocket is a connection on which nobody says anything after it has left HTTP.
func (w *world) silentSocket() string {
	w.one.then(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			defer conn.Close()
			_, _ = io.Copy(io.Discard, conn)
		}
	})
	return w.untilClosed("GET /v1/realtime?model=m HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
}

// unread is a client that reads nothing of a long stream.
func (w *world) unread() string {
	left := make(chan struct{})
	w.one.then(func(w http.ResponseWriter, _ *http.Request) {
		defer close(left)
		w.Header().Set("Content-Type", "text/event-stream")
		for {
			if _, err := io.WriteString(w, strings.Replace(oneToken, "x", strings.Repeat("x", 1<<16), 1)); err != nil {
				return
			}
		}
	})
	w.gateway()
	then, ask := time.Now(), streamed("Hello.")
	w.dial(fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(ask), ask))
	return w.waitFor(then, left)
}

// stopping stops the gateway while it serves a request that does not end.
func (w *world) stopping() string {
	w.one.then(forever)
	w.gateway()
	go w.ask()
	<-w.one.arrived
	return w.lasts(func() {
		w.c.interrupt()
		status := <-w.c.status
		w.c.status <- status
	})
}
