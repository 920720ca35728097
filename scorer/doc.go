// Package scorer holds the published load- and cache-aware policies as parts
// for an [endpick.Policy].
//
// Scorers for a weighted sum, each within [0, 1]: [QueueDepth], [KVUsage], [PrefixAffinity],
// [NoHitLRU], [SessionAffinity], [AdapterAffinity], [Resident].
//
// Scorers that decide alone: [LMetric], [LeastLoaded], [Linear], [Dynamo],
// [RoundRobin], and any [Cost], a few lines of arithmetic over a candidate's
// indicators.
//
// The filter [Hotspot] keeps a prefix that dominates the traffic from
// overloading the servers that hold it (LMetric, section 5.2). The filter
// [MatchGate] prefers the best match unless load is out of balance; followed by
// a scorer, it is the policy of AIBrix, Preble and SGLang.
//
// Package preset combines them. Parameters that are zero have the defaults that
// their comments say, and [endpick.New] refuses those that are out of range. Stages
// with state ([NoHitLRU], [RoundRobin], [Hotspot]) belong to one router.
package scorer
