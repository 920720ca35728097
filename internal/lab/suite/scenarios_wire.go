package suite

import "strings"

// wires are about HTTP itself.
func wires() []Scenario {
	answered := answerOf(choice(0, "It is raining."))
	return []Scenario{
		{
			Name: "headers",
			Request: Request{
				Path: chatPath + "?api-version=1", Body: question(""),
				Header: []string{
					"Authorization: Bearer key", "Cookie: a=b", "X-Request-Id: 1", "Traceparent: 00-1-2-01", "User-Agent: suite/1", "Accept: */*",
					"X-Twice: one", "X-Twice: two", "Openai-Organization: o", "X-Forwarded-For: 192.0.2.1", "Via: 1.0 before", "Connection: X-Hop", "X-Hop: neighbours alone",
					"Proxy-Authorization: Basic eDp5", "Te: trailers", "X-Gateway-Destination-Endpoint: 192.0.2.1:80",
				},
			},
			Replies: []Reply{{
				Parts: []string{answered},
				Header: []string{
					"Content-Type: application/json; charset=utf-8", "Set-Cookie: a=1", "Set-Cookie: b=2", "Server: engine", "X-Request-Id: 1", "Openai-Processing-Ms: 5",
					"X-Ratelimit-Remaining-Tokens: 100", "Cache-Control: no-store", "Vary: Origin", "X-Engine: a", "X-Engine: b", "X-Hop: neighbours alone", "Connection: X-Hop",
				},
			}},
		},
		{Name: "body in chunks", Request: Request{Body: question(`,"user":"` + strings.Repeat("long ", 1000) + `"`), Chunked: true}, Replies: whole(answered)},
		{Name: "body of 1 MiB", Request: Request{Body: question(`,"user":"` + strings.Repeat("very long ", 105_000) + `"`)}, Replies: whole(answered)},
		{
			Name: "body with a trailer", Request: Request{Body: question(""), Chunked: true, Trailer: []string{"X-Checksum: 1"}}, Replies: whole(answered),
		},
		{Name: "body that is no JSON", Request: Request{Path: "/v1/moderations", Body: `{"model":"m","messages":[`}, Replies: []Reply{{Status: 400, Parts: []string{failure(400)}}}},
		{Name: "no body", Request: Request{}, Replies: []Reply{{Status: 400, Parts: []string{failure(400)}}}},
		{
			Name: "gzip, request", Request: Request{Header: []string{"Content-Encoding: gzip"}, Body: packed(question(""))}, Replies: whole(answered),
		},
		{
			Name: "gzip, response", Request: Request{Header: []string{"Accept-Encoding: gzip, br"}, Body: question("")},
			Replies: []Reply{{Header: []string{"Content-Encoding: gzip", "Vary: Accept-Encoding"}, Parts: []string{packed(answered)}}},
		},
		{
			Name: "gzip, response of no API", Request: Request{Method: "GET", Path: "/version", Header: []string{"Accept-Encoding: gzip, br"}},
			Replies: []Reply{{Header: []string{"Content-Encoding: gzip", "Vary: Accept-Encoding"}, Parts: []string{packed(`{"version":"1.0"}`)}}},
		},
		{
			Name: "gzip, stream", Request: Request{Header: []string{"Accept-Encoding: gzip"}, Body: question(withUsage)},
			Replies: []Reply{{Header: []string{eventStream, "Content-Encoding: gzip"}, Parts: []string{packed(strings.Join(chatStream(), ""))}, Loose: true}},
		},
		{
			Name: "another coding", Request: Request{Header: []string{"Accept-Encoding: br"}, Body: question("")},
			Replies: []Reply{{Header: []string{"Content-Encoding: br"}, Parts: []string{"\x0b\x02\x80{}\x03"}}},
		},
		{Name: "100-continue", Request: Request{Body: question(""), Expect: true}, Replies: whole(answered)},
		{
			Name: "100-continue, refused", Request: Request{Body: question(""), Expect: true},
			Replies: []Reply{{Status: 413, Parts: []string{failure(413)}, Unread: true}},
		},
		{Name: "103 before the response", Request: Request{Body: question("")}, Replies: []Reply{{Early: []string{"Link: </style>; rel=preload"}, Parts: []string{answered}}}},
		{
			Name: "upgrade", Replies: []Reply{{Upgrade: true}},
			Request: Request{Method: "GET", Path: "/v1/realtime?model=m", Header: []string{"Connection: Upgrade", "Upgrade: capitals"}, Say: []string{"one", "two", strings.Repeat("long", 30_000)}},
		},
		{
			Name: "upgrade, refused", Replies: []Reply{{Status: 426, Header: []string{"Upgrade: others", "Connection: Upgrade"}, Parts: []string{failure(426)}}},
			Request: Request{Method: "GET", Path: "/v1/realtime?model=m", Header: []string{"Connection: Upgrade", "Upgrade: capitals"}},
		},
		{
			Name: "trailers", Request: Request{Header: []string{"Te: trailers"}, Body: question(withUsage)},
			Replies: []Reply{{Header: []string{eventStream}, Parts: chatStream(), Usage: chatUsage, Trailer: []string{"X-Checksum: 1"}}},
		},
		{Name: "response in chunks", Request: Request{Body: question("")}, Replies: []Reply{{Parts: []string{answered[:40], answered[40:]}, Chunked: true}}},
		{Name: "two on a connection", Request: Request{Body: question(withUsage), Times: 2}, Replies: metered(chatStream())},
		{Name: "HEAD", Request: Request{Method: "HEAD", Path: "/health"}, Replies: []Reply{{Header: []string{"X-Ready: yes"}}}},
		{
			Name: "OPTIONS", Request: Request{Method: "OPTIONS", Header: []string{"Origin: http://a.example", "Access-Control-Request-Method: POST"}},
			Replies: []Reply{{Status: 204, Header: []string{"Access-Control-Allow-Origin: *"}}},
		},
		{Name: "204", Request: Request{Method: "DELETE", Path: "/v1/responses/resp_1"}, Replies: []Reply{{Status: 204}}},
		{Name: "redirect", Request: Request{Body: question("")}, Replies: []Reply{{Status: 307, Header: []string{"Location: /v2/chat/completions"}, Parts: []string{""}}}},
		{
			Name: "events in odd pieces", Request: Request{Body: question(withUsage)},
			Replies: []Reply{{
				Header: []string{eventStream}, Loose: true,
				Parts: []string{": ping\n\n", "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\xe2", "\x82\xac\"}}]}\r\n\r", "\n", "event: x\nid: 1\nretry: 5\ndata: {}\n\ndata:", " [DONE]", "\n", "\n"},
			}},
		},
		{
			Name: "slow client", Request: Request{Body: question(withUsage), Slow: true},
			Replies: []Reply{{Header: []string{eventStream}, Loose: true, Parts: append(repeated(delta(0, `{"content":"`+strings.Repeat("rain ", 200)+`"}`), 900), done)}},
		},
	}
}

func repeated(s string, n int) (all []string) {
	for range n {
		all = append(all, s)
	}
	return all
}
