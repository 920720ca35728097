package recording_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/recording"
)

// A recording for the simulator holds lengths, hashes and times.
func Example() {
	var file bytes.Buffer
	write, end := recording.NewWriter(&file)

	router, err := endpick.New(endpick.Config{})
	if err != nil {
		panic(err)
	}
	t, err := transport.New(transport.Config{
		Router: router,
		Record: write,
		Describe: func(in *http.Request, _ []byte, req *endpick.Request) {
			req.Tenant = in.Header.Get("X-Team")
		},
	})
	if err != nil {
		panic(err)
	}
	client := &http.Client{Transport: t}
	_, err = client.Post("http://gateway/v1/completions", "application/json", strings.NewReader(`{"model":"llama","prompt":"Hi!"}`))
	fmt.Println(transport.StatusOf(err))

	if err := end(); err != nil {
		panic(err)
	}
	err = recording.Read(&file, func(_ int, r *recording.Request) error {
		fmt.Println(r.Model, r.Status, r.Attempts, "attempts,", r.InputTokens, "tokens")
		return nil
	})
	if err != nil {
		panic(err)
	}

	// Output:
	// 503
	// llama failed 0 attempts, 1 tokens
}
