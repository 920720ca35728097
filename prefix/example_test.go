package prefix_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
)

func ExampleAppendTokens() {
	seed := prefix.Scope{Model: "llama", Tenant: "team-7"}.Seed()
	prompt := make([]uint32, 100)
	blocks := prefix.AppendTokens(nil, seed, prompt)
	longer := prefix.AppendTokens(nil, seed, append(prompt, make([]uint32, 20)...))
	fmt.Println(len(blocks), len(longer), longer[5] == blocks[5])
	// Output: 6 7 true
}

// Replicas of a gateway that must compute the same hashes share a key. A single
// gateway needs none: the zero Key is a random one.
func ExampleParseKey() {
	key, err := prefix.ParseKey("c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00") // from a secret store
	if err != nil {
		panic(err)
	}
	seed := prefix.Scope{Key: key, Model: "llama", Tenant: "team-7"}.Seed()
	fmt.Printf("%x\n", prefix.AppendTokens(nil, seed, make([]uint32, 32)))
	fmt.Println("hashed with", key)
	// Output:
	// [3c08dc4399c6c357 f58e8fa971f2f802]
	// hashed with key 31176b07
}

func ExampleHasher() {
	var h prefix.Hasher
	h.Reset(prefix.Scope{Model: "llama"}.Seed(), nil)
	h.WriteString("You are a helpful assistant. ")
	h.WriteString(strings.Repeat("Be brief. ", 10))
	fmt.Println(h.Len(), "bytes,", len(h.Blocks()), "blocks")
	// Output: 129 bytes, 2 blocks
}

func ExampleHasher_WriteMessage() {
	say := func(role, text string) *prefix.Message {
		return &prefix.Message{Role: role, Parts: []prefix.Part{{Content: text}}}
	}
	var h prefix.Hasher
	h.Reset(prefix.Scope{Model: "llama"}.Seed(), nil)
	h.WriteMessage(say("system", strings.Repeat("Follow the house rules. ", 10)))
	h.WriteMessage(say("user", "Is this seat taken?"))
	first := h.Fork()
	h.WriteMessage(say("assistant", "No."))
	h.WriteMessage(say("user", "And that one, by the window, where the sun comes in?"))
	a, b := first.Blocks(), h.Blocks()
	fmt.Println(len(a), len(b), h.Len(), a[len(a)-1] == b[len(a)-1])
	// Output: 4 5 353 true
}

func ExampleIndex() {
	index, err := prefix.NewIndex(prefix.IndexConfig{})
	if err != nil {
		panic(err)
	}
	router, err := endpick.New(endpick.Config{
		Policy:    endpick.Policy{Matcher: index},
		Endpoints: []endpick.Endpoint{{ID: "a"}},
	})
	if err != nil {
		panic(err)
	}
	tokens := make([]uint32, 1000)
	blocks := prefix.AppendTokens(nil, prefix.Scope{Model: "llama"}.Seed(), tokens)
	for range 2 {
		lease, err := router.Route(endpick.Request{InputTokens: len(tokens), Blocks: blocks})
		if err != nil {
			panic(err)
		}
		c, _ := lease.Candidate()
		fmt.Println(c.PrefixTokens, "of", len(tokens), "tokens expected in the cache")
		lease.Done(endpick.Outcome{})
	}
	fmt.Println(index.Stats().Pairs, "blocks remembered")
	// Output:
	// 0 of 1000 tokens expected in the cache
	// 992 of 1000 tokens expected in the cache
	// 62 blocks remembered
}

func ExampleNewAffinity() {
	gate, err := prefix.NewAffinity(prefix.AffinityConfig{MaxPenalty: 2 * time.Second, DisableExploration: true})
	if err != nil {
		panic(err)
	}
	req := endpick.Request{InputTokens: 10_000}
	candidates := []endpick.Candidate{
		{Endpoint: &endpick.Endpoint{ID: "cold"}},
		{Endpoint: &endpick.Endpoint{ID: "warm"}, PrefixTokens: 9000},
	}
	for _, c := range gate.Filter(&req, candidates) {
		fmt.Println(c.Endpoint.ID)
	}
	// Output: warm
}
