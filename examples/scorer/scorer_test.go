package scorer

import (
	"fmt"
	"log"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/scorer/scorertest"
)

func TestCheapConforms(t *testing.T) {
	scorertest.RunWeighted(t, func(*testing.T) endpick.Scorer { return Cheap{} })
}

// A policy of several scorers gets one more, with a weight beside theirs.
func Example() {
	config, err := all.ByName("load-prefix")
	if err != nil {
		log.Fatal(err)
	}
	config.Policy.Scorers = append(config.Policy.Scorers, endpick.Weighted{Scorer: Cheap{}, Weight: 2})
	config.Endpoints = []endpick.Endpoint{
		{ID: "dear", Address: "10.0.0.1:8000"},
		{ID: "cheap", Address: "10.0.0.2:8000", Labels: map[string]string{"price": "low"}},
	}
	router, err := endpick.New(config)
	if err != nil {
		log.Fatal(err)
	}
	lease, err := router.Route(endpick.Request{Model: "llama", InputTokens: 100})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(lease.Endpoint().ID)
	lease.Done(endpick.Outcome{})
	// Output: cheap
}
