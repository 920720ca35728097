package suite

import (
	"fmt"
	"strings"
)

// troubles are abandoned requests, and servers that fail.
func troubles() []Scenario {
	var all []Scenario
	add := func(name, about string, request Request, replies ...Reply) {
		if request.Body == "" {
			request.Body = question("")
		}
		all = append(all, Scenario{Name: name, About: about, Request: request, Replies: replies})
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
	add("abort in the request", "half of the body has come", leaving, goodStream)
	leaving.Leave = BeforeHeader
	add("abort before the header", "the server says nothing", leaving, Reply{Silent: true, End: Hang})
	leaving.Leave, leaving.Heard = MidResponse, "raining."
	add("abort in a stream", "", leaving, ending(goodStream, 4, Hang))
	// Longer than what proxies hold back of a response that does not stream.
	long := answerOf(choice(0, strings.Repeat("It rains. ", 20_000)))
	leaving = Request{Leave: MidResponse, Heard: "It rains."}
	add("abort in a whole response", "of 200 KB", leaving, Reply{Parts: []string{long[:150_000]}, End: Hang})

	for _, status := range []int{400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 501, 502, 503} {
		header, about := []string(nil), ""
		if status == 429 || status == 503 {
			header, about = []string{"Retry-After: 7", "X-Ratelimit-Remaining-Tokens: 0"}, "with Retry-After, from each server"
		}
		add(fmt.Sprint("error ", status), about, Request{}, answer(status, header...))
	}
	add("error 400, stream", "", streaming, answer(400))
	add("error 429, stream", "with Retry-After, from each server", streaming, answer(429, "Retry-After: 7"))
	add("error 503, stream", "from each server", streaming, answer(503))
	add("error of plain text", "502", Request{}, Reply{Status: 502, Header: []string{"Content-Type: text/plain"}, Parts: []string{"bad gateway\n"}})
	add("error 429, once", "with Retry-After, then an answer", Request{}, answer(429, "Retry-After: 1"), good)
	add("error 503, once", "then an answer", Request{}, answer(503), good)
	add("error 503, once, stream", "then an answer", streaming, answer(503), goodStream)
	add("error as the first event", "under a status of 200, then an answer", streaming, Reply{Header: []string{eventStream}, Parts: []string{event(failure(500)), done}}, goodStream)
	add("error as an event", "in the middle of a stream", streaming, Reply{Header: []string{eventStream}, Parts: []string{goodStream.Parts[1], event(failure(500)), done}})
	add("error of another request", "503, of a path of no API that changes something", Request{Path: "/v1/batches", Body: `{"input_file_id":"file-1"}`}, answer(503))

	add("cut before the header", "then an answer", Request{}, Reply{Silent: true, End: Cut}, good)
	add("cut before the header, each", "", Request{}, Reply{Silent: true, End: Cut})
	add("cut in a whole response", "", Request{}, Reply{Parts: []string{good.Parts[0][:140]}, End: Cut})
	add("cut in a long response", "after 150 KB", Request{Heard: "It rains."}, Reply{Parts: []string{long[:150_000]}, End: Cut})
	add("cut in chunks", "", Request{}, Reply{Parts: []string{good.Parts[0][:140]}, Chunked: true, End: Cut})
	add("cut in a stream", "", streaming, ending(goodStream, 4, Cut))
	broken := ending(goodStream, 4, Cut)
	broken.Parts = append(broken.Parts[:3:3], broken.Parts[3][:60])
	broken.Loose = true
	add("cut in an event", "", streaming, broken)
	add("end without its last event", "the connection is closed properly", streaming, ending(goodStream, 4, Whole))
	return all
}
