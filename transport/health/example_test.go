package health_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/health"
)

func watched(ctx context.Context, router *endpick.Router, mux *http.ServeMux) (*transport.Transport, error) {
	monitor, err := health.New(health.Config{
		Router: router,
		OnChange: func(s health.Status) {
			log.Print(s.Endpoint, " is ", s.State, " ", s.CheckErr, " ", s.Err)
		},
	})
	if err != nil {
		return nil, err
	}
	go monitor.Run(ctx)
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if alive, of := monitor.Alive(); alive == 0 {
			http.Error(w, fmt.Sprintf("none of %d endpoints is alive", of), http.StatusServiceUnavailable)
		}
	})
	return transport.New(transport.Config{Router: router, Health: monitor})
}

// A monitor checks the servers, and the host's readiness depends on it.
func Example() {
	router, err := endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{Address: "10.0.0.1:8000"}}})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	mux := http.NewServeMux()
	if _, err := watched(ctx, router, mux); err != nil {
		panic(err)
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest("GET", "/readyz", nil))
	fmt.Println(w.Code)
	// Output: 200
}

// Check asks each endpoint once, for a host with a loop of its own. Run does so
// repeatedly.
func ExampleMonitor_Check() {
	up := true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		if !up && in.URL.Path == "/health" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer server.Close()
	router, err := endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "gpu-0", Address: server.URL}}})
	if err != nil {
		panic(err)
	}
	monitor, err := health.New(health.Config{Router: router})
	if err != nil {
		panic(err)
	}
	for range 3 {
		monitor.Check(context.Background())
		s := monitor.Endpoints()[0]
		fmt.Printf("%s is %v: %v\n", s.Endpoint, s.State, s.CheckErr)
		up = false
	}
	alive, of := monitor.Alive()
	fmt.Println(alive, "of", of, "alive")
	// Output:
	// gpu-0 is well: <nil>
	// gpu-0 is well: health: answered 500 Internal Server Error
	// gpu-0 is unfit: health: answered 500 Internal Server Error
	// 0 of 1 alive
}
