package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// ask sends a request and reads the whole answer. The status must be wanted, or 200 if that is
// 0.
func (p *process) ask(path string, body []byte, header map[string]int) (*http.Response, error) {
	req, err := http.NewRequest(http.MethodPost, p.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range header {
		req.Header.Set(k, strconv.Itoa(v))
	}
	response, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response, err
}

func (p *process) asksWell(path string, body []byte, header map[string]int) error {
	response, err := p.ask(path, body, header)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return err
}

// each returns the least CPU time per thing that the plain proxy and endpick have
// taken, if f does so many things per round.
func (b *bench) each(rounds, things int, f func(p *process) error) (plain, endpick time.Duration, err error) {
	least := [2]time.Duration{math.MaxInt64, math.MaxInt64}
	for i := range rounds + 1 {
		for j, p := range []*process{b.plain, b.endpick} {
			used, err := p.costs(func() error { return f(p) })
			if err != nil {
				return 0, 0, err
			}
			if i > 0 { // the first round warms up
				least[j] = min(least[j], used)
			}
		}
	}
	return least[0] / time.Duration(things), least[1] / time.Duration(things), nil
}

const chatPath = "/v1/chat/completions"

// chatOf is a chat of that many bytes, with one message.
func chatOf(size int, text string) []byte {
	const head, tail = `{"model":"m","stream":true,"messages":[{"role":"user","content":"`, `"}]}`
	return []byte(head + strings.Repeat(text, max((size-len(head)-len(tail))/len(text), 1)) + tail)
}

// conversation is a chat of that many bytes, with many messages of many lines.
func conversation(size int) []byte {
	const head, tail, text = `{"model":"m","stream":true,"messages":[`, `]}`, `\n    if err != nil {\n\t\treturn fmt.Errorf(\"a line of code: %w\", err)\n`
	message := `{"role":"user","content":"` + strings.Repeat(text, 120) + `"},{"role":"assistant","content":"` + strings.Repeat(text, 30) + `"},`
	b := head + strings.Repeat(message, max((size-len(head)-len(tail))/len(message), 1))
	return []byte(strings.TrimSuffix(b, ",") + tail)
}

const flatText = "All work and no play makes Jack a dull boy. "

// chunks prints the cost of a stream's chunk.
func chunks(b *bench, o *options, w io.Writer) error {
	fmt.Fprintf(w, "| chunks that come together | plain, µs each | endpick, µs each | more, µs |\n|---|---|---|---|\n")
	body := chatOf(1000, flatText)
	for _, together := range []int{1, 10, 100} {
		events := 200 * o.work
		if together == 1 {
			events /= 4
		}
		header := map[string]int{eventsHeader: events, togetherHeader: together}
		plain, endpick, err := b.each(o.rounds, events, func(p *process) error { return p.asksWell(chatPath, body, header) })
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "| %d | %.2f | %.2f | %.2f |\n", together, micros(plain), micros(endpick), micros(endpick-plain))
	}
	fmt.Fprintln(w)
	return nil
}

// bodies prints the cost of a chat's body.
func bodies(b *bench, o *options, w io.Writer) error {
	fmt.Fprintf(w, "| body of a chat | plain, µs | endpick, µs | ratio |\n|---|---|---|---|\n")
	for _, of := range []struct {
		size int
		what string
	}{{4 << 10, "text"}, {64 << 10, "text"}, {1 << 20, "text"}, {1 << 20, "lines of code"}, {8 << 20, "text"}} {
		size := of.size
		if size > o.most<<10 {
			break
		}
		body := chatOf(size, flatText)
		if of.what != "text" {
			body = conversation(size)
		}
		n := max(o.work*2*(1<<20)/(size+1<<20), 2) // enough of them that the garbage collection at the end does not matter
		plain, endpick, err := b.each(o.rounds, n, func(p *process) error {
			for range n {
				if err := p.asksWell(chatPath, body, nil); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "| %d KiB of %s | %.0f | %.0f | %.2f |\n", size>>10, of.what, micros(plain), micros(endpick), float64(endpick)/float64(plain))
	}
	fmt.Fprintln(w)
	return nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
