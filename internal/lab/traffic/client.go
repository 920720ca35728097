package traffic

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
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/modelserver"
	"github.com/endpick/endpick/slo"
)

// Client requests answers and measures them.
type Client struct {
	url    string      // of the gateway
	SLO    endpick.SLO // targets of every request
	API    API
	Model  string
	AtOnce bool // responses do not stream
	// Exact says that answers have exactly the requested number of tokens.
	Exact bool
	HTTP  *http.Client
}

// NewClient returns a client of embedded servers that streams chats.
func NewClient(url string) *Client {
	return &Client{
		url: strings.TrimRight(url, "/"), API: APIs["chat"], Model: modelserver.DefaultModel, Exact: true,
		HTTP: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}},
	}
}

// ModelOf is the first model in a server's list.
func ModelOf(ctx context.Context, url string) (string, error) {
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

// Close closes idle connections.
func (c *Client) Close() { c.HTTP.CloseIdleConnections() }

// Sample is the measurement of one request.
type Sample struct {
	Err error
	// GotByte says that some of the response had arrived when it failed.
	GotByte bool

	Turn         int           // of its conversation, from 0
	TTFT, E2E    time.Duration // from the time at which it was due
	SinceFirst   time.Duration // from the first token to the last
	PromptTokens int
	CachedTokens int
	OutputTokens int
	Text         string
}

// Ask sends one request that was due at a time.
func (c *Client) Ask(ctx context.Context, due time.Time, messages []Message, output int) Sample {
	var s Sample
	s.Err = c.measure(ctx, due, messages, output, &s)
	return s
}

func (c *Client) measure(ctx context.Context, due time.Time, messages []Message, output int, s *Sample) error {
	req, err := c.request(ctx, messages, output)
	if err != nil {
		return err
	}
	resp, err := c.HTTP.Do(req)
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
		if err := c.API.read(data, &r); err != nil {
			return fmt.Errorf("an event is not JSON: %w", err)
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
	if c.AtOnce {
		whole, err := io.ReadAll(resp.Body)
		s.GotByte = len(whole) > 0
		if err == nil {
			err = read(whole)
		}
		if err != nil {
			return err
		}
	} else {
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() { // to its end, so that it does not look abandoned
			s.GotByte = true
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
	case c.Exact && r.produced != output:
		return fmt.Errorf("%d tokens instead of %d", r.produced, output)
	}
	s.TTFT, s.E2E, s.SinceFirst = first.Sub(due), time.Since(due), last.Sub(first)
	s.PromptTokens, s.CachedTokens, s.OutputTokens = r.prompt, r.cached, r.produced
	s.Text = text.String()
	return nil
}

func (c *Client) request(ctx context.Context, messages []Message, output int) (*http.Request, error) {
	fields := c.API.Body(messages, output)
	fields["model"] = c.Model
	if !c.AtOnce {
		fields["stream"] = true
		if c.API.usage {
			fields["stream_options"] = map[string]bool{"include_usage": true}
		}
	}
	body, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+c.API.Path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	// A server may close an idle connection just as it is reused. With this mark,
	// which is not sent, net/http retries the request on another connection.
	req.Header["Idempotency-Key"] = nil
	req.Header.Set("Content-Type", "application/json")
	if c.SLO.TTFT > 0 {
		req.Header.Set(slo.TTFTHeader, strconv.FormatFloat(Millis(c.SLO.TTFT), 'f', -1, 64))
	}
	if c.SLO.TPOT > 0 {
		req.Header.Set(slo.TPOTHeader, strconv.FormatFloat(Millis(c.SLO.TPOT), 'f', -1, 64))
	}
	return req, nil
}

// Converse plays a conversation and passes a sample of each turn to seen. It
// ends early with the first turn that fails, or with the context.
func (c *Client) Converse(ctx context.Context, begin time.Time, conversation *Conversation, seen func(Sample)) {
	due := begin.Add(conversation.start)
	messages := []Message{{Role: "system", Content: conversation.System}}
	for i, t := range conversation.Turns {
		due = due.Add(t.think)
		if sleepUntil(ctx, due) != nil {
			return
		}
		messages = append(messages, Message{Role: "user", Content: t.Question})
		s := c.Ask(ctx, due, messages, t.output)
		s.Turn = i
		seen(s)
		if s.Err != nil {
			return
		}
		messages = append(messages, Message{Role: "assistant", Content: s.Text})
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

// Play plays all conversations at their times and returns when they are over. It
// calls step after each request.
func (c *Client) Play(ctx context.Context, conversations []Conversation, step func()) []Sample {
	var (
		group   sync.WaitGroup
		mu      sync.Mutex
		samples []Sample
	)
	begin := time.Now()
	for i := range conversations {
		group.Go(func() {
			c.Converse(ctx, begin, &conversations[i], func(s Sample) {
				mu.Lock()
				defer mu.Unlock()
				samples = append(samples, s)
				step()
			})
		})
	}
	group.Wait()
	return samples
}
