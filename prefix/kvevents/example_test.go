package kvevents_test

import (
	"context"
	"fmt"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/kvevents"
	"github.com/endpick/endpick/prefix/precise"
)

// An index, a router, and a subscriber for each endpoint.
func ExampleSubscriber() {
	index, err := precise.New(precise.Config{})
	if err != nil {
		panic(err)
	}
	router, err := endpick.New(endpick.Config{
		Policy:    endpick.Policy{Matcher: index},
		Endpoints: []endpick.Endpoint{{Address: "10.0.0.7:8000", Models: []string{"llama"}}},
	})
	if err != nil {
		panic(err)
	}
	ref, _ := router.Ref("10.0.0.7:8000")
	feed, err := index.Feed(ref, precise.FeedConfig{Scope: func(adapter, salt string) prefix.Scope {
		return prefix.Scope{Model: "llama", Adapter: adapter, Salt: salt}
	}})
	if err != nil {
		panic(err)
	}
	events, err := kvevents.New(kvevents.Config{Events: "10.0.0.7:5557", Replay: "10.0.0.7:6557", Sink: feed})
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stop() // when the host ends
	fmt.Println(events.Run(ctx))
	fmt.Println(index.Lookup(nil, ref).Knows)
	// Output:
	// context canceled
	// nothing
}
