package suite

import (
	"cmp"
	"fmt"
	"strings"
)

// troubles are abandoned requests, and servers that fail.
func troubles() []Scenario {
	var all []Scenario
	add := func(name string, request Request, replies ...Reply) {
		request.Body = cmp.Or(request.Body, question(""))
		all = append(all, Scenario{Name: name, Request: request, Replies: replies})
	}
	streaming := Request{Body: question(withUsage)}
	good := Reply{Parts: []string{answerOf(choice(0, "It is raining."))}}
	goodStream := metered(chatStream())[0]
	ending := func(r Reply, parts int, end End) Reply {
		r.Parts, r.End, r.Usage = r.Parts[:parts], end, ""
		return r
	}
	answer := func(status int, header ...string) Reply {
		return Reply{Status: status, Header: header, Parts: []string{failure(status)}}
	}

	leaving := streaming
	leaving.Leave = MidRequest
	add("abort in the request", leaving, goodStream)
	leaving.Leave = BeforeHeader
	add("abort before the header", leaving, Reply{Silent: true, End: Hang})
	leaving.Leave, leaving.Heard = MidResponse, "raining."
	add("abort in a stream", leaving, ending(goodStream, 4, Hang))
	// Longer than what proxies, and the transport, hold back of a response that does not stream.
	long := answerOf(choice(0, strings.Repeat("It rains. ", 150_000)))
	leaving = Request{Leave: MidResponse, Heard: "It rains."}
	add("abort in a whole response", leaving, Reply{Parts: []string{long[:1_200_000]}, End: Hang})

	for _, status := range []int{400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 501, 502, 503} {
		var header []string
		if status == 429 || status == 503 {
			header = []string{"Retry-After: 7", "X-Ratelimit-Remaining-Tokens: 0"}
		}
		add(fmt.Sprint("error ", status), Request{}, answer(status, header...))
	}
	add("error 400, stream", streaming, answer(400))
	add("error 429, stream", streaming, answer(429, "Retry-After: 7"))
	add("error 503, stream", streaming, answer(503))
	add("error of plain text", Request{}, Reply{Status: 502, Header: []string{"Content-Type: text/plain"}, Parts: []string{"bad gateway\n"}})
	add("error 429, once", Request{}, answer(429, "Retry-After: 1"), good)
	add("error 503, once", Request{}, answer(503), good)
	add("error 503, once, stream", streaming, answer(503), goodStream)
	add("error as the first event", streaming, Reply{Header: []string{eventStream}, Parts: []string{event(failure(500)), done}}, goodStream)
	add("error as an event", streaming, Reply{Header: []string{eventStream}, Parts: []string{goodStream.Parts[1], event(failure(500)), done}})
	add("error of another request", Request{Path: "/v1/batches", Body: `{"input_file_id":"file-1"}`}, answer(503))

	add("cut before the header", Request{}, Reply{Silent: true, End: Cut}, good)
	add("cut before the header, each", Request{}, Reply{Silent: true, End: Cut})
	add("cut in a whole response", Request{}, Reply{Parts: []string{good.Parts[0][:140]}, End: Cut})
	add("cut in a long response", Request{Heard: "It rains."}, Reply{Parts: []string{long[:1_200_000]}, End: Cut})
	add("cut in chunks", Request{}, Reply{Parts: []string{good.Parts[0][:140]}, Chunked: true, End: Cut})
	add("cut in a stream", streaming, ending(goodStream, 4, Cut))
	broken := ending(goodStream, 4, Cut)
	broken.Parts = append(broken.Parts[:3:3], broken.Parts[3][:60])
	broken.Loose = true
	add("cut in an event", streaming, broken)
	add("end without its last event", streaming, ending(goodStream, 4, Whole))
	return all
}
