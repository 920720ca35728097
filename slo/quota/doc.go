// Package quota limits what tenants may use: tokens per second, and requests in flight.
//
// [New] returns an admitter. When a request is routed, it charges the tenant for the
// prompt and the expected output, and corrects the charge when the request ends and the
// output is known:
//
//	limits, err := quota.New(quota.Config{Limits: func(tenant string) quota.Limits {
//		return quota.Limits{Rate: 5000, Burst: 300_000, Requests: 32}
//	}})
//	config := preset.Default()
//	config.Policy.Admitters = append(config.Policy.Admitters, limits)
//
// A refused request fails with an [Error], which says when to try again; package
// transport answers 429 with Retry-After.
//
// A quota cuts a tenant off at its limit even if servers are idle. To share the capacity
// there is, put a gateway queue (package slo/queue) in front of the router, in which
// tenants take turns by the same tokens. Both need the tenant's name
// ([endpick.Request.Tenant]), which the host must know: a client that could choose it
// would have a bucket for each name.
package quota
