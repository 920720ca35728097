package main

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/traffic"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/endpick/endpick"
)

// elements walks all elements of a parsed page.
func elements(n *html.Node, visit func(*html.Node)) {
	if n.Type == html.ElementNode {
		visit(n)
	}
	for c := n.FirstChild; c != nil; c = c.NextSibling {
		elements(c, visit)
	}
}

func textIn(n *html.Node) string {
	var b strings.Builder
	for c := range n.Descendants() {
		if c.Type == html.TextNode {
			b.WriteString(c.Data)
		}
	}
	return b.String()
}

// page parses strictly what the tokenizer can tell: every element is closed.
func page(t *testing.T, text string) *html.Node {
	t.Helper()
	var open []string
	z := html.NewTokenizer(strings.NewReader(text))
	for {
		kind := z.Next()
		if kind == html.ErrorToken {
			require.ErrorIs(t, z.Err(), io.EOF)
			break
		}
		name, _ := z.TagName()
		switch tag := string(name); {
		case tag == "meta":
		case kind == html.StartTagToken:
			open = append(open, tag)
		case kind == html.EndTagToken:
			require.NotEmpty(t, open)
			require.Equal(t, open[len(open)-1], tag)
			open = open[:len(open)-1]
		}
	}
	require.Empty(t, open)
	root, err := html.Parse(strings.NewReader(text))
	require.NoError(t, err)
	return root
}

func TestDebugPage(t *testing.T) {
	c := start(t, "-endpoints", "3")
	ask := traffic.NewClient(c.url)
	defer ask.Close()
	_, empty := get(t, c.admin+"/debug/endpick")
	require.Contains(t, textIn(page(t, empty)), "None yet.")

	system := traffic.Message{Role: "system", Content: strings.Repeat("You are helpful. ", 40)}
	for range 4 {
		require.NoError(t, ask.Ask(t.Context(), time.Now(), []traffic.Message{system, {Role: "user", Content: "Hello."}}, 2).Err)
	}
	const hostile = `<script>alert("x")</script>`
	resp, err := http.Post(c.url+"/v1/chat/completions", "application/json",
		strings.NewReader(`{"model":"<script>alert(\"x\")</script>","messages":[{"role":"user","content":"hi"}]}`))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusNotFound, resp.StatusCode)

	var status int
	var text string
	require.Eventually(t, func() bool { // a client has its last byte a little before the lease is closed
		status, text = get(t, c.admin+"/debug/endpick")
		return strings.Contains(text, "open 0,")
	}, 5*time.Second, time.Millisecond)
	require.Equal(t, http.StatusOK, status)
	require.NotContains(t, text, "<script")
	root := page(t, text)
	var decisions, chosen int
	var endpoints []string
	elements(root, func(n *html.Node) {
		switch n.Data {
		case "details":
			decisions++
		case "tr":
			if len(n.Attr) > 0 && n.Attr[0].Val == "chosen" {
				chosen++
			}
		case "table":
			if len(n.Attr) > 0 && n.Attr[0].Val == "endpoints" {
				elements(n, func(row *html.Node) {
					if row.Data == "tr" {
						endpoints = append(endpoints, textIn(row))
					}
				})
			}
		}
	})
	require.Len(t, endpoints, 1+3)
	for i, id := range []string{"server-1", "server-2", "server-3"} {
		require.Contains(t, endpoints[1+i], id)
		require.Contains(t, endpoints[1+i], "127.0.0.1:")
	}
	require.Equal(t, 5, decisions)
	require.Equal(t, 4, chosen, "the fifth had no endpoint")
	all := textIn(root)
	for _, want := range []string{
		"endpick, policy lmetric", "Routed 4, open 0", "without endpoint 1", "Prefix index", "runner-up server-", "regret 0",
		"model " + hostile, "no endpoint for model",
	} {
		require.Contains(t, all, want)
	}
}

// A page of a policy without index, scorers or anything routed, and with
// endpoints in every state.
func TestDebugPageOfABarePolicy(t *testing.T) {
	g, err := newGateway(gatewayConfig{
		policy: "random", receipts: 2, log: slog.New(slog.DiscardHandler),
		endpoints: []endpick.Endpoint{{ID: "a", Address: `http://a/"><b>`}, {ID: "b", Address: "b"}, {ID: "c", Address: "c"}},
	})
	require.NoError(t, err)
	defer g.close()
	require.NoError(t, g.router.Report("a", endpick.Load{Waiting: 3, Running: 4, KVUsage: 0.25}))
	require.NoError(t, g.router.Drain("a"))
	require.NoError(t, g.router.Remove("b"))
	var kept endpick.Receipt
	lease, err := g.router.Route(endpick.Request{Model: "m", Receipt: &kept})
	require.NoError(t, err)
	require.NoError(t, g.router.Remove("c"))
	g.receipts.add(&kept)

	w := httptest.NewRecorder()
	g.admin.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/endpick", nil))
	require.Equal(t, http.StatusOK, w.Code)
	require.Contains(t, w.Header().Get("Content-Security-Policy"), "default-src 'none'")
	root := page(t, w.Body.String())
	bold := 0
	elements(root, func(n *html.Node) {
		if n.Data == "b" {
			bold++
		}
	})
	require.Equal(t, 1, bold, "the endpoint of the one decision")
	all := textIn(root)
	for _, want := range []string{`"><b>`, "draining", "removed", "0.25"} {
		require.Contains(t, all, want)
	}
	require.NotContains(t, all, "Prefix index")
	lease.Done(endpick.Outcome{})
}

func TestReceiptsKeepTheNewest(t *testing.T) {
	r := newReceipts(2)
	r.add(&endpick.Receipt{}) // never filled
	for _, n := range []uint64{1, 3, 2} {
		r.add(&endpick.Receipt{Number: n})
	}
	all := r.newest()
	require.Len(t, all, 2)
	require.EqualValues(t, 3, all[0].Number)
	require.EqualValues(t, 2, all[1].Number)
}
