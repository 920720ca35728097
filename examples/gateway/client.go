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

// client asks for streamed chat completions and measures them.
type client struct {
	url  string      // of the gateway
	slo  endpick.SLO // asked for with every request
	http *http.Client
}

func newClient(url string) *client {
	return &client{url: url, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
}

func (c *client) close() { c.http.CloseIdleConnections() }

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// sample is what was seen of one request.
type sample struct {
	err error
	// gotByte says that some of the response had arrived when it failed.
	gotByte bool

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
	s.err = c.stream(ctx, due, messages, output, &s)
	return s
}

func (c *client) stream(ctx context.Context, due time.Time, messages []message, output int, s *sample) error {
	body, err := json.Marshal(map[string]any{
		"model": modelserver.DefaultModel, "messages": messages, "max_tokens": output,
		"stream": true, "stream_options": map[string]bool{"include_usage": true},
	})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if c.slo.TTFT > 0 {
		req.Header.Set(slo.TTFTHeader, strconv.FormatFloat(millis(c.slo.TTFT), 'f', -1, 64))
	}
	if c.slo.TPOT > 0 {
		req.Header.Set(slo.TPOTHeader, strconv.FormatFloat(millis(c.slo.TPOT), 'f', -1, 64))
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
	var text strings.Builder
	first, last := time.Time{}, time.Time{}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		s.gotByte = true
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		now := time.Now()
		if string(data) == "[DONE]" {
			if s.outputTokens != output {
				return fmt.Errorf("%d tokens instead of %d", s.outputTokens, output)
			}
			s.ttft, s.e2e, s.sinceFirst = first.Sub(due), now.Sub(due), last.Sub(first)
			s.text = text.String()
			return nil
		}
		var e event
		if err := json.Unmarshal(data, &e); err != nil {
			return fmt.Errorf("an event is no JSON: %w", err)
		}
		if len(e.Choices) > 0 && e.Choices[0].Delta.Content != "" {
			if first.IsZero() {
				first = now
			}
			last = now
			text.WriteString(e.Choices[0].Delta.Content)
		}
		if e.Usage != nil {
			s.promptTokens, s.outputTokens = e.Usage.PromptTokens, e.Usage.CompletionTokens
			s.cachedTokens = e.Usage.Details.CachedTokens
		}
	}
	return errors.Join(errors.New("the stream broke off"), lines.Err())
}

// event is what the client reads of a chunk.
type event struct {
	Choices []struct {
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
	} `json:"choices"`
	Usage *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		Details          struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

// converse plays a conversation and hands a sample of each turn to seen. It ends
// early with the first turn that fails, or with the context.
func (c *client) converse(ctx context.Context, begin time.Time, conversation *conversation, seen func(sample)) {
	due := begin.Add(conversation.start)
	messages := []message{{"system", conversation.system}}
	for _, t := range conversation.turns {
		due = due.Add(t.think)
		if sleepUntil(ctx, due) != nil {
			return
		}
		messages = append(messages, message{"user", t.question})
		s := c.ask(ctx, due, messages, t.output)
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
