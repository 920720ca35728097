package rig

import (
	"embed"
	"net/http"
	"strconv"
	"strings"
)

//go:embed testdata/vllm-0.32.0
var recorded embed.FS

// Recorded is what vLLM 0.32.0 said, from the file of that name in testdata: method and path of the
// request and its body, the status and the body of the response.
func Recorded(name string) (request, asked string, status int, body string) {
	text := string(Must(recorded.ReadFile("testdata/vllm-0.32.0/" + name + ".txt")))
	request, response, _ := strings.Cut(text, "=>\n")
	request, asked, _ = strings.Cut(request, "\n\n")
	request, _, _ = strings.Cut(request, "\n")
	head, body, _ := strings.Cut(response, "\n\n")
	return request, strings.TrimSuffix(asked, "\n"), Must(strconv.Atoi(head[:3])), body
}

// VLLM answers the requests of these files as vLLM has, and others as error_path.
func VLLM(names ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _, status, body := Recorded("error_path")
		for _, name := range names {
			if is, _, s, b := Recorded(name); is == r.Method+" "+r.URL.Path {
				status, body = s, b
			}
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body)) // an error means that the client has left
	})
}
