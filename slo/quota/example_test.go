package quota_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/slo/quota"
	"github.com/endpick/endpick/transport"
)

// tenantOf returns the tenant whom the host has authenticated.
func tenantOf(in *http.Request) string {
	name, _, _ := in.BasicAuth()
	return name
}

func limited(endpoints []endpick.Endpoint) (*transport.Transport, error) {
	limits, err := quota.New(quota.Config{Limits: func(tenant string) quota.Limits {
		return quota.Limits{Rate: 5000, Burst: 300_000, Requests: 32}
	}})
	if err != nil {
		return nil, err
	}
	config := preset.Default()
	config.Endpoints = endpoints
	config.Policy.Admitters = append(config.Policy.Admitters, limits)
	router, err := endpick.New(config)
	if err != nil {
		return nil, err
	}
	return transport.New(transport.Config{
		Router: router,
		Describe: func(in *http.Request, _ []byte, req *endpick.Request) {
			req.Tenant = tenantOf(in)
		},
	})
}

// Each tenant gets the same limits. The client of a tenant that has used them up is
// answered when to come back; other tenants are not affected.
func Example_gateway() {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"choices":[{"text":"Hello!"}],"usage":{"prompt_tokens":400000,"completion_tokens":2}}`)
	}))
	defer engine.Close()
	routed, err := limited([]endpick.Endpoint{{ID: "gpu-0", Address: engine.URL}})
	if err != nil {
		panic(err)
	}
	defer routed.CloseIdleConnections()
	gateway := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(*httputil.ProxyRequest) {}, Transport: routed, ErrorHandler: transport.ErrorHandler,
	})
	defer gateway.Close()
	ask := func(tenant string) {
		in, err := http.NewRequest("POST", gateway.URL+"/v1/completions", strings.NewReader(`{"model":"llama","prompt":"Hi!","max_tokens":2}`))
		if err != nil {
			panic(err)
		}
		in.SetBasicAuth(tenant, "")
		resp, err := http.DefaultClient.Do(in)
		if err != nil {
			panic(err)
		}
		defer resp.Body.Close()
		fmt.Println(tenant, resp.StatusCode, "with Retry-After:", resp.Header.Get("Retry-After") != "")
	}
	ask("red") // far more tokens than its prompt looked like
	ask("red")
	ask("blue")
	// Output:
	// red 200 with Retry-After: false
	// red 429 with Retry-After: true
	// blue 200 with Retry-After: false
}
