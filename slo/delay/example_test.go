package delay_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/delay"
)

// One Marginal predicts and scores. Receipts show what a choice costs each party.
func ExampleMarginal() {
	m, err := delay.New(delay.Config{})
	if err != nil {
		panic(err)
	}
	now := time.Unix(1e9, 0)
	router, err := endpick.New(endpick.Config{
		Endpoints: []endpick.Endpoint{{ID: "a"}, {ID: "b"}},
		Policy:    endpick.Policy{Predictor: m, Scorers: []endpick.Weighted{{Scorer: m, Weight: 1}}},
		Clock:     func() time.Time { return now },
	})
	if err != nil {
		panic(err)
	}
	// Requests of 1,000 tokens take 100 ms to the first token and 20 ms a token after it.
	for range 50 {
		lease, err := router.Route(endpick.Request{Model: "llama", InputTokens: 1000, Stream: true})
		if err != nil {
			panic(err)
		}
		now = now.Add(100 * time.Millisecond)
		lease.FirstToken()
		now = now.Add(2 * time.Second)
		lease.Tokens(100)
		lease.Done(endpick.Outcome{})
	}
	for id, running := range map[string]float64{"a": 30, "b": 3} {
		if err := router.Report(id, endpick.Load{Running: running, KVUsage: 0.5}); err != nil {
			panic(err)
		}
	}
	var receipt endpick.Receipt
	lease, err := router.Route(endpick.Request{Model: "llama", InputTokens: 1000, Stream: true, Receipt: &receipt})
	if err != nil {
		panic(err)
	}
	fmt.Println("goes to", lease.Endpoint().ID)
	terms, _, _ := strings.Cut(receipt.Verdicts[receipt.Chosen].Why, ":")
	fmt.Println(strings.Fields(terms)[0], "in", strings.Fields(terms)[2])
	// Output:
	// goes to b
	// costs in ms
}
