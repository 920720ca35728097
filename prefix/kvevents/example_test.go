package kvevents_test

import (
	"context"
	"fmt"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/kvevents"
	"github.com/endpick/endpick/prefix/precise"
)

func informed(ctx context.Context, config endpick.Config, key prefix.Key) (*endpick.Router, error) {
	index, err := precise.New(precise.Config{})
	if err != nil {
		return nil, err
	}
	config.Policy.Matcher = index
	router, err := endpick.New(config)
	if err != nil {
		return nil, err
	}
	ref, _ := router.Ref("10.0.0.7:8000")
	feed, err := index.Feed(ref, precise.FeedConfig{Scope: func(adapter, salt string) prefix.Scope {
		if adapter != "" {
			return prefix.Scope{Key: key, Model: adapter, Salt: salt} // package transport hashes with the name in the request
		}
		return prefix.Scope{Key: key, Model: "llama", Salt: salt}
	}})
	if err != nil {
		return nil, err
	}
	events, err := kvevents.New(kvevents.Config{Events: "10.0.0.7:5557", Replay: "10.0.0.7:6557", Sink: feed})
	if err != nil {
		return nil, err
	}
	go events.Run(ctx)
	return router, nil
}

// A router with an index that follows the cache of one endpoint.
func ExampleSubscriber() {
	ctx, stop := context.WithCancel(context.Background())
	stop() // when the host ends
	router, err := informed(ctx, endpick.Config{
		Endpoints: []endpick.Endpoint{{Address: "10.0.0.7:8000", Models: []string{"llama"}}},
	}, prefix.Key{})
	if err != nil {
		panic(err)
	}
	fmt.Println(len(router.Endpoints()), "endpoint")
	// Output: 1 endpoint
}
