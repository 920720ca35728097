package scorer

import (
	"fmt"
	"log"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/scorer/scorertest"
)

func TestCheapConforms(t *testing.T) {
	scorertest.RunWeighted(t, func(*testing.T) endpick.Scorer { return Cheap{} }, map[string]string{"price": "low"})
}

// The default policy gets one more scorer. Its own score is 1 where the delay is least, and the ratio
// of delays elsewhere, so that a weight of 0.5 lets Cheap's choice take 1/(1 − 0.5 · (1 − 0.5)) =
// 1.33 times as long, while no server has a queue.
func Example() {
	config := preset.Default()
	config.Policy.Scorers = append(config.Policy.Scorers, endpick.Weighted{Scorer: Cheap{}, Weight: 0.5})
	config.Endpoints = []endpick.Endpoint{
		{ID: "dear", Address: "10.0.0.1:8000"},
		{ID: "cheap", Address: "10.0.0.2:8000", Labels: map[string]string{"price": "low"}},
	}
	router, err := endpick.New(config)
	if err != nil {
		log.Fatal(err)
	}
	for range 6 {
		lease, err := router.Route(endpick.Request{Model: "llama", InputTokens: 100, Stream: true})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(lease.Endpoint().ID, " ") // and the response stays open
	}
	// Output: cheap cheap cheap cheap dear dear
}
