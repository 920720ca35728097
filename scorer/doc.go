// Package scorer holds the load- and cache-aware policies of the field as
// parts for an [endpick.Policy].
//
// Scorers for a weighted sum, each within [0, 1]: [QueueDepth], [KVUsage],
// [LoadBalance], [PrefixAffinity], [NoHitLRU], [SessionAffinity],
// [AdapterAffinity].
//
// Scorers that decide alone: [LMetric], [LeastLoaded], [Linear], [Dynamo],
// [RoundRobin], and whatever [Cost] makes of a few lines of arithmetic over a
// candidate's indicators.
//
// The filter [Hotspot] keeps a prefix that dominates the traffic from
// overloading the servers that hold it (LMetric, section 5.2). The filter
// [MatchGate] prefers the best match unless load is out of balance; with a
// scorer behind it, it is the policy of AIBrix, Preble and SGLang.
//
// Package preset puts them together. The zero value of every type is ready to
// use, and [endpick.New] refuses fields that are out of range; those with state
// ([NoHitLRU], [RoundRobin], [Hotspot]) must not be copied after first use and
// belong to one router.
package scorer
