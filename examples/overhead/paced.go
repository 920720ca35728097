package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Engine and client of paced streams share the machine with the proxy that they measure,
// so they speak hand-written HTTP. One goroutine writes the events of all streams with a
// rate, and a client reads lines.

// pacer writes events to streams.
type pacer struct {
	mu     sync.Mutex
	wheels map[int]*wheel // by rate; the running ones
}

// wheel has the streams of a rate by when their events are due: each turn has one
// event of each stream.
type wheel struct {
	joining []*pacedStream // guarded by pacer.mu; the rest belongs to the goroutine
	slots   [][]*pacedStream
	streams int
}

type pacedStream struct {
	conn net.Conn
	left int // events left
}

const pacedHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"

// begin hijacks the connection of a request, and answers it with events that contain
// their time.
func (p *pacer) begin(w http.ResponseWriter, events, rate int) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	if _, err := io.WriteString(conn, pacedHead); err != nil {
		conn.Close()
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.wheels[rate]
	if v == nil {
		// About a millisecond per slot.
		v = &wheel{slots: make([][]*pacedStream, max(1000/rate, 1))}
		if p.wheels == nil {
			p.wheels = map[int]*wheel{}
		}
		p.wheels[rate] = v
		go p.turn(v, rate)
	}
	v.joining = append(v.joining, &pacedStream{conn, events})
}

// turn turns a wheel until it has no streams.
func (p *pacer) turn(v *wheel, rate int) {
	tick := time.Second / time.Duration(rate*len(v.slots))
	var b []byte
	joined := 0
	for due, k := time.Now(), 0; ; k = (k + 1) % len(v.slots) {
		p.mu.Lock()
		for _, s := range v.joining {
			slot := &v.slots[joined%len(v.slots)]
			*slot = append(*slot, s)
			joined++
			v.streams++
		}
		v.joining = v.joining[:0]
		if v.streams == 0 {
			delete(p.wheels, rate)
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		due = due.Add(tick)
		time.Sleep(time.Until(due))
		stay := v.slots[k][:0]
		for _, s := range v.slots[k] {
			b = append(b[:0], eventSize...)
			b = appendStamped(b, time.Now())
			b = append(b, "\r\n"...)
			if s.left--; s.left == 0 {
				b = fmt.Appendf(b, "%x\r\n%s\r\n0\r\n\r\n", len(lastEvents), lastEvents)
			}
			if _, err := s.conn.Write(b); err != nil || s.left == 0 {
				s.conn.Close()
				v.streams--
				continue
			}
			stay = append(stay, s)
		}
		v.slots[k] = stay
	}
}

// stampedEvent begins with its time, in nanoseconds.
const (
	stamp        = `data: {"created":`
	stampDigits  = 20
	afterStamp   = `,"id":"chatcmpl-3f2a","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":" work"},"finish_reason":null}]}` + "\n\n"
	stampedBytes = len(stamp) + stampDigits + len(afterStamp)
)

var eventSize = strconv.FormatInt(int64(stampedBytes), 16) + "\r\n"

func appendStamped(b []byte, at time.Time) []byte {
	b = append(b, stamp...)
	digits := strconv.AppendInt(nil, at.UnixNano(), 10)
	b = append(b, "10000000000000000000"[:stampDigits-len(digits)]...) // no number begins with a zero
	b = append(b, digits...)
	return append(b, afterStamp...)
}

// stampOf returns the time of an event; false if the line is none.
func stampOf(line []byte) (time.Time, bool) {
	rest, ok := bytes.CutPrefix(line, []byte(stamp))
	if !ok || len(rest) < stampDigits {
		return time.Time{}, false
	}
	ns := int64(0)
	for _, c := range rest[1:stampDigits] {
		if c < '0' || c > '9' {
			return time.Time{}, false
		}
		ns = 10*ns + int64(c-'0')
	}
	return time.Unix(0, ns), true
}

// paced requests a stream of events, and returns how late those arrived that were sent
// after begin.
func (p *process) paced(ctx context.Context, body []byte, events, rate int, begin time.Time) (delays []time.Duration, err error) {
	to, err := url.Parse(p.url)
	if err != nil {
		return nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", to.Host)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s: %d\r\n%s: %d\r\nConnection: close\r\n\r\n%s",
		chatPath, to.Host, len(body), eventsHeader, events, rateHeader, rate, body)
	if err != nil {
		return nil, err
	}
	lines := bufio.NewReader(conn)
	status, err := lines.ReadString('\n')
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(status, "HTTP/1.1 200 ") {
		return nil, errors.New(strings.TrimSpace(status))
	}
	for {
		line, err := lines.ReadSlice('\n')
		if err == io.EOF {
			return nil, io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, err
		}
		if at, ok := stampOf(line); ok && at.After(begin) {
			delays = append(delays, time.Since(at))
		}
		if bytes.HasPrefix(line, []byte("data: [DONE]")) {
			return delays, nil
		}
	}
}
