// Package quota keeps tenants to what they may use: so many tokens, and so many
// requests at once.
//
// A [Quota] is an admitter of a policy. It charges a tenant for each request that
// is routed, for the prompt and the output that is expected, and sets that right
// when the request ends and the output is known:
//
//	limits, err := quota.New(quota.Config{Limits: func(tenant string) quota.Limits {
//		return quota.Limits{Rate: 5000, Burst: 300_000, Requests: 32}
//	}})
//	config := preset.Default()
//	config.Policy.Admitters = append(config.Policy.Admitters, limits)
//
// A request that is refused fails with an [Error], which says when to try again;
// package transport answers 429 with Retry-After.
//
// A quota cuts a tenant off at its limit, whether there is room or not. To share
// what there is, put a gateway queue before the router (package slo/queue), in
// which tenants take turns by the same tokens. Both need the tenant's name
// ([endpick.Request.Tenant]), which the host has to know: a client that could
// choose it would have a bucket for each name.
package quota
