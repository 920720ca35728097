package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"net/http"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/suite"
	"github.com/endpick/endpick/transport"
)

// openSender opens a gateway that sends requests itself, on a transport.Dispatcher.
func openSender(config endpick.Config) (*suite.Front, error) {
	router, err := endpick.New(config)
	if err != nil {
		return nil, err
	}
	s, err := transport.NewDispatcher(transport.Config{Router: router, Pass: []string{"/"}})
	if err != nil {
		return nil, err
	}
	base := &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true}
	return suite.Serve(&sender{s, base}, router, func() error { base.CloseIdleConnections(); return nil })
}

// sender is a gateway with an HTTP client of its own, like the example of package
// transport.
type sender struct {
	dispatcher *transport.Dispatcher
	base       http.RoundTripper
}

func (g *sender) ServeHTTP(w http.ResponseWriter, in *http.Request) {
	refuse := func(err error) {
		status, header, body := transport.ErrorResponse(in.URL.Path, err)
		maps.Copy(w.Header(), header)
		w.WriteHeader(status)
		_, _ = w.Write(body)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, in.Body, g.dispatcher.MaxBodyBytes()))
	if err != nil {
		refuse(err)
		return
	}
	call, err := g.dispatcher.Read(transport.Incoming{Method: in.Method, Path: in.URL.Path, Header: in.Header, Body: body})
	if err != nil {
		refuse(err)
		return
	}
	defer call.Close()
	for {
		attempt, err := call.Route(in.Context())
		if err != nil {
			refuse(err)
			return
		}
		response, err := g.send(in, call, attempt)
		if err != nil {
			if err = attempt.Fail(err); attempt.Again() {
				continue
			}
			refuse(err)
			return
		}
		body := bufio.NewReader(response.Body)
		_, _ = body.Peek(1)
		first, _ := body.Peek(body.Buffered())
		if attempt.Header(response.StatusCode, response.Header, first) != nil && attempt.Again() {
			_ = response.Body.Close()
			continue
		}
		defer response.Body.Close()
		maps.Copy(w.Header(), response.Header)
		w.WriteHeader(response.StatusCode)
		pass(w, attempt.Reader(io.NopCloser(body)))
		return
	}
}

func (g *sender) send(in *http.Request, call *transport.Call, attempt *transport.Attempt) (*http.Response, error) {
	out, err := http.NewRequestWithContext(in.Context(), in.Method,
		"http://"+attempt.Endpoint().Address+in.URL.RequestURI(), bytes.NewReader(bytes.Join(call.Body(), nil)))
	if err != nil {
		return nil, err
	}
	out.Header = in.Header.Clone()
	attempt.SetHeader(out.Header)
	response, err := g.base.RoundTrip(out)
	if err == nil && response.StatusCode == http.StatusSwitchingProtocols {
		_ = response.Body.Close()
		return nil, errors.New("it has left HTTP")
	}
	return response, err
}

func pass(w http.ResponseWriter, body io.Reader) {
	piece := make([]byte, 16<<10)
	for {
		n, err := body.Read(piece)
		_, _ = w.Write(piece[:n])
		switch err {
		case nil:
			_ = http.NewResponseController(w).Flush()
		case io.EOF:
			return
		default:
			panic(http.ErrAbortHandler) // so that the client notices
		}
	}
}
