package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/modelserver"
	"github.com/endpick/endpick/slo"
)

// client asks for answers and measures them.
type client struct {
	url    string      // of the gateway
	slo    endpick.SLO // asked for with every request
	api    api
	model  string
	atOnce bool // responses do not stream
	// exact says that answers have as many tokens as were asked for.
	exact bool
	http  *http.Client
}

// newClient returns one for embedded servers, which streams chats.
func newClient(url string) *client {
	return &client{
		url: strings.TrimRight(url, "/"), api: apis["chat"], model: modelserver.DefaultModel, exact: true,
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}},
	}
}

// modelOf is the first model on a server's list.
func modelOf(ctx context.Context, url string) (string, error) {
	url = strings.TrimRight(url, "/")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/v1/models", nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var list struct{ Data []struct{ ID string } }
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&list); err != nil || len(list.Data) == 0 {
		return "", fmt.Errorf("%s/v1/models, %s, lists no model: name one with -model", url, resp.Status)
	}
	return list.Data[0].ID, nil
}

func (c *client) close() { c.http.CloseIdleConnections() }

// sample is what was seen of one request.
type sample struct {
	err error
	// gotByte says that some of the response had arrived when it failed.
	gotByte bool

	turn         int           // of its conversation, from 0
	ttft, e2e    time.Duration // from the moment at which it was due
	sinceFirst   time.Duration // from the first token to the last
	promptTokens int
	cachedTokens int
	outputTokens int
	text         string
}

// ask sends one request that was due at a moment.
func (c *client) ask(ctx context.Context, due time.Time, messages []message, output int) sample {
	var s sample
	s.err = c.measure(ctx, due, messages, output, &s)
	return s
}

func (c *client) measure(ctx context.Context, due time.Time, messages []message, output int, s *sample) error {
	req, err := c.request(ctx, messages, output)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		detail, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(detail))
	}
	var (
		r           reply
		text        strings.Builder
		first, last time.Time
	)
	read := func(data []byte) error {
		r.text = ""
		if err := c.api.read(data, &r); err != nil {
			return fmt.Errorf("an event is no JSON: %w", err)
		}
		if r.text != "" {
			last = time.Now()
			if first.IsZero() {
				first = last
			}
			text.WriteString(r.text)
		}
		return nil
	}
	if c.atOnce {
		whole, err := io.ReadAll(resp.Body)
		s.gotByte = len(whole) > 0
		if err == nil {
			err = read(whole)
		}
		if err != nil {
			return err
		}
	} else {
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() { // to its end, so that nobody takes it for given up
			s.gotByte = true
			if data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: ")); ok {
				if err := read(data); err != nil {
					return err
				}
			}
		}
		if !r.ended {
			return errors.Join(errors.New("the stream broke off"), lines.Err())
		}
	}
	switch {
	case first.IsZero():
		return errors.New("no text came")
	case c.exact && r.produced != output:
		return fmt.Errorf("%d tokens instead of %d", r.produced, output)
	}
	s.ttft, s.e2e, s.sinceFirst = first.Sub(due), time.Since(due), last.Sub(first)
	s.promptTokens, s.cachedTokens, s.outputTokens = r.prompt, r.cached, r.produced
	s.text = text.String()
	return nil
}

func (c *client) request(ctx context.Context, messages []message, output int) (*http.Request, error) {
	fields := c.api.body(messages, output)
	fields["model"] = c.model
	if !c.atOnce {
		fields["stream"] = true
		if c.api.usage {
			fields["stream_options"] = map[string]bool{"include_usage": true}
		}
	}
	body, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+c.api.path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	// A server may close an idle connection just as it is used again: net/http sends
	// the request on another one if it is marked so, and does not send the mark.
	req.Header["Idempotency-Key"] = nil
	req.Header.Set("Content-Type", "application/json")
	if c.slo.TTFT > 0 {
		req.Header.Set(slo.TTFTHeader, strconv.FormatFloat(millis(c.slo.TTFT), 'f', -1, 64))
	}
	if c.slo.TPOT > 0 {
		req.Header.Set(slo.TPOTHeader, strconv.FormatFloat(millis(c.slo.TPOT), 'f', -1, 64))
	}
	return req, nil
}

// converse plays a conversation and hands a sample of each turn to seen. It ends
// early with the first turn that fails, or with the context.
func (c *client) converse(ctx context.Context, begin time.Time, conversation *conversation, seen func(sample)) {
	due := begin.Add(conversation.start)
	messages := []message{{"system", conversation.system}}
	for i, t := range conversation.turns {
		due = due.Add(t.think)
		if sleepUntil(ctx, due) != nil {
			return
		}
		messages = append(messages, message{"user", t.question})
		s := c.ask(ctx, due, messages, t.output)
		s.turn = i
		seen(s)
		if s.err != nil {
			return
		}
		messages = append(messages, message{"assistant", s.text})
		due = time.Now()
	}
}

func sleepUntil(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
