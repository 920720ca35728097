package suite

import (
	"cmp"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Attempt is a request as a server saw it.
type Attempt struct {
	Server  int // which of them
	Method  string
	Target  string // path and query
	Host    string // "its own", or as received
	Header  http.Header
	Framing string
	Body    string
	Trailer http.Header
	// End is "answered", "cut" if the body broke off, or "client gone" if the server
	// was waiting for that.
	End string
}

// servers are several servers with one script.
type servers struct {
	stage   *stage
	replies []Reply
	http    http.Server
	listens []net.Listener
}

func startServers(n int, stage *stage, replies []Reply) (*servers, error) {
	s := &servers{stage: stage, replies: replies}
	s.http.ErrorLog = log.New(io.Discard, "", 0)
	s.http.Handler = s
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, errors.Join(err, s.http.Close())
		}
		s.listens = append(s.listens, l)
		go func() { _ = s.http.Serve(l) }()
	}
	return s, nil
}

func (s *servers) addresses() (all []string) {
	for _, l := range s.listens {
		all = append(all, l.Addr().String())
	}
	return all
}

func (s *servers) close() error {
	err := s.http.Close()
	for _, l := range s.listens { // those that Serve has not reached
		l.Close()
	}
	return err
}

// ServeHTTP answers the next attempt.
func (s *servers) ServeHTTP(w http.ResponseWriter, in *http.Request) {
	a := &Attempt{
		Method: in.Method, Target: in.URL.RequestURI(), Host: in.Host, Header: in.Header.Clone(), Framing: framing(in.TransferEncoding, in.ContentLength),
		End: "answered",
	}
	local := in.Context().Value(http.LocalAddrContextKey).(net.Addr).String()
	for i, l := range s.listens {
		if l.Addr().String() == local {
			a.Server = i
		}
	}
	if in.Host == local {
		a.Host = "its own"
	}
	var reply Reply
	s.stage.update(func() {
		reply = s.replies[min(len(s.stage.attempts), len(s.replies)-1)]
		s.stage.attempts = append(s.stage.attempts, a)
		s.stage.serving++
	})
	defer s.stage.update(func() { s.stage.serving-- })
	if !reply.Unread {
		body, err := io.ReadAll(in.Body)
		s.stage.update(func() {
			a.Body, a.Trailer = string(body), in.Trailer.Clone()
			if err != nil {
				a.End = "cut"
			}
		})
		if err != nil {
			return
		}
	}
	if reply.Upgrade {
		s.upgraded(w)
		return
	}
	s.answer(w, in, a, reply)
}

func (s *servers) answer(w http.ResponseWriter, in *http.Request, a *Attempt, reply Reply) {
	if len(reply.Early) > 0 {
		setLines(w.Header(), reply.Early)
		w.WriteHeader(http.StatusEarlyHints)
		clear(w.Header())
	}
	parts := reply.Parts
	if reply.Usage != "" && strings.Contains(a.Body, `"include_usage":true`) {
		last := len(parts) - 1
		parts = append(append(parts[:last:last], reply.Usage), parts[last])
	}
	if !reply.Silent {
		setLines(w.Header(), reply.Header)
		if w.Header().Get("Content-Type") == "" {
			w.Header().Set("Content-Type", "application/json")
		}
		for _, line := range reply.Trailer {
			name, _, _ := strings.Cut(line, ": ")
			w.Header().Add("Trailer", name)
		}
		if !reply.open() {
			n := len(strings.Join(parts, ""))
			if reply.End != Whole {
				n += 100 // that are never sent
			}
			w.Header().Set("Content-Length", strconv.Itoa(n))
		}
		w.WriteHeader(cmp.Or(reply.Status, http.StatusOK))
	}
	flush := http.NewResponseController(w)
	said := false
	for i, part := range parts {
		if _, err := io.WriteString(w, part); err != nil {
			break
		}
		if reply.open() || reply.End != Whole {
			_ = flush.Flush()
		}
		if i == len(parts)-1 || parts[i+1] == reply.Usage || part == reply.Usage {
			continue // the end of a stream may come with its usage, or not at all
		}
		said = said || !announces.MatchString(part)
		if reply.steps() && said {
			s.stage.wait("the client gets a part of a stream", in.Context().Done(), func() bool {
				return strings.Contains(s.stage.heard.String(), part)
			})
		}
	}
	setLines(w.Header(), reply.Trailer)
	if !reply.Silent || reply.End == Hang {
		s.stage.update(func() { s.stage.spoken = true })
	}
	switch reply.End {
	case Cut:
		if len(parts) > 0 && reply.steps() {
			s.stage.wait("the client gets the last part", in.Context().Done(), func() bool {
				return strings.Contains(s.stage.heard.String(), parts[len(parts)-1])
			})
		}
		panic(http.ErrAbortHandler)
	case Hang:
		if s.stage.wait("the client leaves", in.Context().Done(), func() bool { return false }); in.Context().Err() != nil {
			s.stage.update(func() { a.End = "client gone" })
		}
	}
}

// announces matches events that say nothing yet: the transport holds them until one does.
var announces = regexp.MustCompile(`"role":"assistant","content":""|"type":"(response\.(created|in_progress|output_item\.added|content_part\.added)|message_start|content_block_start|ping)"`)

// open reports whether the length is not announced.
func (r *Reply) open() bool { return r.Chunked || len(r.Trailer) > 0 || r.stream() }

func (r *Reply) stream() bool { return slices.Contains(r.Header, eventStream) }

// steps reports whether parts wait for each other.
func (r *Reply) steps() bool { return r.stream() && !r.Loose }

// upgraded speaks the echo protocol in capitals.
func (s *servers) upgraded(w http.ResponseWriter) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: capitals\r\nX-Accept: yes\r\n\r\nREADY\n")
	for {
		line, err := buffered.ReadString('\n')
		if err != nil || line == "bye\n" {
			return
		}
		_, _ = io.WriteString(conn, strings.ToUpper(line))
	}
}

func setLines(h http.Header, lines []string) {
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		h.Add(name, value)
	}
}

// framing is how the end of a body is determined.
func framing(coding []string, length int64) string {
	switch {
	case len(coding) > 0:
		return strings.Join(coding, ", ")
	case length < 0:
		return "until the connection closes"
	case length == 0:
		return "none"
	}
	return "length"
}
