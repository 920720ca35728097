// Package replica lets several routers in front of one fleet know what the others do.
//
// A Replica is a stage of a router's policy. It tells the other replicas about its
// requests, and makes this router count theirs: each request that another has sent becomes
// a lease here too ([endpick.Adopted]), with its prompt, its first token and its
// end. So everything that learns from leases also learns from those of the others: the
// load of endpoints, the prefix index, the predictor, quotas, the queue. Health learns of
// failures that others have seen.
//
//	r, err := replica.New(replica.Config{Key: key, Name: "gateway-1"})
//	config.Policy.Admitters = append(config.Policy.Admitters, r)
//	router, err := endpick.New(config)
//	conn, err := replica.Dial("nats://127.0.0.1:4222")
//	go r.Run(ctx, router, replica.NATS(conn, "chat"))
//
// The key is the one that prompts are hashed with (transport.Config.HashKey), the same for
// all replicas. It comes from their configuration and is never sent over the bus.
//
// A decision never waits for another replica. Without the bus a router knows its own
// requests, as it would without this package, and forgets those of others within
// [Config.Forget]; [Replica.Status] says so. When the bus is back, replicas request
// snapshots from each other and continue.
//
// docs/replicas.md has what is shared, what is not, what it costs and how wrong it can be.
package replica
