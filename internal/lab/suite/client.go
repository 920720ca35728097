package suite

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// Answer is a response as the client saw it.
type Answer struct {
	Interim []string // earlier statuses, with the Link of an early hint
	Status  string   // empty: there was none
	Header  http.Header
	Framing string
	Body    string
	Trailer http.Header
	// End is "whole", "cut" or "left".
	End string
}

// client is one connection.
type client struct {
	conn  net.Conn
	read  *bufio.Reader
	stage *stage
	s     *Scenario
}

// talk makes the exchange at an address. The error says that it could not be made at all.
func talk(ctx context.Context, network, address string, s *Scenario, stage *stage) ([]*Answer, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * stage.patience))
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	size := 64 << 10
	if s.Slow {
		size = 512
	}
	c := &client{conn: conn, read: bufio.NewReaderSize(conn, size), stage: stage, s: s}
	var all []*Answer
	for range max(s.Times, 1) {
		a, err := c.exchange()
		if err != nil {
			return all, err
		}
		all = append(all, a)
		if a.End != "whole" {
			break
		}
	}
	return all, nil
}

func (c *client) exchange() (*Answer, error) {
	a := &Answer{}
	c.stage.update(func() { c.stage.heard.Reset() })
	body := c.s.wireBody()
	if c.s.Leave == MidRequest {
		if err := c.send(c.s.head() + body[:len(body)/2]); err != nil {
			return nil, err
		}
		// The client sends nothing more, and waits until the other side has noticed.
		if half, ok := c.conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
		_, _ = io.Copy(io.Discard, c.read)
		a.End = "left"
		return a, nil
	}
	if c.s.Expect {
		if err := c.send(c.s.head()); err != nil {
			return nil, err
		}
		first, err := http.ReadResponse(c.read, c.request())
		if err != nil {
			return nil, err
		}
		if first.StatusCode != http.StatusContinue {
			return a, c.take(a, first)
		}
		a.Interim = append(a.Interim, "100")
		if err := c.send(body); err != nil {
			return nil, err
		}
	} else if err := c.send(c.s.head() + body); err != nil {
		return nil, err
	}
	if c.s.Leave == BeforeHeader {
		c.stage.wait("a server has the request", nil, func() bool { return c.stage.spoken })
		a.End = "left"
		return a, nil
	}
	for {
		r, err := http.ReadResponse(c.read, c.request())
		switch {
		case err != nil:
			a.End = "cut"
			return a, nil
		case r.StatusCode >= 200 || r.StatusCode == http.StatusSwitchingProtocols:
			return a, c.take(a, r)
		}
		a.Interim = append(a.Interim, strings.TrimSpace(fmt.Sprint(r.StatusCode, " ", r.Header.Get("Link"))))
	}
}

// take reads a response whose header has been read.
func (c *client) take(a *Answer, r *http.Response) error {
	// The body is not closed, because that would wait for its end.
	a.Status, a.Header, a.Framing = r.Proto+" "+r.Status, r.Header, framing(r.TransferEncoding, r.ContentLength)
	if r.StatusCode == http.StatusSwitchingProtocols {
		return c.chat(a)
	}
	var body strings.Builder
	piece := make([]byte, 16<<10)
	if c.s.Slow {
		piece = piece[:256]
	}
	for {
		n, err := r.Body.Read(piece)
		body.Write(piece[:n])
		c.stage.update(func() { c.stage.heard.Write(piece[:n]) })
		a.Body = body.String()
		switch {
		case c.s.Leave == MidResponse && strings.Contains(a.Body, c.s.Heard):
			a.Body = a.Body[:strings.Index(a.Body, c.s.Heard)+len(c.s.Heard)] // how much came with it is random
			a.End = "left"
			return nil
		case err == io.EOF:
			a.Trailer, a.End = r.Trailer, "whole"
			return nil
		case err != nil:
			if i := strings.Index(a.Body, c.s.Heard); c.s.Heard != "" && i >= 0 {
				a.Body = a.Body[:i+len(c.s.Heard)] // how much of the rest comes is random
			}
			a.End = "cut"
			return nil
		case c.s.Slow && body.Len()%(64<<10) < n:
			time.Sleep(time.Millisecond) // like a slow client
		}
	}
}

// chat speaks the echo protocol in capitals.
func (c *client) chat(a *Answer) error {
	lines := bufio.NewReader(c.read)
	for _, say := range append([]string{""}, c.s.Say...) {
		if say != "" {
			if err := c.send(say + "\n"); err != nil {
				return err
			}
		}
		line, err := lines.ReadString('\n')
		if a.Body += line; err != nil {
			a.End = "cut"
			return nil
		}
	}
	if err := c.send("bye\n"); err != nil {
		return err
	}
	rest, err := io.ReadAll(lines)
	if a.Body, a.End = a.Body+string(rest), "whole"; err != nil {
		a.End = "cut"
	}
	return nil
}

// send sends text. That the other side has closed is no error, since it may have answered.
func (c *client) send(text string) error {
	_, err := io.WriteString(c.conn, text)
	var op *net.OpError
	if errors.As(err, &op) && !op.Timeout() {
		return nil
	}
	return err
}

// request is the request to which a response belongs.
func (c *client) request() *http.Request { return &http.Request{Method: c.s.method()} }

func (r *Request) method() string { return cmp.Or(r.Method, http.MethodPost) }

// head is the request up to its body.
func (r *Request) head() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: gateway.example\r\n", r.method(), cmp.Or(r.Path, chatPath))
	lines := r.Header
	if r.Body != "" && !strings.Contains(strings.Join(lines, "\n"), "Content-Type: ") {
		lines = append(lines[:len(lines):len(lines)], "Content-Type: application/json")
	}
	for _, line := range lines {
		b.WriteString(line + "\r\n")
	}
	if r.Expect {
		b.WriteString("Expect: 100-continue\r\n")
	}
	switch {
	case r.Chunked:
		for _, line := range r.Trailer {
			name, _, _ := strings.Cut(line, ": ")
			b.WriteString("Trailer: " + name + "\r\n")
		}
		b.WriteString("Transfer-Encoding: chunked\r\n")
	case r.Body != "" || r.method() == http.MethodPost:
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(r.Body))
	}
	return b.String() + "\r\n"
}

// wireBody is the body as sent.
func (r *Request) wireBody() string {
	if !r.Chunked {
		return r.Body
	}
	var b strings.Builder
	const piece = 1000
	for rest := r.Body; len(rest) > 0; {
		n := min(piece, len(rest))
		fmt.Fprintf(&b, "%x\r\n%s\r\n", n, rest[:n])
		rest = rest[n:]
	}
	b.WriteString("0\r\n")
	for _, line := range r.Trailer {
		b.WriteString(line + "\r\n")
	}
	b.WriteString("\r\n")
	return b.String()
}
